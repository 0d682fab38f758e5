#include "comm/local.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <chrono>
#include <functional>
#include <limits>
#include <thread>

namespace fathom {
namespace {

using std::chrono::milliseconds;

std::span<const std::byte> BytesOf(const std::vector<int32_t>& v) {
  return std::as_bytes(std::span(v));
}
std::span<std::byte> BytesOf(std::vector<int32_t>& v) {
  return std::as_writable_bytes(std::span(v));
}

// Runs body(rank's communicator) on one thread a rank, and returns when all are done.
void RunRanks(int ranks, const std::function<void(Communicator&)>& body, double timeout_s = 60) {
  const auto group = MakeThreadGroup(ranks, timeout_s);
  std::vector<std::jthread> threads;
  for (const auto& member : group) {
    threads.emplace_back([&body, &member] { body(*member); });
  }
}

// A value of rank r at element i whose sum depends on the order of addition.
float Value(int rank, int i, int round) {
  constexpr float kScale[] = {1e4F, -3.7F, 900.0F, 0.013F};
  return kScale[rank] * (1.0F + 0.37F * static_cast<float>((rank * 31 + i * 7 + round) % 101));
}

float AscendingSum(int ranks, int i, int round) {
  float sum = Value(0, i, round);
  for (int r = 1; r < ranks; ++r) sum += Value(r, i, round);
  return sum;
}

class ThreadGroup : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroup, testing::Values(1, 2, 3, 4));

TEST_P(ThreadGroup, KnowsItsRanks) {
  const auto group = MakeThreadGroup(GetParam());
  for (int r = 0; r < GetParam(); ++r) {
    EXPECT_EQ(group[static_cast<size_t>(r)]->rank(), r);
    EXPECT_EQ(group[static_cast<size_t>(r)]->size(), GetParam());
  }
}

TEST_P(ThreadGroup, SumsAreThoseOfAscendingRanksWhoeverComesLast) {
  const int ranks = GetParam();
  constexpr int kCount = 1001;
  for (int late = 0; late < ranks; ++late) {
    RunRanks(ranks, [&](Communicator& comm) {
      for (int round = 0; round < 20; ++round) {
        std::vector<float> data(kCount);
        for (int i = 0; i < kCount; ++i) {
          data[static_cast<size_t>(i)] = Value(comm.rank(), i, round);
        }
        if (comm.rank() == late && round % 5 == 0) std::this_thread::sleep_for(milliseconds(2));
        ASSERT_TRUE(comm.AllReduce(std::span(data)).has_value());
        for (int i = 0; i < kCount; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(data[static_cast<size_t>(i)]),
                    std::bit_cast<uint32_t>(AscendingSum(ranks, i, round)))
              << i;
        }
      }
    });
  }
}

// The values above would show another order: without this the test before could pass by luck.
TEST(AscendingSum, DiffersFromOtherOrders) {
  int differ = 0;
  for (int i = 0; i < 1001; ++i) {
    float sum = Value(3, i, 0);
    for (int r = 2; r >= 0; --r) sum += Value(r, i, 0);
    differ += sum != AscendingSum(4, i, 0) ? 1 : 0;
  }
  EXPECT_GT(differ, 250);
}

TEST_P(ThreadGroup, GathersInRankOrder) {
  const int ranks = GetParam();
  RunRanks(ranks, [&](Communicator& comm) {
    for (size_t count : {0U, 1U, 5U, 1000U}) {
      const std::vector<int32_t> in(count, 100 + comm.rank());
      std::vector<int32_t> out(count * static_cast<size_t>(ranks), -1);
      ASSERT_TRUE(comm.AllGather(BytesOf(in), BytesOf(out)).has_value());
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], 100 + static_cast<int32_t>(i / count)) << i;
      }
    }
  });
}

TEST_P(ThreadGroup, BroadcastsFromEveryRoot) {
  const int ranks = GetParam();
  RunRanks(ranks, [&](Communicator& comm) {
    for (int root = 0; root < ranks; ++root) {
      std::vector<int32_t> data(77, comm.rank() * 10);
      ASSERT_TRUE(comm.Broadcast(BytesOf(data), root).has_value());
      ASSERT_EQ(data, std::vector<int32_t>(77, root * 10));
    }
  });
}

