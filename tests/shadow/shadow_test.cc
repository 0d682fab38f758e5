// Random lives of the engine with the shadow executor, and the proof that it catches broken ones.
//
//   FATHOM_SHADOW_SEED=N        replays one trace
//   FATHOM_SHADOW_TRACES=N      runs so many (the slow suite)

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "shadow/engine_trace.h"

namespace fathom {
namespace {

constexpr int64_t kOperations = 500;  // of a trace, before everything is run to its end

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

class Shadow : public testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }
};

// Whether the trace went well; prints how to replay it.
bool RunTrace(uint64_t seed, TraceCoverage& sum) {
  EngineTrace trace(seed, ShadowFault::kNone);
  trace.Run(kOperations);
  sum.Add(trace.coverage());
  if (trace.faults().empty()) return true;
  std::string text;
  for (const std::string& f : trace.faults()) text += "\n  " + f;
  ADD_FAILURE() << "FATHOM_SHADOW_SEED=" << seed << " (" << trace.settings() << ")" << text;
  return false;
}

TEST_F(Shadow, EveryReadMeetsItsOwnRow) {
  TraceCoverage sum;
  const int64_t seed = FromEnvironment("FATHOM_SHADOW_SEED", -1);
  if (seed >= 0) {
    RunTrace(static_cast<uint64_t>(seed), sum);
    std::fputs((sum.Text() + "\n").c_str(), stderr);
    return;
  }
  const int64_t traces = FromEnvironment("FATHOM_SHADOW_TRACES", 120);
  for (int64_t i = 0; i < traces; ++i) {
    if (!RunTrace(static_cast<uint64_t>(i), sum)) return;
  }
  std::fputs((sum.Text() + "\n").c_str(), stderr);
  EXPECT_GE(sum.operations, 10000);
  EXPECT_GE(sum.shadow.hits, 100);
  EXPECT_GE(sum.shadow.hits_by_decoding, 20);
  EXPECT_GE(sum.preemptions, 50);
  EXPECT_GE(sum.finished, 200);
  EXPECT_GE(sum.refused, 5);
  EXPECT_GE(sum.failed, 5);
  EXPECT_GE(sum.timed_out, 5);
  EXPECT_GE(sum.aborted_waiting, 5);
  EXPECT_GE(sum.aborted_running, 5);
  EXPECT_GE(sum.aborted_in_flight, 5);
  EXPECT_GE(sum.aborted_twice, 5);
  EXPECT_GE(sum.shadow.scored, 1000);
  EXPECT_GE(sum.evicted, 50);
  EXPECT_GE(sum.tombstones, 20);
}

}  // namespace
}  // namespace fathom
