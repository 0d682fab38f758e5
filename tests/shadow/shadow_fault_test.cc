// Broken engines, one at a time: the shadow executor notices each of them, although all structural
// invariants hold.

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "shadow/engine_trace.h"
#include "shadow/hand_driver.h"

namespace fathom {
namespace {

constexpr uint64_t kTraces = 60;  // within so many it is found

struct BrokenExecutor {
  const char* name;
  ShadowFault fault;
};

class ShadowFinds : public testing::TestWithParam<BrokenExecutor> {};

TEST_P(ShadowFinds, InTheEngine) {
  spdlog::set_level(spdlog::level::off);
  std::string found;
  for (uint64_t seed = 0; seed < kTraces && found.empty(); ++seed) {
    EngineTrace trace(seed, GetParam().fault);
    trace.Run(300);
    if (!trace.faults().empty()) found = trace.faults().front();
  }
  spdlog::set_level(spdlog::level::info);
  EXPECT_NE(found, "") << "nobody noticed";
  RecordProperty("found", found);
}

INSTANTIATE_TEST_SUITE_P(
    Broken, ShadowFinds,
    testing::Values(BrokenExecutor{"ChunkEndRowsOnly", ShadowFault::kChunkEndRows},
                    BrokenExecutor{"RingWrittenBeforeRead", ShadowFault::kWriteBeforeRead},
                    BrokenExecutor{"WrongC4Page", ShadowFault::kWrongC4Page},
                    BrokenExecutor{"WindowOneShort", ShadowFault::kWindowOneShort},
                    BrokenExecutor{"StalePlaceholder", ShadowFault::kStalePlaceholder},
                    BrokenExecutor{"NoQuarantine", ShadowFault::kNoQuarantine},
                    BrokenExecutor{"BankNotCleared", ShadowFault::kBankNotCleared},
                    BrokenExecutor{"DummyRowWritten", ShadowFault::kDummyIsWritten}),
    [](const auto& p) { return std::string(p.param.name); });

struct BrokenDriver {
  const char* name;
  DriverFault fault;
};

class ShadowFindsByHand : public testing::TestWithParam<BrokenDriver> {};

TEST_P(ShadowFindsByHand, WhatStructureDoesNotShow) {
  std::string found;
  for (uint64_t seed = 0; seed < kTraces && found.empty(); ++seed) {
    HandDriver driver(seed, GetParam().fault);
    driver.Run(300);
    ASSERT_TRUE(driver.structure()) << driver.structure().error().message;
    if (!driver.faults().empty()) found = driver.faults().front();
  }
  EXPECT_NE(found, "") << "nobody noticed";
  RecordProperty("found", found);
}

INSTANTIATE_TEST_SUITE_P(
    Broken, ShadowFindsByHand,
    testing::Values(BrokenDriver{"NoQuarantine", DriverFault::kNoQuarantine},
                    BrokenDriver{"EarlyPublication", DriverFault::kEarlyPublication},
                    BrokenDriver{"StaleEpochAccepted", DriverFault::kStaleEpoch},
                    BrokenDriver{"MissingWindowInAMatch", DriverFault::kMissingWindow},
                    BrokenDriver{"ThreeRowsVerifiedOnARingOfEight", DriverFault::kWideVerify}),
    [](const auto& p) { return std::string(p.param.name); });

// The same driver without a fault, verification of two rows included, which is what a ring of eight
// allows.
TEST(ShadowByHand, TheSoundDriverIsClean) {
  int64_t hits = 0, verified = 0, checked = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    HandDriver driver(seed, DriverFault::kNone);
    driver.Run(300);
    ASSERT_TRUE(driver.structure()) << driver.structure().error().message;
    ASSERT_TRUE(driver.faults().empty()) << "seed " << seed << ": " << driver.faults().front();
    hits += driver.coverage().hits;
    verified += driver.verified();
    checked += driver.coverage().checked;
  }
  EXPECT_GE(hits, 100);
  EXPECT_GE(verified, 300);
  EXPECT_GE(checked, 1000000);
}

}  // namespace
}  // namespace fathom