// Rank s sends (3 s + 2 r) % 5 integers to rank r: counts differ and some are zero.
TEST_P(ThreadGroup, AllToAllDeliversEveryPairInOrder) {
  const int ranks = GetParam();
  const auto count = [](int s, int r) { return (3 * s + 2 * r) % 5; };
  RunRanks(ranks, [&](Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int32_t> in;
      std::vector<int32_t> expected;
      std::vector<int64_t> send;
      std::vector<int64_t> receive;
      for (int other = 0; other < ranks; ++other) {
        const int to = count(comm.rank(), other);
        const int from = count(other, comm.rank());
        for (int i = 0; i < to; ++i) in.push_back(comm.rank() * 100 + other * 10 + i + round);
        for (int i = 0; i < from; ++i) {
          expected.push_back(other * 100 + comm.rank() * 10 + i + round);
        }
        send.push_back(to * 4);
        receive.push_back(from * 4);
      }
      std::vector<int32_t> out(expected.size());
      ASSERT_TRUE(comm.AllToAll(BytesOf(in), send, BytesOf(out), receive).has_value());
      ASSERT_EQ(out, expected);
    }
  });
}

TEST_P(ThreadGroup, BarrierHoldsUntilTheLastRankComes) {
  const int ranks = GetParam();
  std::atomic<int> came{0};
  RunRanks(ranks, [&](Communicator& comm) {
    for (int round = 1; round <= 200; ++round) {
      came.fetch_add(1);
      ASSERT_TRUE(comm.Barrier().has_value());
      ASSERT_GE(came.load(), round * ranks);
      ASSERT_TRUE(comm.Barrier().has_value());
    }
  });
}

// Any program of collectives gives every rank the same and the right result.
RC_GTEST_PROP(ThreadGroup, AnyProgramOfCollectives, ()) {
  const int ranks = *rc::gen::element(1, 2, 4);
  const auto program = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 3), rc::gen::inRange(0, 50)));
  std::atomic<int> faults{0};
  RunRanks(ranks, [&](Communicator& comm) {
    int step = 0;
    for (const auto& [op, count] : program) {
      ++step;
      const auto n = static_cast<size_t>(count);
      if (op == 0) {
        std::vector<float> data(n);
        for (size_t i = 0; i < n; ++i) data[i] = Value(comm.rank(), static_cast<int>(i), step);
        if (!comm.AllReduce(std::span(data))) ++faults;
        for (size_t i = 0; i < n; ++i) {
          if (data[i] != AscendingSum(ranks, static_cast<int>(i), step)) ++faults;
        }
      } else if (op == 1) {
        const std::vector<int32_t> in(n, comm.rank() + step);
        std::vector<int32_t> out(n * static_cast<size_t>(ranks));
        if (!comm.AllGather(BytesOf(in), BytesOf(out))) ++faults;
        for (size_t i = 0; i < out.size(); ++i) {
          if (out[i] != static_cast<int32_t>(i / n) + step) ++faults;
        }
      } else {
        std::vector<int32_t> data(n, comm.rank());
        if (!comm.Broadcast(BytesOf(data), count % ranks)) ++faults;
        if (data != std::vector<int32_t>(n, count % ranks)) ++faults;
      }
    }
  });
  RC_ASSERT(faults.load() == 0);
}

TEST(ThreadGroup, AbortReleasesThoseWhoWaitAndEndsTheGroup) {
  RunRanks(3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(20));
      comm.Abort();
    }
    const Status status = comm.Barrier();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(status.error().message, "rank 2 ended the group");
    std::vector<float> data(3);
    EXPECT_FALSE(comm.AllReduce(std::span(data)).has_value());
  });
}

