#include "weights/quant_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using ::testing::HasSubstr;

QuantDescription Parse(const std::string& text) {
  auto description = QuantDescription::Parse(text, "d.json");
  EXPECT_TRUE(description) << description.error().message;
  return description ? std::move(*description) : QuantDescription();
}

std::string FaultOf(const std::string& text) {
  const auto description = QuantDescription::Parse(text, "d.json");
  if (description) return "";
  EXPECT_EQ(description.error().message.find('\n'), std::string::npos);
  return description.error().message;
}

// The summary says W8A8; every tensor has its own type.
TEST(QuantDescription, ReadsEachTensorsTypeAndNoSummary) {
  const QuantDescription d = Parse(R"({
    "version": "1.0.0", "model_quant_type": "W8A8", "group_size": 0, "metadata": {"a.b": 1},
    "optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}},
    "is_rot_used": true, "1.5": 3,
    "model.embed_tokens.weight": "FLOAT",
    "model.layers.0.self_attn.q_a_proj.weight": "W8A8",
    "layers.0.attn.wkv.weight": "W8A8_DYNAMIC",
    "layers.0.attn.wq_b.weight": "W8A8_MIX",
    "layers.3.ffn.experts.17.w2.weight": "W4A8_DYNAMIC"})");
  EXPECT_EQ(d.Find("embed.weight"), QuantScheme::kFloat);
  EXPECT_EQ(d.Find("layers.0.attn.wq_a.weight"), QuantScheme::kW8A8);
  EXPECT_EQ(d.Find("layers.0.attn.wkv.weight"), QuantScheme::kW8A8Dynamic);
  EXPECT_EQ(d.Find("layers.0.attn.wq_b.weight"), QuantScheme::kW8A8Mix);
  EXPECT_EQ(d.Find("layers.3.ffn.experts.17.w2.weight"), QuantScheme::kW4A8Dynamic);
  EXPECT_EQ(d.Find("layers.1.attn.wq_a.weight"), std::nullopt);
  EXPECT_EQ(d.schemes().size(), 5U);
}

TEST(QuantDescription, NamesTensorAndTypeOfWhatItDoesNotKnow) {
  EXPECT_THAT(FaultOf(R"({"layers.0.attn.wq_a.weight": "W8A16"})"),
              HasSubstr("d.json: tensor 'layers.0.attn.wq_a.weight' has the type 'W8A16'"));
  EXPECT_THAT(FaultOf(R"({"layers.0.attn.fa_q.scale": "FA\nQuant"})"), HasSubstr("'FA?Quant'"));
  EXPECT_THAT(FaultOf(R"({"x.weight": "w8a8"})"), HasSubstr("'w8a8'"));
}

TEST(QuantDescription, FusedTensorsMustAgree) {
  EXPECT_THAT(FaultOf(R"({"layers.3.ffn.experts.0.w1.weight": "W8A8_DYNAMIC",
                          "layers.3.ffn.experts.7.w2.weight": "W4A8_DYNAMIC"})"),
              HasSubstr("'layers.3.ffn.experts.0.w1.weight' is W8A8_DYNAMIC and "
                        "'layers.3.ffn.experts.7.w2.weight' is W4A8_DYNAMIC; they are computed as "
                        "one and must agree"));
  EXPECT_THAT(FaultOf(R"({"layers.3.ffn.shared_experts.w1.weight": "FLOAT",
                          "layers.3.ffn.shared_experts.w3.weight": "W8A8"})"),
              HasSubstr("must agree"));
  EXPECT_EQ(FaultOf(R"({"layers.3.ffn.shared_experts.w1.weight": "FLOAT",
                        "layers.3.ffn.shared_experts.w2.weight": "W8A8",
                        "layers.3.ffn.experts.0.w1.weight": "W8A8_DYNAMIC",
                        "layers.4.ffn.experts.0.w1.weight": "W4A8_DYNAMIC"})"),
            "");
  EXPECT_THAT(FaultOf(R"({"layers.3.ffn.experts.0.w1.weight": "W8A8"})"),
              HasSubstr("routed experts need W8A8_DYNAMIC or W4A8_DYNAMIC"));
}

