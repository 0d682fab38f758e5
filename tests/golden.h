#pragma once
// Golden files: logits that another implementation computed, and how to compare with them. The
// layout is that of their generator: NAME.ids, NAME.rows, NAME.logits, NAME.top_id, NAME.top,
// NAME.lse, and for one sequence NAME.embed, NAME.layers.N.{attn,ffn,out}.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/runner.h"
#include "weights/safetensors.h"

namespace fathom {

class GoldenFile {
 public:
  static Result<GoldenFile> Open(const std::string& path);
  std::vector<std::string> names() const;  // sequences, by name
  bool Has(const std::string& tensor) const { return by_name_.count(tensor) > 0; }
  std::vector<int32_t> Ints(const std::string& tensor) const;
  std::vector<float> Floats(const std::string& tensor) const;

 private:
  explicit GoldenFile(std::shared_ptr<SafetensorsFile> file);
  std::shared_ptr<SafetensorsFile> file_;
  std::map<std::string, const Tensor*> by_name_;
};

// 2-norm of the difference over the 2-norm of the expected row.
double RelativeError(const float* actual, const float* expected, int64_t n);

// What one comparison over all sequences of a file found.
struct GoldenComparison {
  int64_t rows = 0;  // stored rows compared
  double worst = 0;  // relative error
  std::string worst_at;
  double sum_of_squares = 0;   // of the rows' relative errors
  std::vector<double> errors;  // of all rows
  int64_t positions = 0;       // all positions, by the top tokens
  int64_t same_top = 0;
  double widest_miss = 0;  // largest margin of the reference's top two where the top token differs

  double rms() const;
  double median() const;
  double same_top_share() const {
    return static_cast<double>(same_top) / static_cast<double>(positions);
  }
};

GoldenComparison CompareLogits(Runner& runner, const GoldenFile& golden);

// Median and worst relative error of each traced tensor ("embed", "layers.3.out", ...) of the
// sequence that has them.
struct TraceError {
  double median = 0;
  double worst = 0;
};
std::map<std::string, TraceError> CompareTrace(Runner& runner, const GoldenFile& golden,
                                               const std::string& sequence);

}  // namespace fathom
