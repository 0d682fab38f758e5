#pragma once
// What the benchmarks share: clocks, medians, the name of the machine, and a probe. A measured time
// means little on a machine that others use, too: every result is given with the probe's time from
// the same run, and as a ratio to it (measuring rules of the performance notes: probe, work, probe;
// a round whose two probes differ by more than a tenth does not count).

#include <string>
#include <vector>

#include "base/json.h"

namespace fathom {

double WallSeconds();
double ThreadSeconds();   // CPU time of the calling thread
double ProcessSeconds();  // CPU time of all threads of this process

// q in [0, 1]; the values may be in any order, and must not be empty.
double Quantile(std::vector<double> values, double q);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// CPU seconds of this thread for a fixed piece of work of the scheduler's kind: 100,000 look-ups,
// each of which gives the next, all over 256 KiB; the best of three. Half a millisecond.
class Probe {
 public:
  Probe();
  double Run();

 private:
  std::vector<uint32_t> next_;
  uint32_t at_ = 0;
};

std::string CpuName();
int64_t ResidentBytes();

// {"cpu": ..., "cores": ..., "load_average_1_minute": ..., "date": ...} for the head of a result
// file. A load above what the benchmark itself makes means that others were running.
Json Machine();
// Writes the value to a file, indented; false with a message on stderr where it can't.
bool WriteJson(const std::string& path, const Json& value);

}  // namespace fathom
