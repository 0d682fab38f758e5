// A program of its own, as .ci/run runs it under the address sanitizer, too: table and row indices
// at their largest.

#include "scenarios.h"

namespace fathom {
namespace {

TEST(SlowPrefill, B20PrefillOf32768TokensInOneStepAndInChunks) { PrefillsAlike(32768, {4096}); }

}  // namespace
}  // namespace fathom
