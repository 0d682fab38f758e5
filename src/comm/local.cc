#include "comm/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>

#include "base/check.h"
#include "base/clock.h"

namespace fathom {
namespace {

void Copy(const std::byte* from, int64_t bytes, std::byte* to) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Of a world of one: what is sent is what comes back.
Status CopyAll(std::span<const std::byte> in, std::span<std::byte> out) {
  CHECK(in.size() == out.size(), "{} bytes into {}", in.size(), out.size());
  Copy(in.data(), static_cast<int64_t>(in.size()), out.data());
  return {};
}

int64_t Sum(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

enum class Collective { kAllReduce, kAllGather, kBroadcast, kAllToAll, kBarrier };

const char* Name(Collective c) {
  switch (c) {
    case Collective::kAllReduce:
      return "AllReduce";
    case Collective::kAllGather:
      return "AllGather";
    case Collective::kBroadcast:
      return "Broadcast";
    case Collective::kAllToAll:
      return "AllToAll";
    case Collective::kBarrier:
      return "Barrier";
  }
  return "?";
}

// What a rank brings to a collective. Written by the rank before it arrives, read by the others
// between the two waits.
struct Post {
  Collective op = Collective::kBarrier;
  int64_t bytes = 0;  // must agree among ranks
  int root = 0;       // must agree among ranks
  std::byte* data = nullptr;
  const std::byte* in = nullptr;
  std::span<const int64_t> send_bytes = {};
};

class Group {
 public:
  Group(int ranks, double timeout_s)
      : posts_(static_cast<size_t>(ranks)),
        here_(static_cast<size_t>(ranks)),
        timeout_s_(timeout_s) {}

  int size() const { return static_cast<int>(posts_.size()); }
  const Post& post(int rank) const { return posts_[static_cast<size_t>(rank)]; }

  // First wait: all ranks have posted, and posted the same thing. Either all ranks pass it or none.
  Status Enter(int rank, const Post& post) {
    std::unique_lock lock(mutex_);
    if (!fault_.message.empty()) return tl::unexpected(fault_);
    posts_[static_cast<size_t>(rank)] = post;
    CHECK(!here_[static_cast<size_t>(rank)], "rank {} is in two collectives at once", rank);
    here_[static_cast<size_t>(rank)] = true;
    if (!Arrive(lock, true)) {
      if (fault_.message.empty()) {
        fault_ = Error{ErrorCode::kDeadlineExceeded,
                       fmt::format("{}: rank {} waited {} s for {}; the group ends", Name(post.op),
                                   rank, timeout_s_, Missing())};
        changed_.notify_all();
      }
      return tl::unexpected(fault_);
    }
    const Post& first = posts_[0];
    CHECK(post.op == first.op && post.bytes == first.bytes && post.root == first.root,
          "rank {} is in {} of {} bytes (root {}), rank 0 in {} of {} bytes (root {})", rank,
          Name(post.op), post.bytes, post.root, Name(first.op), first.bytes, first.root);
    return {};
  }

  // Second wait: nobody needs the memory of the others any more. It can't be aborted: all ranks are
  // past Enter and on their way here, and one that left early could free what another still reads.
  void Leave(int rank) {
    std::unique_lock lock(mutex_);
    here_[static_cast<size_t>(rank)] = false;
    Arrive(lock, false);
  }

  void Abort(int rank) {
    const std::lock_guard lock(mutex_);
    if (!fault_.message.empty()) return;
    fault_ = Error{ErrorCode::kUnavailable, fmt::format("rank {} ended the group", rank)};
    changed_.notify_all();
  }

 private:
  // False: the group ended, or time ran out, before the last rank came.
  bool Arrive(std::unique_lock<std::mutex>& lock, bool may_fail) {
    const uint64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return true;
    }
    const auto all_came = [&] { return round_ != round; };
    if (!may_fail) {
      changed_.wait(lock, all_came);
      return true;
    }
    changed_.wait_for(lock, WaitSeconds(timeout_s_),
                      [&] { return all_came() || !fault_.message.empty(); });
    return all_came();
  }

  std::string Missing() const {
    std::string names;
    for (size_t r = 0; r < here_.size(); ++r) {
      if (!here_[r]) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", r);
    }
    return names;
  }

  std::vector<Post> posts_;
  std::vector<bool> here_;
  double timeout_s_;
  std::mutex mutex_;  // guards all below, and here_; posts_ by the protocol
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  Error fault_ = {};  // set once, when the group ends
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Status AllReduce(std::span<float> data) override {
    const auto count = static_cast<int64_t>(data.size());
    TRY_STATUS(group_->Enter(rank_, {.op = Collective::kAllReduce,
                                     .bytes = count * static_cast<int64_t>(sizeof(float)),
                                     .data = reinterpret_cast<std::byte*>(data.data())}));
    // This rank's slice, of everybody's data: no other rank touches it.
    const int64_t begin = count * rank_ / size();
    const int64_t end = count * (rank_ + 1) / size();
    const auto of = [&](int r) { return reinterpret_cast<float*>(group_->post(r).data); };
    for (int64_t i = begin; i < end; ++i) {
      float sum = of(0)[i];
      for (int r = 1; r < size(); ++r) sum += of(r)[i];
      for (int r = 0; r < size(); ++r) of(r)[i] = sum;
    }
    group_->Leave(rank_);
    return {};
  }

  Status AllGather(std::span<const std::byte> in, std::span<std::byte> out) override {
    CHECK(out.size() == in.size() * posts(), "{} bytes from each of {} ranks into {}", in.size(),
          size(), out.size());
    TRY_STATUS(group_->Enter(
        rank_,
        {.op = Collective::kAllGather, .bytes = static_cast<int64_t>(in.size()), .in = in.data()}));
    const auto bytes = static_cast<int64_t>(in.size());
    for (int r = 0; r < size(); ++r) Copy(group_->post(r).in, bytes, out.data() + r * bytes);
    group_->Leave(rank_);
    return {};
  }

  Status Broadcast(std::span<std::byte> data, int root) override {
    CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
    TRY_STATUS(group_->Enter(rank_, {.op = Collective::kBroadcast,
                                     .bytes = static_cast<int64_t>(data.size()),
                                     .root = root,
                                     .data = data.data()}));
    if (rank_ != root) {
      Copy(group_->post(root).data, static_cast<int64_t>(data.size()), data.data());
    }
    group_->Leave(rank_);
    return {};
  }

  Status AllToAll(std::span<const std::byte> in, std::span<const int64_t> send_bytes,
                  std::span<std::byte> out, std::span<const int64_t> receive_bytes) override {
    CHECK(send_bytes.size() == posts() && receive_bytes.size() == posts());
    CHECK(Sum(send_bytes) == static_cast<int64_t>(in.size()) &&
              Sum(receive_bytes) == static_cast<int64_t>(out.size()),
          "sizes for {} and {} bytes, buffers of {} and {}", Sum(send_bytes), Sum(receive_bytes),
          in.size(), out.size());
    TRY_STATUS(group_->Enter(
        rank_, {.op = Collective::kAllToAll, .in = in.data(), .send_bytes = send_bytes}));
    int64_t at = 0;
    for (int r = 0; r < size(); ++r) {
      const Post& sender = group_->post(r);
      const int64_t bytes = receive_bytes[static_cast<size_t>(r)];
      const int64_t sent = sender.send_bytes[static_cast<size_t>(rank_)];
      CHECK(bytes == sent, "rank {} sends {} bytes to rank {}, which expects {}", r, sent, rank_,
            bytes);
      const int64_t offset = Sum(sender.send_bytes.first(static_cast<size_t>(rank_)));
      Copy(sender.in + offset, bytes, out.data() + at);
      at += bytes;
    }
    group_->Leave(rank_);
    return {};
  }

  Status Barrier() override {
    TRY_STATUS(group_->Enter(rank_, {.op = Collective::kBarrier}));
    group_->Leave(rank_);
    return {};
  }

  void Abort() override { group_->Abort(rank_); }

 private:
  size_t posts() const { return static_cast<size_t>(size()); }

  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

Status SoloCommunicator::CheckAlive() const {
  if (aborted_.load()) return Fail(ErrorCode::kUnavailable, "rank 0 ended the group");
  return {};
}

Status SoloCommunicator::AllReduce(std::span<float>) { return CheckAlive(); }

Status SoloCommunicator::AllGather(std::span<const std::byte> in, std::span<std::byte> out) {
  TRY_STATUS(CheckAlive());
  return CopyAll(in, out);
}

Status SoloCommunicator::Broadcast(std::span<std::byte>, int root) {
  CHECK(root == 0, "root {} of 1 rank", root);
  return CheckAlive();
}

Status SoloCommunicator::AllToAll(std::span<const std::byte> in,
                                  std::span<const int64_t> send_bytes, std::span<std::byte> out,
                                  std::span<const int64_t> receive_bytes) {
  CHECK(send_bytes.size() == 1 && receive_bytes.size() == 1);
  CHECK(Sum(send_bytes) == static_cast<int64_t>(in.size()) &&
        Sum(receive_bytes) == static_cast<int64_t>(out.size()));
  TRY_STATUS(CheckAlive());
  return CopyAll(in, out);
}

Status SoloCommunicator::Barrier() { return CheckAlive(); }

void SoloCommunicator::Abort() { aborted_.store(true); }

std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(int ranks, double timeout_s) {
  CHECK(ranks > 0, "{} ranks", ranks);
  const auto group = std::make_shared<Group>(ranks, timeout_s);
  std::vector<std::unique_ptr<Communicator>> members;
  members.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    members.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return members;
}

}  // namespace fathom
