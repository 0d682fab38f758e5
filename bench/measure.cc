#include "measure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "base/check.h"

namespace fathom {
namespace {

double Clock(clockid_t clock) {
  timespec t{};
  CHECK(clock_gettime(clock, &t) == 0);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr uint32_t kProbeNodes = uint32_t{1} << 16;  // 256 KiB
constexpr int kProbeSteps = 100000;

}  // namespace

double WallSeconds() { return Clock(CLOCK_MONOTONIC); }
double ThreadSeconds() { return Clock(CLOCK_THREAD_CPUTIME_ID); }
double ProcessSeconds() { return Clock(CLOCK_PROCESS_CPUTIME_ID); }

double Quantile(std::vector<double> values, double q) {
  CHECK(!values.empty() && q >= 0 && q <= 1);
  const auto nth = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(nth), values.end());
  return values[nth];
}

Probe::Probe() : next_(kProbeNodes) {
  // One cycle through all nodes (Sattolo), the same in every run.
  std::iota(next_.begin(), next_.end(), 0U);
  std::minstd_rand random(1);
  for (uint32_t i = kProbeNodes - 1; i > 0; --i) {
    std::swap(next_[i], next_[random() % i]);
  }
}

double Probe::Run() {
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const double start = ThreadSeconds();
    for (int i = 0; i < kProbeSteps; ++i) at_ = next_[at_];
    const double seconds = ThreadSeconds() - start;
    best = round == 0 ? seconds : std::min(best, seconds);
  }
  CHECK(at_ < kProbeNodes);  // the result is used
  return best;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Json Machine() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%d", &utc);
  double load = -1;
  getloadavg(&load, 1);
  return {{"cpu", CpuName()},
          {"cores", std::thread::hardware_concurrency()},
          {"load_average_1_minute", load},
          {"date", date}};
}

bool WriteJson(const std::string& path, const Json& value) {
  std::ofstream file(path);
  file << value.dump(2) << '\n';
  file.close();
  if (file.fail()) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return !file.fail();
}

}  // namespace fathom
