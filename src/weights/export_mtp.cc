#include "weights/export_mtp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/printable.h"
#include "tensor/weight.h"
#include "weights/output_directory.h"
#include "weights/quant_description.h"
#include "weights/safetensors_writer.h"
#include "weights/shard_files.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsFile = "mtp_layer_parameters.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kInverseScale = "_scale_inv";

// How one family names its MTP layer.
struct Family {
  std::string model_type;  // of the draft
  std::string architecture;
  std::string prefix;  // of the layer, without "model."
  std::string next;    // of a second layer, which must not exist
  bool v3 = false;
};

Result<Family> FamilyOf(const OrderedJson& config, const std::string& path) {
  const auto text = config.find("model_type");
  const std::string type =
      text != config.end() && text->is_string() ? text->get<std::string>() : "";
  if (type == "deepseek_v4") {
    return Family{"deepseek_v4_mtp", "DeepseekV4MtpForCausalLM", "mtp.0.", "mtp.1.", false};
  }
  if (type != "deepseek_v3" && type != "deepseek_v32") {
    return Invalid(
        "{}: model_type '{}' has no MTP layer that is known; expected deepseek_v4, "
        "deepseek_v32 or deepseek_v3",
        path, Printable(type, 60));
  }
  const auto layers = config.find("num_hidden_layers");
  if (layers == config.end() || !layers->is_number_integer() || *layers < 1 || *layers > 100000) {
    return Invalid("{}: key 'num_hidden_layers' must be a positive integer", path);
  }
  const auto n = layers->get<int64_t>();
  const bool sparse = type == "deepseek_v32" || config.contains("index_topk");
  return Family{sparse ? "deepseek_v32_mtp" : "deepseek_v3_mtp",
                sparse ? "DeepseekV32MtpForCausalLM" : "DeepseekV3MtpForCausalLM",
                fmt::format("layers.{}.", n), fmt::format("layers.{}.", n + 1), true};
}

std::string_view WithoutModel(std::string_view name) {
  return name.starts_with(kModel) ? name.substr(kModel.size()) : name;
}

// The draft's name of a tensor; nothing where it is not of the MTP layer.
std::optional<std::string> DraftName(const Family& family, std::string_view stored) {
  const std::string_view name = WithoutModel(stored);
  if (family.v3 && stored == "rot.weight") return "model.rot.weight";
  if (!name.starts_with(family.prefix)) return std::nullopt;
  if (!family.v3) return std::string(name);
  const std::string_view rest = name.substr(family.prefix.size());
  for (const std::string_view word : {"embed_tokens", "shared_head", "enorm", "hnorm", "eh_proj"}) {
    if (rest.find(word) != std::string_view::npos) return fmt::format("model.{}", rest);
  }
  return fmt::format("model.layers.0.{}", rest);
}

struct Export {
  const Tensor* tensor = nullptr;
  const Tensor* scale = nullptr;  // V3.x FP8: dequantised to bf16
  TensorDeclaration output;
};

class Exporter {
 public:
  Exporter(std::string input, std::vector<SafetensorsFile> files)
      : input_(std::move(input)), files_(std::move(files)) {}

  Status Plan(const Family& family) {
    std::map<std::string_view, const Tensor*> by_name;
    bool second = false;
    bool layer = false;
    for (const SafetensorsFile& file : files_) {
      for (const Tensor& t : file.tensors()) {
        const auto [at, fresh] = by_name.emplace(t.name, &t);
        if (!fresh) {
          return Invalid("{}: tensor '{}' comes twice (also in {}); remove one of the files",
                         *t.file, t.name, *at->second->file);
        }
        const std::string_view name = WithoutModel(t.name);
        second = second || name.starts_with(family.next);
        layer = layer || name.starts_with(family.prefix);
        if (!family.v3 && name.starts_with("mtp.") && name.ends_with(".main_proj.weight")) {
          return Invalid(
              "{}: tensor '{}' belongs to a DSpark drafter, which reads the target's layers and is "
              "used from the model's own directory; pass that as --draft_model",
              *t.file, t.name);
        }
      }
    }
    if (!layer) {
      return Fail(ErrorCode::kNotFound,
                  "{}: no tensor begins with '{}'; the model has no MTP layer", input_,
                  family.prefix);
    }
    if (second) {
      return Fail(ErrorCode::kUnimplemented,
                  "{}: tensors begin with '{}' and '{}'; a draft model has exactly one MTP layer",
                  input_, family.prefix, family.next);
    }
    for (const auto& [name, t] : by_name) TRY_STATUS(Add(family, by_name, *t));
    std::sort(exports_.begin(), exports_.end(), [](const Export& a, const Export& b) {
      const int64_t size_a = SizeOf(a.output.dtype);
      const int64_t size_b = SizeOf(b.output.dtype);
      return size_a != size_b ? size_a > size_b : a.output.name < b.output.name;
    });
    return {};
  }

