#include "golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "engine/score.h"

namespace fathom {
namespace {

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int32_t ArgMax(const float* x, int64_t n) {
  return static_cast<int32_t>(std::max_element(x, x + n) - x);
}

// Logits of all positions of a sequence.
std::vector<float> Score(Runner& runner, std::span<const int32_t> ids,
                         const Trace* trace = nullptr) {
  std::vector<float> all;
  const Status status = ScoreSequence(
      runner, 0, ids, runner.max_chunk_tokens(),
      [&](size_t, int64_t, int64_t rows, int64_t vocab, const float* logits) -> Status {
        all.insert(all.end(), logits, logits + rows * vocab);
        return {};
      },
      trace);
  CHECK(status, "{}", status.error().message);
  return all;
}

}  // namespace

GoldenFile::GoldenFile(std::shared_ptr<SafetensorsFile> file) : file_(std::move(file)) {
  for (const Tensor& t : file_->tensors()) by_name_[std::string(t.name)] = &t;
}

Result<GoldenFile> GoldenFile::Open(const std::string& path) {
  TRY(SafetensorsFile file, SafetensorsFile::Open(path));
  return GoldenFile(std::make_shared<SafetensorsFile>(std::move(file)));
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : by_name_) {
    if (name.ends_with(".ids")) names.push_back(name.substr(0, name.size() - 4));
  }
  return names;
}

std::vector<int32_t> GoldenFile::Ints(const std::string& tensor) const {
  const Tensor* t = by_name_.at(tensor);
  CHECK(t->dtype == DType::kI32);
  std::vector<int32_t> out(static_cast<size_t>(t->count()));
  std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
  return out;
}

std::vector<float> GoldenFile::Floats(const std::string& tensor) const {
  const Tensor* t = by_name_.at(tensor);
  CHECK(t->dtype == DType::kF32);
  std::vector<float> out(static_cast<size_t>(t->count()));
  std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
  return out;
}

double RelativeError(const float* actual, const float* expected, int64_t n) {
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

double GoldenComparison::rms() const {
  return std::sqrt(sum_of_squares / static_cast<double>(rows));
}

double GoldenComparison::median() const { return Median(errors); }

GoldenComparison CompareLogits(Runner& runner, const GoldenFile& golden) {
  const int64_t vocab = runner.model().config().vocab_size;
  GoldenComparison c;
  for (const std::string& name : golden.names()) {
    const std::vector<int32_t> ids = golden.Ints(name + ".ids");
    const std::vector<int32_t> rows = golden.Ints(name + ".rows");
    const std::vector<float> expected = golden.Floats(name + ".logits");
    const std::vector<int32_t> top_id = golden.Ints(name + ".top_id");
    const std::vector<float> top = golden.Floats(name + ".top");
    const std::vector<float> actual = Score(runner, ids);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double e = RelativeError(actual.data() + rows[i] * vocab,
                                     expected.data() + static_cast<int64_t>(i) * vocab, vocab);
      ++c.rows;
      c.sum_of_squares += e * e;
      c.errors.push_back(e);
      if (e > c.worst) {
        c.worst = e;
        c.worst_at = fmt::format("{} row {}", name, rows[i]);
      }
    }
    for (size_t p = 0; p < ids.size(); ++p) {
      ++c.positions;
      if (ArgMax(actual.data() + static_cast<int64_t>(p) * vocab, vocab) == top_id[4 * p]) {
        ++c.same_top;
      } else {
        c.widest_miss = std::max(
            c.widest_miss, static_cast<double>(top[4 * p]) - static_cast<double>(top[4 * p + 1]));
      }
    }
  }
  return c;
}

std::map<std::string, TraceError> CompareTrace(Runner& runner, const GoldenFile& golden,
                                               const std::string& sequence) {
  std::map<std::string, TraceError> errors;
  const std::vector<int32_t> rows = golden.Ints(sequence + ".rows");
  const Trace trace = [&](std::string_view name, View value) {
    const std::string tensor = sequence + "." + std::string(name);
    if (!golden.Has(tensor)) return;
    const std::vector<float> expected = golden.Floats(tensor);
    const int64_t width = value.count() / value.dim(0);
    std::vector<double> of_rows;
    std::vector<float> row(static_cast<size_t>(width));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t k = 0; k < width; ++k) {
        const int64_t at = rows[i] * width + k;
        row[static_cast<size_t>(k)] = value.type() == DType::kF32
                                          ? value.As({value.count()}).f32()[at]
                                          : ToFloat(value.As({value.count()}).bf16()[at]);
      }
      of_rows.push_back(
          RelativeError(row.data(), expected.data() + static_cast<int64_t>(i) * width, width));
    }
    errors[std::string(name)] = {Median(of_rows),
                                 *std::max_element(of_rows.begin(), of_rows.end())};
  };
  Score(runner, golden.Ints(sequence + ".ids"), &trace);
  return errors;
}

}  // namespace fathom
