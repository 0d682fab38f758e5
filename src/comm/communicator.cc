#include "comm/communicator.h"

#include "base/check.h"

namespace fathom {
namespace {

std::span<std::byte> Bytes(const View& view) {
  CHECK(view.contiguous(), "a collective needs contiguous memory");
  return {view.data(), static_cast<size_t>(view.count() * SizeOf(view.type()))};
}

}  // namespace

Status Communicator::AllReduce(View data) {
  CHECK(data.type() == DType::kF32 && data.contiguous(), "cannot sum {} across ranks",
        Name(data.type()));
  return AllReduce(std::span<float>(data.f32(), static_cast<size_t>(data.count())));
}

Status Communicator::AllGather(View in, View out) {
  CHECK(in.type() == out.type(), "{} into {}", Name(in.type()), Name(out.type()));
  return AllGather(std::span<const std::byte>(Bytes(in)), Bytes(out));
}

Status Communicator::Broadcast(View data, int root) { return Broadcast(Bytes(data), root); }

}  // namespace fathom
