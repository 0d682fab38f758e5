// The report of `fathom eval` as JSON and as a picture.

#include <fmt/format.h>

#include <algorithm>

#include "engine/eval.h"

namespace fathom {
namespace {

double Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

OrderedJson SideJson(const EvalSide& side, int64_t tokens) {
  OrderedJson json;
  json["path"] = side.model_dir;
  json["compute_dtype"] = side.compute_dtype;
  json["simulate_quantization"] = side.simulate_quantization;
  json["seconds"] = side.seconds;
  json["tokens_per_second"] = Rate(tokens, side.seconds);
  return json;
}

std::string Label(const EvalBucket& bucket) {
  return fmt::format("{}-{}", bucket.from, bucket.to - 1);
}

// Text of the picture: paths may hold what XML reads as markup.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

OrderedJson EvalJson(const EvalReport& report, const std::string& input) {
  const EvalMeans means = report.metrics.means();
  OrderedJson json;
  json["input"] = input;
  json["model"] = SideJson(report.model, report.input_tokens);
  if (report.has_reference()) {
    json["reference"] = SideJson(report.reference, report.input_tokens);
  }
  json["sequences"] = report.sequences;
  json["input_tokens"] = report.input_tokens;
  json["tokens"] = means.tokens;
  json["nll"] = means.nll;
  json["perplexity"] = means.perplexity();
  json["accuracy"] = means.top_is_target;
  if (report.has_reference()) {
    json["reference_nll"] = means.reference_nll;
    json["reference_perplexity"] = means.reference_perplexity();
    json["kl"] = {{"mean", means.kl},
                  {"median", report.metrics.KlQuantile(0.5)},
                  {"p99", report.metrics.KlQuantile(0.99)},
                  {"max", report.metrics.KlQuantile(1)}};
    json["top1_agreement"] = means.same_top;
  }
  OrderedJson positions = OrderedJson::array();
  for (const EvalBucket& bucket : report.metrics.Buckets()) {
    OrderedJson row;
    row["positions"] = Label(bucket);
    row["tokens"] = bucket.means.tokens;
    row["nll"] = bucket.means.nll;
    row["perplexity"] = bucket.means.perplexity();
    if (report.has_reference()) {
      row["kl"] = bucket.means.kl;
      row["top1_agreement"] = bucket.means.same_top;
    }
    positions.push_back(std::move(row));
  }
  json["by_position"] = std::move(positions);
  return json;
}

std::string EvalPlot(const EvalReport& report) {
  constexpr double kLeft = 70;
  constexpr double kTop = 50;
  constexpr double kHeight = 220;
  constexpr double kStep = 80;
  constexpr double kBar = 48;
  const std::vector<EvalBucket> buckets = report.metrics.Buckets();
  double highest = 0;
  for (const EvalBucket& bucket : buckets) highest = std::max(highest, bucket.means.kl);
  const double scale = highest > 0 ? kHeight / highest : 0;
  const double width = kLeft + kStep * static_cast<double>(buckets.size()) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\">mean KL divergence (nats) by position, {3} tokens</text>\n"
      "<text x=\"{2}\" y=\"36\" fill=\"#555\">{4} against {5}</text>\n",
      width, kTop + kHeight + 50, 10, report.metrics.tokens(), Escaped(report.model.model_dir),
      Escaped(report.reference.model_dir));
  const double base = kTop + kHeight;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const double kl = buckets[i].means.kl;
    const double x = kLeft + kStep * static_cast<double>(i);
    const double middle = x + kBar / 2;
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"#4878a8\"/>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.3g}</text>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
        x, base - kl * scale, kBar, kl * scale, middle, base - kl * scale - 4, kl, middle,
        base + 18, Label(buckets[i]));
  }
  svg += fmt::format(
      "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"black\"/>\n"
      "<text x=\"{3}\" y=\"{4}\" text-anchor=\"middle\">tokens before the predicted one</text>\n"
      "</svg>\n",
      kLeft - 10, base, width - 10, width / 2, base + 38);
  return svg;
}

}  // namespace fathom