  Status Write(const std::string& dir) const {
    std::vector<TensorDeclaration> declarations;
    Json weight_map = Json::object();
    for (const Export& e : exports_) {
      declarations.push_back(e.output);
      weight_map[e.output.name] = kWeightsFile;
    }
    TRY(SafetensorsWriter out,
        SafetensorsWriter::Create(fmt::format("{}/{}", dir, kWeightsFile), declarations));
    for (const Export& e : exports_) {
      if (e.scale == nullptr) {
        TRY_STATUS(out.Write(e.tensor->bytes));
      } else {
        TRY_STATUS(Dequantize(e, out));
      }
    }
    TRY_STATUS(out.Finish());
    const Json index = {{"weight_map", std::move(weight_map)}};
    return WriteFileAtomically(fmt::format("{}/{}", dir, kIndexFile), DumpJson(index) + "\n");
  }

 private:
  Status Add(const Family& family, const std::map<std::string_view, const Tensor*>& by_name,
             const Tensor& t) {
    const std::optional<std::string> name = DraftName(family, t.name);
    if (!name) return {};
    Export e{&t, nullptr, {*name, t.dtype, t.shape.list()}};
    if (family.v3 && t.name.ends_with(kInverseScale)) {
      const std::string_view weight = t.name.substr(0, t.name.size() - kInverseScale.size());
      if (by_name.contains(weight)) return {};  // goes into the weight
    }
    if (const auto scale = by_name.find(fmt::format("{}{}", t.name, kInverseScale));
        family.v3 && scale != by_name.end()) {
      const Tensor& s = *scale->second;
      const auto blocks = [](int64_t n) { return (n + kFp8BlockSize - 1) / kFp8BlockSize; };
      const bool matrix = t.dtype == DType::kF8E4M3 && t.shape.size() == 2;
      if (!matrix || s.dtype != DType::kF32 ||
          s.shape != std::vector<int64_t>{blocks(t.shape[0]), blocks(t.shape[1])}) {
        return Invalid(
            "{}: tensor '{}' is {} {} with the scale {} {}, expected F8_E4M3 and an F32 "
            "for each block of 128x128",
            *t.file, t.name, Name(t.dtype), ShapeText(t.shape), Name(s.dtype), ShapeText(s.shape));
      }
      e.scale = &s;
      e.output.dtype = DType::kBf16;
    }
    exports_.push_back(std::move(e));
    return {};
  }

  static Status Dequantize(const Export& e, SafetensorsWriter& out) {
    const int64_t rows = e.tensor->shape[0];
    const int64_t cols = e.tensor->shape[1];
    std::vector<Bf16> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < cols; ++k) {
        float scale = 0;
        const int64_t block = r / kFp8BlockSize * e.scale->shape[1] + k / kFp8BlockSize;
        std::memcpy(&scale, e.scale->bytes.data() + block * 4, sizeof(scale));
        const auto code =
            std::to_integer<uint8_t>(e.tensor->bytes[static_cast<size_t>(r * cols + k)]);
        const float value = E4m3ToFloat(code) * scale;
        if (!std::isfinite(value)) {
          return Invalid(
              "{}: tensor '{}' has a NaN or infinity in row {}; the file is damaged, "
              "fetch it again",
              *e.tensor->file, e.tensor->name, r);
        }
        row[static_cast<size_t>(k)] = ToBf16(value);
      }
      TRY_STATUS(out.Write(std::as_bytes(std::span<const Bf16>(row))));
    }
    return {};
  }

  std::string input_;
  std::vector<SafetensorsFile> files_;
  std::vector<Export> exports_;
};

