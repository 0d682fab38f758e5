// Same tokens, same bits: a sequence's logits do not depend on how the work is cut. Every
// comparison here is of bytes.

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "engine/score.h"
#include "model_files.h"

namespace fathom {
namespace {

struct Backend {
  std::string isa = "best";
  std::string compute_dtype = "auto";
  int threads = 2;
};

std::unique_ptr<Runner> Make(const Backend& backend) {
  EngineConfig c;
  c.model_dir = BundledModel();
  c.isa = backend.isa;
  c.compute_dtype = backend.compute_dtype;
  c.compute_threads = backend.threads;
  c.max_seqs_per_batch = 8;
  return MustCreate(c);
}

std::vector<float> Score(Runner& runner, const std::vector<int32_t>& ids, int64_t chunk) {
  std::vector<float> all;
  const Status status = ScoreSequence(
      runner, 0, ids, chunk,
      [&](size_t, int64_t, int64_t rows, int64_t vocab, const float* logits) -> Status {
        all.insert(all.end(), logits, logits + rows * vocab);
        return {};
      });
  EXPECT_TRUE(status) << status.error().message;
  return all;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b, int64_t vocab,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
    FAIL() << what << ": position " << static_cast<int64_t>(i) / vocab << " id "
           << static_cast<int64_t>(i) % vocab << ": " << a[i] << " and " << b[i];
  }
}

class Invariance : public testing::TestWithParam<Backend> {};

TEST_P(Invariance, AnyChunking) {
  auto runner = Make(GetParam());
  ASSERT_TRUE(runner);
  const int64_t vocab = runner->model().config().vocab_size;
  for (int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 127, 128, 129, 130, 131, 255, 256, 257, 700}) {
    const auto ids = TestIds(length, static_cast<uint32_t>(length), vocab);
    const auto whole = Score(*runner, ids, length);
    for (int64_t chunk : {1, 7, 128, 129}) {
      if (chunk >= length) continue;
      ExpectSameBits(whole, Score(*runner, ids, chunk), vocab,
                     fmt::format("{} tokens in chunks of {}", length, chunk));
    }
  }
}

TEST_P(Invariance, LongChunked) {
  auto runner = Make(GetParam());
  ASSERT_TRUE(runner);
  const int64_t vocab = runner->model().config().vocab_size;
  const auto ids = TestIds(1500, 5, vocab);
  const auto whole = Score(*runner, ids, 1500);
  for (int64_t chunk : {7, 129, 512}) {
    ExpectSameBits(whole, Score(*runner, ids, chunk), vocab, fmt::format("chunks of {}", chunk));
  }
}

TEST_P(Invariance, OneAndTwoAndThreeThreads) {
  Backend backend = GetParam();
  backend.threads = 1;
  auto one = Make(backend);
  ASSERT_TRUE(one);
  const int64_t vocab = one->model().config().vocab_size;
  const auto ids = TestIds(300, 3, vocab);
  const auto expected = Score(*one, ids, 300);
  for (int threads : {2, 3}) {
    backend.threads = threads;
    auto more = Make(backend);
    ASSERT_TRUE(more);
    ExpectSameBits(expected, Score(*more, ids, 300), vocab, fmt::format("{} threads", threads));
    ExpectSameBits(expected, Score(*more, ids, 50), vocab, fmt::format("{} threads", threads));
  }
}

// Sequences of different lengths in one batch, prompts beside decoding, as the engine mixes them.
TEST_P(Invariance, BesideOthers) {
  auto runner = Make(GetParam());
  ASSERT_TRUE(runner);
  const int64_t vocab = runner->model().config().vocab_size;
  const std::vector<int64_t> lengths = {300, 5, 140, 131, 1, 260};
  const std::vector<int64_t> strides = {37, 1, 140, 2, 1, 128};  // rows a step of each
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone;
  for (size_t i = 0; i < lengths.size(); ++i) {
    ids.push_back(TestIds(lengths[i], 100 + static_cast<uint32_t>(i), vocab));
    alone.push_back(Score(*runner, ids[i], lengths[i]));
  }
  std::vector<SequencePages> pages(lengths.size());
  std::vector<int64_t> done(lengths.size(), 0);
  std::vector<std::vector<float>> together(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    ASSERT_TRUE(runner->cache().Open(pages[i]));
  }
  for (;;) {
    std::vector<int32_t> batch_ids;
    std::vector<SequenceSlice> slices;
    std::vector<size_t> owners;
    for (size_t i = lengths.size(); i-- > 0;) {  // not in order of admission
      const int64_t count = std::min(strides[i], lengths[i] - done[i]);
      if (count == 0) continue;
      ASSERT_TRUE(runner->cache().Extend(pages[i], done[i] + count));
      slices.push_back({static_cast<int64_t>(batch_ids.size()), count, done[i], &pages[i]});
      owners.push_back(i);
      batch_ids.insert(batch_ids.end(), ids[i].begin() + done[i], ids[i].begin() + done[i] + count);
    }
    if (slices.empty()) break;
    std::vector<int32_t> rows(batch_ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    const View logits = runner->Run(Batch{batch_ids, slices, rows});
    for (size_t k = 0; k < slices.size(); ++k) {
      const float* from = logits.f32(slices[k].first_row);
      auto& out = together[owners[k]];
      out.insert(out.end(), from, from + slices[k].count * vocab);
      done[owners[k]] += slices[k].count;
      runner->cache().ReleaseWindow(pages[owners[k]], done[owners[k]]);
    }
    std::vector<const SequencePages*> open;
    for (const SequencePages& p : pages) open.push_back(&p);
    const Status sound = runner->cache().CheckInvariants(open);
    ASSERT_TRUE(sound) << sound.error().message;
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    ExpectSameBits(alone[i], together[i], vocab, fmt::format("sequence {}", i));
    runner->cache().Close(pages[i]);
  }
}

// Pages, slots and rings of a sequence that ended are used again by the next, whatever they held.
TEST_P(Invariance, ReusedPagesAndSlots) {
  auto runner = Make(GetParam());
  ASSERT_TRUE(runner);
  const int64_t vocab = runner->model().config().vocab_size;
  const auto ids = TestIds(200, 9, vocab);
  const auto expected = Score(*runner, ids, 200);
  for (uint32_t round = 0; round < 3; ++round) {
    Score(*runner, TestIds(400 + 61 * round, round, vocab), 97);
    ExpectSameBits(expected, Score(*runner, ids, 33), vocab, fmt::format("round {}", round));
  }
}

std::vector<Backend> AllBackends() {
  std::vector<Backend> backends = {{"best", "auto"}, {"best", "float32"}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    backends.push_back({"avx2", "auto"});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      backends.push_back({"avx512", "auto"});
    }
  }
#endif
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, Invariance, testing::ValuesIn(AllBackends()),
                         [](const auto& param) {
                           return param.param.isa + "_" + param.param.compute_dtype;
                         });

}  // namespace
}  // namespace fathom
