// The scenarios of scenarios_test.cc at their full lengths.

#include "scenarios.h"

namespace fathom {
namespace {

TEST(SlowScenarios, B01RepeatOfOnePromptOf7700Tokens) { RepeatsWithOthersBetween(7700); }

TEST(SlowScenarios, B02APromptOf20000TokensTwice) { SecondTimeHits(20000); }

TEST(SlowScenarios, B05SharedSystemPrefixOf16007Tokens) { SharedSystemPrefix(16007, kGroup); }

}  // namespace
}  // namespace fathom