// Their weight speaks for them, whichever comes first.
TEST(QuantDescription, PartsOfALinearAreNotKept) {
  const QuantDescription d = Parse(R"({"a.weight_scale": "W8A8_DYNAMIC", "a.weight": "W8A8_DYNAMIC",
                                       "a.weight_offset": "W8A8_DYNAMIC", "b.scale": "FLOAT"})");
  ASSERT_EQ(d.schemes().size(), 2U);
  EXPECT_EQ(d.Find("a.weight"), QuantScheme::kW8A8Dynamic);
  EXPECT_EQ(d.Find("a.weight_scale"), std::nullopt);
  EXPECT_EQ(d.Find("b.scale"), QuantScheme::kFloat);
}

TEST(QuantDescription, PartsOfOneLinearMustAgree) {
  EXPECT_EQ(FaultOf(R"({"a.wq_a.weight": "W8A8_DYNAMIC", "a.wq_a.weight_offset": "W4A8_DYNAMIC"})"),
            "d.json: tensor 'a.wq_a.weight' is W8A8_DYNAMIC and 'a.wq_a.weight_offset' is "
            "W4A8_DYNAMIC; they are parts of one linear and must agree, fetch the file again");
  EXPECT_THAT(FaultOf(R"({"a.wq_a.weight": "FLOAT", "a.wq_a.quant_bias": "W8A8"})"),
              HasSubstr("'a.wq_a.weight' is FLOAT and 'a.wq_a.quant_bias' is W8A8"));
  EXPECT_EQ(FaultOf(R"({"a.weight": "W8A8_MIX", "a.deq_scale": "W8A8", "a.weight_scale": "FLOAT",
                        "a.weight_offset": "W8A8_DYNAMIC", "b.scale_bias": "W4A8_DYNAMIC"})"),
            "");
}

TEST(QuantDescription, RefusesGroupsAndContradictions) {
  const std::string w4 = R"("layers.3.ffn.experts.0.w1.weight": "W4A8_DYNAMIC")";
  EXPECT_THAT(FaultOf(R"({"group_size": 256, )" + w4 + "}"),
              HasSubstr("key 'group_size' is 256 and tensor 'layers.3.ffn.experts.0.w1.weight'"));
  EXPECT_EQ(FaultOf(R"({"group_size": 0, )" + w4 + "}"), "");
  EXPECT_EQ(FaultOf(R"({"group_size": 256, "x.weight": "W8A8_DYNAMIC"})"), "");
  EXPECT_EQ(FaultOf(R"({"group_size": -1, "x.weight": "W8A8_DYNAMIC"})"), "");
  EXPECT_THAT(FaultOf(R"({"group_size": -1, )" + w4 + "}"),
              HasSubstr("d.json: key 'group_size' is -1 and tensor"));
  for (const auto& [size, said] : {std::pair("\"0\"", "\"0\""),
                                   {"null", "null"},
                                   {"0.5", "0.5"},
                                   {"[0]", "a list"},
                                   {"{}", "an object"},
                                   {"true", "true"}}) {
    EXPECT_EQ(FaultOf(fmt::format(R"({{"group_size": {}, "x.weight": "FLOAT"}})", size)),
              fmt::format("d.json: key 'group_size' is {}, it must be a whole number; fetch the "
                          "file again",
                          said));
  }
  EXPECT_THAT(FaultOf(R"({"model.norm.weight": "FLOAT", "norm.weight": "W8A8"})"),
              HasSubstr("tensor 'norm.weight' is both FLOAT and W8A8"));
  EXPECT_THAT(FaultOf(R"({"x.weight": "FLOAT", "x.weight": "W8A8"})"),
              HasSubstr("tensor 'x.weight' is both FLOAT and W8A8"));
  EXPECT_THAT(FaultOf("[]"), HasSubstr("d.json: must be an object"));
  EXPECT_THAT(FaultOf("3"), HasSubstr("d.json: must be an object"));
  EXPECT_THAT(FaultOf("{"), HasSubstr("d.json"));
}

}  // namespace
}  // namespace fathom
