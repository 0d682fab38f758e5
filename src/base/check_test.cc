#include "base/check.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(CheckDeathTest, NamesPlaceConditionAndValues) {
  const int rows = 3;
  EXPECT_DEATH(CHECK(rows == 4, "got {} rows", rows),
               "FATAL .*check_test.cc:[0-9]+: CHECK\\(rows == 4\\) failed: got 3 rows");
  EXPECT_DEATH(CHECK(rows == 5), "CHECK\\(rows == 5\\) failed");
}

TEST(Check, EvaluatesTheConditionOnceAndTheMessageNever) {
  int conditions = 0;
  int messages = 0;
  const auto message = [&] { return ++messages; };
  CHECK(++conditions == 1, "{}", message());
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(messages, 0);
}

TEST(Check, IsOneStatement) {
  if (true)
    CHECK(true);
  else
    FAIL();
}

TEST(CheckDeathTest, DebugChecksAreOffInReleaseBuilds) {
  int evaluated = 0;
#ifdef NDEBUG
  DCHECK(++evaluated < 0, "{}", evaluated);
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_DEATH(DCHECK(++evaluated < 0, "{}", evaluated), "failed: 1");
#endif
}

}  // namespace
}  // namespace fathom
