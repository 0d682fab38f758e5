#pragma once
// Communicators inside one process.
//
// SoloCommunicator: a world of one, what a single-process server runs with. Sums are identities,
// the rest are copies; it never waits.
//
// MakeThreadGroup: n ranks that are threads of this process, for tests of sharded models and of the
// contract itself. A collective is: post the arguments, wait for all, work on the memory of the
// others (each rank reduces its own slice), wait for all. Waiting sleeps (mutex and condition
// variable); it is not made for speed.

#include <atomic>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace fathom {

class SoloCommunicator final : public Communicator {
 public:
  using Communicator::AllGather;
  using Communicator::AllReduce;
  using Communicator::Broadcast;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduce(std::span<float> data) override;
  Status AllGather(std::span<const std::byte> in, std::span<std::byte> out) override;
  Status Broadcast(std::span<std::byte> data, int root) override;
  Status AllToAll(std::span<const std::byte> in, std::span<const int64_t> send_bytes,
                  std::span<std::byte> out, std::span<const int64_t> receive_bytes) override;
  Status Barrier() override;
  void Abort() override;

 private:
  Status CheckAlive() const;
  std::atomic<bool> aborted_{false};
};

// Element r is rank r; give each to its own thread. A rank that waits longer than timeout_s aborts
// the group; the error names who was missing.
std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(int ranks, double timeout_s = 120);

}  // namespace fathom
