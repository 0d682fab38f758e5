// The cases of operations that treat each row by itself.

#include <algorithm>
#include <cmath>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16};

// A sum of n terms in two orders, some element-wise rounding, and the rounding of the result,
// relative to the result itself: for ops without cancellation after the sum.
std::function<double(int64_t, double)> Relative(int64_t n, DType type) {
  return [n, type](int64_t, double expected) {
    return (static_cast<double>(n + 8) * kUnit + 2.0 * Unit(type)) * std::fabs(expected) + 1e-30;
  };
}

// The same with sums whose terms are at most `size` in magnitude.
std::function<double(int64_t, double)> Absolute(int64_t n, DType type, double size) {
  return [n, type, size](int64_t, double expected) {
    return static_cast<double>(n + 8) * kUnit * size + 2.0 * Unit(type) * std::fabs(expected);
  };
}

// An op y = f(x) on rows, out of place and in place.
void AddUnary(std::vector<Case>& cases, Random& random, const std::string& name, int64_t n,
              DType in, DType out, const std::function<void(Ops&, View, View)>& f,
              const std::function<double(int64_t, double)>& tolerance) {
  auto x = std::make_shared<Tensor>(random.Real(in, 19, n, 8, 3.0F));
  for (int64_t i = 0; i < n; ++i) RowOf(x->view, 5).Set(i, 0);  // an empty row
  RowOf(x->view, 6).Set(0, 1e30F);
  for (int64_t i = 0; i < n; ++i) RowOf(x->view, 7).Set(i, x->at(7, i) * 1e-38F);
  Case c{fmt::format("{} {} -> {} n {}", name, Name(in), Name(out), n), 19, n, nullptr, tolerance};
  c.run = [x, f, n, out](Ops& ops, int64_t first, int64_t count) {
    Tensor y(out, count, n, 16);
    f(ops, y.view, x->view.Rows(first, count));
    return y.Values();
  };
  cases.push_back(c);
  if (in != out) return;
  c.name += " in place";
  c.run = [x, f](Ops& ops, int64_t first, int64_t count) {
    Tensor copy = *x;
    copy.view = View(copy.bytes.data(), x->view.type(), {x->view.dim(0), x->view.stride(0)})
                    .Columns(0, x->view.dim(1))
                    .Rows(first, count);
    f(ops, copy.view, copy.view);
    return copy.Values();
  };
  cases.push_back(c);
}

void AddUnaries(std::vector<Case>& cases, Random& random) {
  for (DType in : kTypes) {
    for (DType out : kTypes) {
      for (int64_t n : {1, 7, 64, 300, 448}) {
        auto w = std::make_shared<Matrix>(random.Weights(WeightFormat::kBf16, 1, n));
        AddUnary(
            cases, random, "RmsNorm", n, in, out,
            [w](Ops& ops, View y, View x) { ops.RmsNorm(y, x, w->weight, 1e-6F); },
            Relative(2 * n, out));
        AddUnary(
            cases, random, "RmsNorm of ones", n, in, out,
            [](Ops& ops, View y, View x) { ops.RmsNorm(y, x, Weight(), 1e-6F); },
            Relative(2 * n, out));
        for (int group : {32, 64, 128}) {
          AddUnary(
              cases, random, fmt::format("SimulateFp8 group {}", group), n, in, out,
              [group](Ops& ops, View y, View x) { ops.SimulateFp8(y, x, group); }, nullptr);
        }
        AddUnary(
            cases, random, "SimulateFp4", n, in, out,
            [](Ops& ops, View y, View x) { ops.SimulateFp4(y, x); }, nullptr);
        AddUnary(
            cases, random, "Scale", n, in, out,
            [](Ops& ops, View y, View x) { ops.Scale(y, x, 0.3F); }, nullptr);
      }
      for (int64_t n : {1, 2, 4, 8, 16, 32, 128, 512}) {
        AddUnary(
            cases, random, "Hadamard", n, in, out,
            [](Ops& ops, View y, View x) { ops.Hadamard(y, x); }, nullptr);
      }
    }
  }
}