TEST(ThreadGroup, RankThatNeverComesEndsTheGroupInTime) {
  RunRanks(
      3,
      [](Communicator& comm) {
        if (comm.rank() == 1) return;
        std::vector<float> data(3);
        const Status status = comm.AllReduce(std::span(data));
        ASSERT_FALSE(status.has_value());
        EXPECT_EQ(status.error().code, ErrorCode::kDeadlineExceeded);
        EXPECT_NE(status.error().message.find("AllReduce"), std::string::npos);
        EXPECT_NE(status.error().message.find("rank 1"), std::string::npos);
        EXPECT_NE(status.error().message.find("waited 0.2 s"), std::string::npos);
      },
      0.2);
}

TEST(ThreadGroup, MayWaitForEver) {
  for (const double timeout : {1e30, std::numeric_limits<double>::infinity()}) {
    RunRanks(
        2,
        [](Communicator& comm) {
          if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(5));
          const Status status = comm.Barrier();
          EXPECT_TRUE(status) << status.error().message;
        },
        timeout);
  }
}

TEST(ThreadGroupDeathTest, RanksThatDisagreeAreOurOwnBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(RunRanks(2,
                        [](Communicator& comm) {
                          std::vector<float> data(comm.rank() == 0 ? 3 : 4);
                          (void)comm.AllReduce(std::span(data));
                        }),
               "rank 1 is in AllReduce of 16 bytes .* rank 0 in AllReduce of 12 bytes");
  EXPECT_DEATH(RunRanks(2,
                        [](Communicator& comm) {
                          std::vector<float> data(3);
                          if (comm.rank() == 0) {
                            (void)comm.Barrier();
                          } else {
                            (void)comm.AllReduce(std::span(data));
                          }
                        }),
               "rank 1 is in AllReduce .* rank 0 in Barrier");
}

TEST(SoloCommunicator, SumsAreIdentitiesAndTheRestCopies) {
  SoloCommunicator comm;
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  std::vector<float> data = {1, -0.0F, 3};
  ASSERT_TRUE(comm.AllReduce(std::span(data)).has_value());
  EXPECT_EQ(data, (std::vector<float>{1, -0.0F, 3}));
  EXPECT_TRUE(std::signbit(data[1]));
  const std::vector<int32_t> in = {4, 5};
  std::vector<int32_t> out(2);
  ASSERT_TRUE(comm.AllGather(BytesOf(in), BytesOf(out)).has_value());
  EXPECT_EQ(out, in);
  std::vector<int32_t> sent(2);
  const std::vector<int64_t> bytes = {8};
  ASSERT_TRUE(comm.AllToAll(BytesOf(in), bytes, BytesOf(sent), bytes).has_value());
  EXPECT_EQ(sent, in);
  ASSERT_TRUE(comm.Broadcast(BytesOf(out), 0).has_value());
  EXPECT_EQ(out, in);
  ASSERT_TRUE(comm.Barrier().has_value());
  comm.Abort();
  EXPECT_EQ(comm.Barrier().error().code, ErrorCode::kUnavailable);
}

TEST(Views, AreTheSameCollectives) {
  RunRanks(2, [](Communicator& comm) {
    std::vector<float> sum = {static_cast<float>(comm.rank()), 1.0F};
    ASSERT_TRUE(comm.AllReduce(View(sum.data(), DType::kF32, {1, 2})).has_value());
    EXPECT_EQ(sum, (std::vector<float>{1.0F, 2.0F}));
    std::vector<Bf16> row(3, ToBf16(static_cast<float>(comm.rank())));
    std::vector<Bf16> rows(6);
    ASSERT_TRUE(comm.AllGather(View(row.data(), DType::kBf16, {1, 3}),
                               View(rows.data(), DType::kBf16, {2, 3}))
                    .has_value());
    EXPECT_EQ(ToFloat(rows[2]), 0.0F);
    EXPECT_EQ(ToFloat(rows[3]), 1.0F);
    ASSERT_TRUE(comm.Broadcast(View(row.data(), DType::kBf16, {3}), 1).has_value());
    EXPECT_EQ(ToFloat(row[0]), 1.0F);
  });
}

TEST(ViewsDeathTest, RoundedValuesAreNotSummed) {
  SoloCommunicator comm;
  std::vector<Bf16> data(4);
  EXPECT_DEATH((void)comm.AllReduce(View(data.data(), DType::kBf16, {4})), "cannot sum BF16");
}

}  // namespace
}  // namespace fathom