template <typename J>
Status WriteJson(const std::string& path, const J& json) {
  return WriteFileAtomically(path, json.dump(2, ' ', false, J::error_handler_t::replace) + "\n");
}

OrderedJson DraftConfig(OrderedJson config, const Family& family) {
  config["model_type"] = family.model_type;
  config["architectures"] = {family.architecture};
  config["num_hidden_layers"] = 1;
  config["num_nextn_predict_layers"] = 1;
  if (family.v3) {
    config["first_k_dense_replace"] = 0;
    config.erase("quantization_config");
  }
  for (const char* key : {"dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id",
                          "dspark_target_layer_ids"}) {
    config.erase(key);
  }
  return config;
}

// Keeps what speaks of the MTP layer; the summaries, which are about the whole model, go.
Status ExportDescription(const std::string& input_dir, const std::string& dir,
                         const Family& family) {
  const std::string path = fmt::format("{}/{}", input_dir, kQuantDescriptionFile);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  TRY(const std::string text, ReadFile(path));
  TRY(const OrderedJson all, ParseOrderedJson(text, path));
  if (!all.is_object()) return Invalid("{}: must be an object; fetch it again", path);
  OrderedJson kept = OrderedJson::object();
  for (const auto& [key, value] : all.items()) {
    if (const auto name = DraftName(family, key); name && value.is_string()) kept[*name] = value;
  }
  return WriteJson(fmt::format("{}/{}", dir, kQuantDescriptionFile), kept);
}

// Tokenizer and whatever else lies beside the weights.
Status CopyOthers(const std::string& input_dir, const std::string& dir) {
  std::error_code fault;
  for (fs::directory_iterator it(input_dir, fault), end; !fault && it != end; it.increment(fault)) {
    const std::string name = it->path().filename();
    if (!it->is_regular_file(fault) || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json") || name == "config.json" ||
        name == kQuantDescriptionFile) {
      continue;
    }
    std::error_code copy;
    fs::copy_file(it->path(), fs::path(dir) / name, copy);
    if (copy) {
      return Invalid("cannot copy {} to {}: {}; {}", it->path().string(), dir, copy.message(),
                     WriteAdvice(copy.value()));
    }
  }
  if (fault) return Invalid("cannot list {}: {}", input_dir, fault.message());
  return {};
}

}  // namespace

Status ExportMtp(const std::string& input_dir, const std::string& output_dir) {
  return WriteDirectoryAtomically(output_dir, [&](const std::string& dir) -> Status {
    const std::string path = input_dir + "/config.json";
    TRY(const std::string text, ReadFile(path));
    TRY(OrderedJson config, ParseOrderedJson(text, path));
    if (!config.is_object()) return Invalid("{}: must be a JSON object", path);
    TRY(const Family family, FamilyOf(config, path));
    if (const auto n = config.find("num_nextn_predict_layers");
        family.v3 && n != config.end() && *n != 1) {
      return Fail(ErrorCode::kUnimplemented,
                  "{}: key 'num_nextn_predict_layers' is {}; a draft model has exactly one MTP "
                  "layer",
                  path, DumpJson(Json(*n)));
    }
    TRY(std::vector<SafetensorsFile> files, OpenShards(input_dir));
    Exporter exporter(input_dir, std::move(files));
    TRY_STATUS(exporter.Plan(family));
    TRY_STATUS(exporter.Write(dir));
    TRY_STATUS(ExportDescription(input_dir, dir, family));
    TRY_STATUS(CopyOthers(input_dir, dir));
    return WriteJson(dir + "/config.json", DraftConfig(std::move(config), family));
  });
}

}  // namespace fathom
