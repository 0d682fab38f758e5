// Chooses the CPU backend by name and by what the machine has.

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "ops/simd/simd_ops.h"

namespace fathom {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"reference",   "avx2",        "avx512",
                                                    "avx512_vnni", "avx512_bf16", "amx"};

// Those of kNames that this machine can run, in their order.
std::vector<std::string_view> Available() {
  std::vector<std::string_view> names = {"reference"};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2) names.emplace_back("avx2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) names.emplace_back("avx512");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (vnni) names.emplace_back("avx512_vnni");
  const bool bf16 =
      vnni && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (bf16) names.emplace_back("avx512_bf16");
  if (bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
      __builtin_cpu_supports("amx-bf16")) {
    names.emplace_back("amx");
  }
#endif
  return names;
}

}  // namespace

Result<std::unique_ptr<Ops>> MakeCpuOps(std::string_view isa, ThreadPool& pool) {
  const std::vector<std::string_view> have = Available();
  const bool best = isa.empty() || isa == "best";
  if (!best && std::find(kNames.begin(), kNames.end(), isa) == kNames.end()) {
    return Invalid("FATHOM_ISA: '{}' is no instruction set known here; this machine has best, {}",
                   isa, fmt::join(have, ", "));
  }
  if (!best && std::find(have.begin(), have.end(), isa) == have.end()) {
    return Invalid("FATHOM_ISA: this machine lacks {}; it has best, {}", isa,
                   fmt::join(have, ", "));
  }
#if defined(__x86_64__)
  const std::string_view wanted = best ? have.back() : isa;
  if (wanted == "avx512_bf16" || wanted == "amx") {
    if (!best && wanted == "amx") {
      spdlog::info("FATHOM_ISA=amx: no kernels of its own yet, running those of avx512_bf16");
    }
    return std::make_unique<SimdOps>(Avx512Bf16Kernels(), pool);
  }
  if (wanted == "avx512_vnni") return std::make_unique<SimdOps>(Avx512VnniKernels(), pool);
  if (wanted == "avx512") return std::make_unique<SimdOps>(Avx512Kernels(), pool);
  if (wanted == "avx2") return std::make_unique<SimdOps>(Avx2Kernels(), pool);
#endif
  return MakeReferenceOps();
}

}  // namespace fathom