Case RopeCase(Random& random, DType type, int64_t heads, int64_t d, int64_t half, bool inverse) {
  struct Inputs {
    Tensor x, cos, sin;
  };
  constexpr int64_t kTokens = 6;
  auto p = std::make_shared<Inputs>();
  p->x = random.Real(type, kTokens * heads, d);
  p->cos = random.Real(DType::kF32, kTokens, half, 3);
  p->sin = random.Real(DType::kF32, kTokens, half, 3);
  Case c{fmt::format("Rope {} h {} d {} r {} inverse {}", Name(type), heads, d, 2 * half, inverse),
         kTokens, heads * d, nullptr, nullptr};
  c.run = [p, heads, d, inverse](Ops& ops, int64_t first, int64_t count) {
    Tensor copy = p->x;
    copy.view = View(copy.bytes.data(), p->x.view.type(), {kTokens, heads, d}).Rows(first, count);
    ops.Rope(copy.view, p->cos.view.Rows(first, count), p->sin.view.Rows(first, count), inverse);
    return copy.Values();
  };
  return c;
}

void AddCopies(std::vector<Case>& cases, Random& random) {
  struct Inputs {
    Tensor x, more;
    Matrix table;
    std::vector<int32_t> from, to;
  };
  constexpr int64_t kTokens = 40;
  for (DType in : kTypes) {
    for (DType out : kTypes) {
      const int64_t n = in == out ? 96 : 301;
      auto p = std::make_shared<Inputs>();
      p->x = random.Real(in, 50, n, 5);
      p->table =
          random.Weights(in == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16, 50, n);
      for (int32_t i = 0; i < kTokens; ++i) {
        p->from.push_back(random.Below(50));
        p->to.push_back((i * 7 + 3) % 50);  // distinct
      }
      const auto part = [](const std::vector<int32_t>& v, int64_t first, int64_t count) {
        return std::span(v).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      };
      const std::string types = fmt::format(" {} -> {}", Name(in), Name(out));
      cases.push_back({"Embed" + types, kTokens, n,
                       [=](Ops& ops, int64_t first, int64_t count) {
                         Tensor y(out, count, n);
                         ops.Embed(y.view, part(p->from, first, count), p->table.weight);
                         return y.Values();
                       },
                       nullptr});
      cases.push_back({"GatherRows" + types, kTokens, n,
                       [=](Ops& ops, int64_t first, int64_t count) {
                         Tensor y(out, count, n);
                         ops.GatherRows(y.view, p->x.view, part(p->from, first, count));
                         return y.Values();
                       },
                       nullptr});
      cases.push_back({"ScatterRows" + types, kTokens, n,
                       [=](Ops& ops, int64_t first, int64_t count) {
                         Tensor pool(out, 50, n);
                         const auto to = part(p->to, first, count);
                         ops.ScatterRows(pool.view, to, p->x.view, part(p->from, first, count));
                         std::vector<float> values;
                         for (int32_t row : to) {
                           for (int64_t i = 0; i < n; ++i) values.push_back(pool.at(row, i));
                         }
                         return values;
                       },
                       nullptr});
    }
  }
}

