#pragma once
// Communicator: the narrow waist between ranks. A rank is one process (or, in tests, one thread)
// that holds its shard of a model; all ranks of a group enter the same collectives in the same
// order, also those whose batch is empty (a count of zero is legal everywhere).
//
// Determinism: AllReduce adds in ascending rank order, ((x0 + x1) + x2) + ..., in float, whatever
// the order of arrival, so every rank gets the same bits on every run. Everything else only moves
// bytes.
//
// Thread rules: one thread at a time calls a rank's collectives; Abort may be called from any
// thread. Buffers belong to the caller and must live until the call returns; `in` and `out` must
// not overlap.
//
// Errors: kUnavailable when a rank was lost or the group was aborted, kDeadlineExceeded when a rank
// did not come in time. Then the contents of the buffers are unspecified and the group is dead:
// every later call fails as well. Ranks that disagree on which collective they are in, or on its
// sizes, are our own bug (CHECK, with both sides' values).

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/view.h"

namespace fathom {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data[i] := the sum over ranks of data[i].
  virtual Status AllReduce(std::span<float> data) = 0;

  // out := `in` of rank 0, `in` of rank 1, ...: out.size() == size() * in.size().
  virtual Status AllGather(std::span<const std::byte> in, std::span<std::byte> out) = 0;

  // data := data of `root`.
  virtual Status Broadcast(std::span<std::byte> data, int root) = 0;

  // Sends the next send_bytes[r] bytes of `in` to rank r, for r = 0, 1, ...; `out` gets
  // receive_bytes[r] bytes from rank r, likewise in order. receive_bytes[r] is what rank r sends
  // here.
  virtual Status AllToAll(std::span<const std::byte> in, std::span<const int64_t> send_bytes,
                          std::span<std::byte> out, std::span<const int64_t> receive_bytes) = 0;

  // Returns when every rank has come.
  virtual Status Barrier() = 0;

  // Makes all ranks leave the collective they wait in, with kUnavailable, and refuse later ones.
  virtual void Abort() = 0;

  // The same for contiguous views. AllReduce takes kF32 only: sums of rounded values are not sums.
  Status AllReduce(View data);
  Status AllGather(View in, View out);
  Status Broadcast(View data, int root);
};

}  // namespace fathom
