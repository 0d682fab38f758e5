#include "engine/calibrate.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "engine/score.h"

namespace fathom {
namespace {

InputRange RangeOf(View value) {
  InputRange range{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  const int64_t rows = value.dim(0);
  const int64_t cols = value.count() / rows;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      const float x = value.type() == DType::kF32 ? value.f32(r)[k] : ToFloat(value.bf16(r)[k]);
      range.low = std::min(range.low, x);
      range.high = std::max(range.high, x);
    }
  }
  return range;
}

void Widen(InputRanges& ranges, const std::string& linear, InputRange seen) {
  const auto [at, fresh] = ranges.emplace(linear, seen);
  if (fresh) return;
  at->second.low = std::min(at->second.low, seen.low);
  at->second.high = std::max(at->second.high, seen.high);
}

}  // namespace

Result<InputRanges> CalibrateInputs(Runner& runner,
                                    const std::vector<std::vector<int32_t>>& sequences) {
  InputRanges ranges;
  const Trace trace = [&](std::string_view name, View value) {
    // "layers.3.attn_norm" and "layers.3.attn.q_norm".
    constexpr std::string_view kStream = ".attn_norm";
    constexpr std::string_view kLatent = ".q_norm";
    if (name.ends_with(kStream)) {
      const std::string attn = fmt::format("{}.attn", name.substr(0, name.size() - kStream.size()));
      Widen(ranges, attn + ".wq_a", RangeOf(value));
      Widen(ranges, attn + ".wkv", RangeOf(value));
    } else if (name.ends_with(kLatent)) {
      Widen(ranges, fmt::format("{}.wq_b", name.substr(0, name.size() - kLatent.size())),
            RangeOf(value));
    }
  };
  const auto ignore = [](size_t, int64_t, int64_t, int64_t, const float*) { return Status(); };
  for (size_t i = 0; i < sequences.size(); ++i) {
    TRY_STATUS(ScoreSequence(runner, i, sequences[i], runner.max_chunk_tokens(), ignore, &trace));
  }
  return ranges;
}

}  // namespace fathom