void AddHyperConnections(std::vector<Case>& cases, Random& random, int64_t m, int64_t d,
                         DType type) {
  struct Inputs {
    Tensor x, o, mix, pre, post, comb, head;
    Matrix fn, scale, base, head_scale, head_base;
  };
  constexpr int64_t kTokens = 21;
  const int64_t width = (2 + m) * m;
  auto p = std::make_shared<Inputs>();
  p->x = random.Real(type, kTokens * m, d);
  p->x.view = p->x.view.As({kTokens, m, d});
  p->o = random.Real(type, kTokens, d, 4);
  p->fn = random.Weights(WeightFormat::kF32, width, m * d);
  p->mix = random.Real(DType::kF32, kTokens, width);
  p->head = random.Real(DType::kF32, kTokens, m);
  p->scale = random.Weights(WeightFormat::kF32, 1, 3);
  p->base = random.Weights(WeightFormat::kF32, 1, width);
  p->head_scale = random.Weights(WeightFormat::kF32, 1, 1);
  p->head_base = random.Weights(WeightFormat::kBf16, 1, m);
  p->pre = random.Real(DType::kF32, kTokens, m);
  p->post = random.Real(DType::kF32, kTokens, m);
  p->comb = random.Real(DType::kF32, kTokens * m, m);
  p->comb.view = p->comb.view.As({kTokens, m, m});
  const std::string shape = fmt::format(" {} m {} d {}", Name(type), m, d);

  cases.push_back(
      {"HcMix" + shape, kTokens, width,
       [=](Ops& ops, int64_t first, int64_t count) {
         Tensor mix(DType::kF32, count, width);
         ops.HcMix(mix.view, p->x.view.Rows(first, count), p->fn.weight, 1e-6F);
         return mix.Values();
       },
       // z / rms(z) has norm sqrt(m d), and so has a row of fn: their product bounds the sum.
       Absolute(4 * m * d, DType::kF32, 1.5 * static_cast<double>(m * d))});
  // Twenty iterations of a contraction carry rounding errors along, but don't amplify them.
  cases.push_back({"HcSplit" + shape, kTokens, 2 * m + m * m,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor pre(DType::kF32, count, m);
                     Tensor post(DType::kF32, count, m);
                     Tensor comb(DType::kF32, count, m * m);
                     ops.HcSplit(pre.view, post.view, comb.view.As({count, m, m}),
                                 p->mix.view.Rows(first, count), p->scale.weight, p->base.weight,
                                 20, 1e-6F);
                     std::vector<float> all;
                     for (int64_t t = 0; t < count; ++t) {
                       for (Tensor* part : {&pre, &post, &comb}) {
                         for (int64_t i = 0; i < part->view.dim(1); ++i) {
                           all.push_back(part->at(t, i));
                         }
                       }
                     }
                     return all;
                   },
                   Absolute(200, DType::kF32, 1)});
  cases.push_back({"HcHeadSplit" + shape, kTokens, m,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor pre(DType::kF32, count, m);
                     ops.HcHeadSplit(pre.view, p->head.view.Rows(first, count),
                                     p->head_scale.weight, p->head_base.weight, 1e-6F);
                     return pre.Values();
                   },
                   Absolute(4, DType::kF32, 1)});
  cases.push_back({"HcCollapse" + shape, kTokens, d,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor y(type, count, d);
                     ops.HcCollapse(y.view, p->x.view.Rows(first, count),
                                    p->pre.view.Rows(first, count));
                     return y.Values();
                   },
                   Absolute(2 * m, type, 16.0 * static_cast<double>(m))});
  cases.push_back({"HcExpand" + shape, kTokens, m * d,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor y(type, count, m * d);
                     ops.HcExpand(y.view.As({count, m, d}), p->o.view.Rows(first, count),
                                  p->x.view.Rows(first, count), p->post.view.Rows(first, count),
                                  p->comb.view.Rows(first, count));
                     return y.Values();
                   },
                   Absolute(2 * m, type, 16.0 * static_cast<double>(m + 1))});
}

