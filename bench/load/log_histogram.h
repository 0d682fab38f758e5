#pragma once
// LogHistogram: durations in buckets that grow by 2 %, from a microsecond to twenty minutes: a load
// run keeps millions of them in a few kilobytes. Quantiles are exact to 2 %.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace fathom {

class LogHistogram {
 public:
  void Add(double seconds) {
    const double place = std::log(std::max(seconds, kLeast) / kLeast) / std::log(kGrowth);
    ++counts_[std::min(static_cast<size_t>(place), counts_.size() - 1)];
    ++count_;
  }
  int64_t count() const { return count_; }
  // The upper end of the bucket that the q-quantile lies in; 0 without values.
  double Quantile(double q) const {
    if (count_ == 0) return 0;
    auto left = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
    size_t bucket = 0;
    while (bucket + 1 < counts_.size() && (left -= counts_[bucket]) > 0) ++bucket;
    return kLeast * std::pow(kGrowth, static_cast<double>(bucket + 1));
  }

 private:
  static constexpr double kLeast = 1e-6;
  static constexpr double kGrowth = 1.02;
  std::array<int64_t, 1060> counts_{};
  int64_t count_ = 0;
};

}  // namespace fathom
