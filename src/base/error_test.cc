#include "base/error.h"

#include <gtest/gtest.h>

#include <memory>

namespace fathom {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Invalid("{} is odd", n);
  return n / 2;
}

Status MustBeSmall(int n) {
  if (n > 10) return Fail(ErrorCode::kResourceExhausted, "{} is over {}", n, 10);
  return {};
}

Result<int> Quarter(int n) {
  TRY(const int half, Half(n));
  TRY(const int quarter, Half(half));
  TRY_STATUS(MustBeSmall(quarter));
  return quarter;
}

TEST(Error, TryBindsTheValue) {
  const auto result = Quarter(12);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(*result, 3);
}

TEST(Error, TryReturnsTheFirstErrorUnchanged) {
  const auto odd = Quarter(5);
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(odd.error().message, "5 is odd");
  EXPECT_EQ(Quarter(6).error().message, "3 is odd");
  const auto big = Quarter(400);
  ASSERT_FALSE(big.has_value());
  EXPECT_EQ(big.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(big.error().message, "100 is over 10");
}

TEST(Error, ParamTravelsAlong) {
  const auto inner = []() -> Status {
    return tl::unexpected(Error{ErrorCode::kInvalidArgument, "too hot", "temperature"});
  };
  const auto outer = [&]() -> Result<std::string> {
    TRY_STATUS(inner());
    return "not reached";
  };
  EXPECT_EQ(outer().error().param, "temperature");
}

TEST(Error, TryMovesValuesThatCannotBeCopied) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(7); };
  const auto use = [&]() -> Result<int> {
    TRY(const std::unique_ptr<int> p, make());
    return *p;
  };
  EXPECT_EQ(*use(), 7);
}

TEST(Error, EvaluatesTheExpressionOnce) {
  int calls = 0;
  const auto count = [&]() -> Result<int> { return ++calls; };
  const auto use = [&]() -> Status {
    TRY(const int first, count());
    TRY_STATUS(Status{});
    EXPECT_EQ(first, 1);
    return {};
  };
  EXPECT_TRUE(use().has_value());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fathom