void AddExperts(std::vector<Case>& cases, Random& random, DType type) {
  struct Inputs {
    Tensor x, score, gate, up, routed, shared;
    Matrix w, bias;
    std::vector<int32_t> experts, slots;
    std::vector<float> weights;
  };
  constexpr int64_t kTokens = 33, kWidth = 150, kExperts = 24, kChosen = 5;
  auto p = std::make_shared<Inputs>();
  p->x = random.Real(type, kTokens, kWidth);
  p->w = random.Weights(type == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16, kExperts,
                        kWidth);
  p->score = random.Whole(DType::kF32, kTokens, kExperts, 3);  // few values: ties
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t e = 0; e < kExperts; ++e) p->score.view.f32(t)[e] += 4;
  }
  p->bias = random.Weights(WeightFormat::kF32, 1, kExperts);
  for (int64_t e = 0; e < kExperts; ++e) reinterpret_cast<float*>(p->bias.data.data())[e] = 0;
  p->gate = random.Real(type, kTokens, kWidth, 6, 8);
  p->up = random.Real(type, kTokens, kWidth, 2, 8);
  p->routed = random.Real(type, kTokens * kChosen, kWidth);
  p->shared = random.Real(type, kTokens, kWidth);
  for (int64_t i = 0; i < kTokens; ++i) {
    p->weights.push_back(random.Normal());
    for (int64_t a = 0; a < kChosen; ++a) {
      p->experts.push_back(static_cast<int32_t>(a * 4 + random.Below(4)));
      p->slots.push_back(random.Below(kTokens * kChosen));
    }
  }
  const std::string shape = fmt::format(" {}", Name(type));
  const auto chosen = [](std::span<const int32_t> v, int64_t first, int64_t count) {
    return v.subspan(static_cast<size_t>(first * kChosen), static_cast<size_t>(count * kChosen));
  };

  // The slope of sqrt(softplus) is below 1/2; far below 0 it is half of the result.
  cases.push_back({"GateScores" + shape, kTokens, kExperts,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor y(DType::kF32, count, kExperts);
                     ops.GateScores(y.view, p->x.view.Rows(first, count), p->w.weight);
                     return y.Values();
                   },
                   [](int64_t, double expected) {
                     return (2 * kWidth * 4 * kWidth + 16) * kUnit * std::min(1.0, expected);
                   }});
  cases.push_back({"SelectExperts" + shape, kTokens, 2 * kChosen,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor weight(DType::kF32, count, kChosen);
                     std::vector<int32_t> experts(static_cast<size_t>(count * kChosen));
                     ops.SelectExperts(experts, weight.view, p->score.view.Rows(first, count),
                                       p->bias.weight, 1.5F);
                     std::vector<float> all;
                     for (int64_t t = 0; t < count; ++t) {
                       for (int64_t a = 0; a < kChosen; ++a) {
                         all.push_back(
                             static_cast<float>(experts[static_cast<size_t>(t * kChosen + a)]));
                         all.push_back(weight.at(t, a));
                       }
                     }
                     return all;
                   },
                   nullptr});
  cases.push_back({"ExpertWeights" + shape, kTokens, kChosen,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor weight(DType::kF32, count, kChosen);
                     ops.ExpertWeights(weight.view, p->score.view.Rows(first, count),
                                       chosen(p->experts, first, count), 1.5F);
                     return weight.Values();
                   },
                   nullptr});
  for (bool weighted : {false, true}) {
    cases.push_back({fmt::format("SwiGlu{} weighted {}", shape, weighted), kTokens, kWidth,
                     [=](Ops& ops, int64_t first, int64_t count) {
                       Tensor y(type, count, kWidth, 3);
                       const auto w = std::span(p->weights)
                                          .subspan(static_cast<size_t>(first),
                                                   static_cast<size_t>(weighted ? count : 0));
                       ops.SwiGlu(y.view, p->gate.view.Rows(first, count),
                                  p->up.view.Rows(first, count), w, 10);
                       return y.Values();
                     },
                     Relative(8, type)});
  }
  cases.push_back({"CombineExperts" + shape, kTokens, kWidth,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor y(type, count, kWidth);
                     ops.CombineExperts(y.view, p->routed.view, chosen(p->slots, first, count),
                                        p->shared.view.Rows(first, count));
                     return y.Values();
                   },
                   nullptr});
}

}  // namespace

std::vector<Case> RowCases() {
  Random random(2);
  std::vector<Case> cases;
  AddUnaries(cases, random);
  for (DType type : kTypes) {
    for (bool inverse : {false, true}) {
      cases.push_back(RopeCase(random, type, 3, 96, 32, inverse));
      cases.push_back(RopeCase(random, type, 1, 30, 5, inverse));
    }
    AddHyperConnections(cases, random, 4, 96, type);
    AddHyperConnections(cases, random, 4, 256, type);
    AddHyperConnections(cases, random, 2, 61, type);
    AddHyperConnections(cases, random, 8, 32, type);
    AddExperts(cases, random, type);
  }
  AddCopies(cases, random);
  return cases;
}

}  // namespace fathom::testing
