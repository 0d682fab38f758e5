#pragma once
// Where the tests find checkpoints and golden files. The bundled model is in the repository; the
// bf16 original and the tiny random models are in the directory beside it, which a fresh clone may
// lack: then a test skips and names the file it misses.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/runner.h"

namespace fathom {

inline std::string BundledModel() { return FATHOM_SOURCE_DIR "/models/mini-v4"; }
inline std::string SharedFile(const std::string& name) {
  return std::string(FATHOM_SHARED_DIR) + "/" + name;
}

#define SKIP_WITHOUT(path)                                                    \
  do {                                                                        \
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "missing " << (path); \
  } while (false)

// A runner that failed to load fails the test with the reason.
inline std::unique_ptr<Runner> MustCreate(const EngineConfig& config) {
  auto runner = Runner::Create(config);
  EXPECT_TRUE(runner.has_value()) << (runner ? "" : runner.error().message);
  return runner ? std::move(*runner) : nullptr;
}

// Ids without structure, the same in every run.
inline std::vector<int32_t> TestIds(int64_t count, uint32_t seed, int64_t vocab = 4000) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  uint32_t x = seed * 2654435761U + 1;
  for (int32_t& id : ids) {
    x = x * 1664525U + 1013904223U;
    id = static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(vocab));
  }
  return ids;
}

}  // namespace fathom
