#include "text/tokenizer_file.h"

#include <simdjson.h>

#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "text/utf8.h"

namespace fathom {
namespace {

namespace dom = simdjson::dom;

// Far above any vocabulary; keeps a corrupt id from asking for gigabytes.
constexpr int64_t kMaxTokenId = (1 << 22) - 1;

// The byte-level alphabet: printable Latin-1 stands for itself, the other bytes are counted up from
// U+0100.
std::array<char32_t, 256> ByteAlphabet() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    characters[byte] = itself ? byte : next++;
  }
  return characters;
}

std::array<int, 0x144> InverseByteAlphabet() {
  std::array<int, 0x144> bytes{};
  bytes.fill(-1);
  const std::array<char32_t, 256> characters = ByteAlphabet();
  for (size_t byte = 0; byte < 256; ++byte) bytes[characters[byte]] = static_cast<int>(byte);
  return bytes;
}

std::optional<std::string> Decode(std::string_view symbol, const std::array<int, 0x144>& inverse) {
  std::string bytes;
  for (size_t i = 0; i < symbol.size();) {
    const auto lead = static_cast<unsigned char>(symbol[i]);
    char32_t character = lead;
    if (lead >= 0x80) {
      if (lead >= 0xE0 || i + 1 == symbol.size()) return std::nullopt;
      character = (lead & 0x1Fu) << 6 | (static_cast<unsigned char>(symbol[i + 1]) & 0x3Fu);
    }
    if (character >= inverse.size() || inverse[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[character]));
    i += lead < 0x80 ? 1 : 2;
  }
  return bytes;
}

// Reads one file; its methods fill `file_` and return errors that start with the key.
class Reader {
 public:
  explicit Reader(dom::object root) : root_(root) {}

  Result<TokenizerFile> Read() {
    TRY_STATUS(CheckUnsupported());
    TRY_STATUS(ReadSplits());
    dom::object model;
    if (root_["model"].get(model) != simdjson::SUCCESS) return Invalid("model is no object");
    TRY_STATUS(CheckModel(model));
    TRY_STATUS(ReadVocab(model));
    TRY_STATUS(ReadMerges(model));
    TRY_STATUS(ReadAdded());
    return std::move(file_);
  }

 private:
  // The type of an optional object such as root.decoder; "" if it is absent or null.
  static Result<std::string_view> Type(dom::object parent, std::string_view key) {
    dom::element value;
    if (parent[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::string_view();
    std::string_view type;
    if (value["type"].get(type) != simdjson::SUCCESS) return Invalid("{}.type is no string", key);
    return type;
  }

  static bool IsTrue(dom::object parent, std::string_view key) {
    bool value = false;
    return parent[key].get(value) == simdjson::SUCCESS && value;
  }

  Status CheckUnsupported() {
    TRY(const std::string_view normalizer, Type(root_, "normalizer"));
    if (!normalizer.empty()) {
      dom::array members;
      if (normalizer != "Sequence" ||
          root_["normalizer"]["normalizers"].get(members) != simdjson::SUCCESS ||
          members.size() != 0) {
        return Invalid("normalizer {} is not supported: DeepSeek's tokenizers have none",
                       normalizer);
      }
    }
    TRY(const std::string_view decoder, Type(root_, "decoder"));
    if (decoder != "ByteLevel") {
      return Invalid("decoder.type is \"{}\", only ByteLevel is supported", decoder);
    }
    TRY(const std::string_view post, Type(root_, "post_processor"));
    if (!post.empty() && post != "ByteLevel") {
      return Invalid("post_processor.type is \"{}\", only ByteLevel is supported", post);
    }
    return {};
  }

  Status ReadSplits() {
    TRY(const std::string_view type, Type(root_, "pre_tokenizer"));
    dom::array steps;
    if (type != "Sequence" ||
        root_["pre_tokenizer"]["pretokenizers"].get(steps) != simdjson::SUCCESS) {
      return Invalid("pre_tokenizer is no Sequence with pretokenizers");
    }
    bool byte_level = false;
    size_t i = 0;
    for (const dom::element step : steps) {
      const std::string key = fmt::format("pre_tokenizer.pretokenizers[{}]", i++);
      dom::object object;
      std::string_view kind;
      if (step.get(object) != simdjson::SUCCESS || object["type"].get(kind) != simdjson::SUCCESS) {
        return Invalid("{}.type is no string", key);
      }
      if (byte_level) return Invalid("{} comes behind ByteLevel, which must be the last", key);
      if (kind == "ByteLevel") {
        if (IsTrue(object, "add_prefix_space") || IsTrue(object, "use_regex")) {
          return Invalid("{}: add_prefix_space and use_regex must be false", key);
        }
        byte_level = true;
      } else if (kind == "Split") {
        std::string_view regex;
        std::string_view behavior;
        if (object["pattern"]["Regex"].get(regex) != simdjson::SUCCESS) {
          return Invalid("{}.pattern.Regex is no string", key);
        }
        if (object["behavior"].get(behavior) != simdjson::SUCCESS || behavior != "Isolated" ||
            IsTrue(object, "invert")) {
          return Invalid("{}: only behavior Isolated without invert is supported", key);
        }
        file_.split_patterns.emplace_back(regex);
      } else {
        return Invalid("{}.type is \"{}\", only Split and ByteLevel are supported", key, kind);
      }
    }
    if (!byte_level) return Invalid("pre_tokenizer has no ByteLevel step");
    return {};
  }

  static Status CheckModel(dom::object model) {
    std::string_view type;
    if (model["type"].get(type) != simdjson::SUCCESS || type != "BPE") {
      return Invalid("model.type is \"{}\", only BPE is supported", type);
    }
    for (const std::string_view key : {"byte_fallback", "ignore_merges"}) {
      if (IsTrue(model, key)) return Invalid("model.{} is true, which is not supported", key);
    }
    for (const std::string_view key :
         {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      dom::element value;
      std::string_view text;
      if (model[key].get(value) == simdjson::SUCCESS && !value.is_null() &&
          !(value.get(text) == simdjson::SUCCESS && text.empty())) {
        return Invalid("model.{} is set, which is not supported", key);
      }
    }
    return {};
  }

  // Claims an id; false if it is taken.
  bool Claim(int64_t id, std::string bytes) {
    const auto index = static_cast<size_t>(id);
    if (index >= file_.bytes.size()) {
      file_.bytes.resize(index + 1);
      file_.known.resize(index + 1);
    }
    if (file_.known[index]) return false;
    file_.known[index] = true;
    file_.bytes[index] = std::move(bytes);
    return true;
  }

  Status ReadVocab(dom::object model) {
    dom::object vocab;
    if (model["vocab"].get(vocab) != simdjson::SUCCESS) return Invalid("model.vocab is no object");
    const std::array<int, 0x144> inverse = InverseByteAlphabet();
    file_.byte_symbols.fill(-1);
    vocab_.reserve(vocab.size());
    file_.bytes.reserve(vocab.size());
    for (const dom::key_value_pair entry : vocab) {
      int64_t id = -1;
      if (entry.value.get(id) != simdjson::SUCCESS || id < 0 || id > kMaxTokenId) {
        return Invalid("model.vocab[\"{}\"] is no id from 0 to {}", entry.key, kMaxTokenId);
      }
      std::optional<std::string> bytes = Decode(entry.key, inverse);
      if (bytes && bytes->size() == 1) {
        file_.byte_symbols[static_cast<unsigned char>((*bytes)[0])] = static_cast<int32_t>(id);
      }
      if (!vocab_.emplace(entry.key, static_cast<int32_t>(id)).second) {
        return Invalid("model.vocab lists \"{}\" twice", entry.key);
      }
      // Entries outside of the alphabet (the texts of control tokens) stand for themselves.
      if (!Claim(id, bytes ? *std::move(bytes) : std::string(entry.key))) {
        return Invalid("model.vocab gives id {} to \"{}\" and to another entry", id, entry.key);
      }
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      if (file_.byte_symbols[byte] < 0) {
        return Invalid("model.vocab has no entry for the byte {:#04x}", byte);
      }
    }
    return {};
  }

  Status ReadMerges(dom::object model) {
    dom::array merges;
    if (model["merges"].get(merges) != simdjson::SUCCESS)
      return Invalid("model.merges is no array");
    file_.merges.reserve(merges.size());
    size_t i = 0;
    std::string joined;
    for (const dom::element merge : merges) {
      const size_t index = i++;
      std::string_view left;
      std::string_view right;
      if (!SplitMerge(merge, &left, &right)) {
        return Invalid("model.merges[{}] is neither \"a b\" nor [\"a\", \"b\"]", index);
      }
      joined.assign(left).append(right);
      const auto left_id = vocab_.find(left);
      const auto right_id = vocab_.find(right);
      const auto joined_id = vocab_.find(joined);
      for (const auto& [id, text] : {std::pair(left_id, left), std::pair(right_id, right),
                                     std::pair(joined_id, std::string_view(joined))}) {
        if (id == vocab_.end()) {
          return Invalid("model.merges[{}] needs \"{}\", which is not in model.vocab", index, text);
        }
      }
      file_.merges.push_back({left_id->second, right_id->second, joined_id->second});
    }
    return {};
  }

  static bool SplitMerge(dom::element merge, std::string_view* left, std::string_view* right) {
    std::string_view both;
    if (merge.get(both) == simdjson::SUCCESS) {
      const size_t space = both.find(' ');
      if (space == std::string_view::npos) return false;
      *left = both.substr(0, space);
      *right = both.substr(space + 1);
    } else {
      dom::array pair;
      if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
          pair.at(0).get(*left) != simdjson::SUCCESS ||
          pair.at(1).get(*right) != simdjson::SUCCESS) {
        return false;
      }
    }
    return !left->empty() && !right->empty() && right->find(' ') == std::string_view::npos;
  }

  Status ReadAdded() {
    dom::array added;
    if (root_["added_tokens"].get(added) != simdjson::SUCCESS) {
      return Invalid("added_tokens is no array");
    }
    std::unordered_map<std::string_view, size_t> seen;
    size_t i = 0;
    for (const dom::element entry : added) {
      const std::string key = fmt::format("added_tokens[{}]", i);
      dom::object object;
      int64_t id = -1;
      std::string_view content;
      if (entry.get(object) != simdjson::SUCCESS ||
          object["content"].get(content) != simdjson::SUCCESS || content.empty()) {
        return Invalid("{}.content is no text", key);
      }
      if (object["id"].get(id) != simdjson::SUCCESS || id < 0 || id > kMaxTokenId) {
        return Invalid("{}.id is no number from 0 to {}", key, kMaxTokenId);
      }
      for (const std::string_view flag : {"lstrip", "rstrip", "single_word"}) {
        if (IsTrue(object, flag)) {
          return Invalid("{} (\"{}\") has {}, which is not supported", key, content, flag);
        }
      }
      if (!seen.emplace(content, i++).second) {
        return Invalid("{} lists \"{}\" a second time", key, content);
      }
      const auto in_vocab = vocab_.find(content);
      if (in_vocab != vocab_.end() && in_vocab->second != id) {
        return Invalid("{} gives \"{}\" the id {}, model.vocab says {}", key, content, id,
                       in_vocab->second);
      }
      if (in_vocab == vocab_.end() && !Claim(id, std::string(content))) {
        return Invalid("{}: the id {} of \"{}\" is taken", key, id, content);
      }
      // An entry of both tables may be in alphabet form; as an added token it is its text.
      file_.bytes[static_cast<size_t>(id)] = content;
      file_.added.push_back({static_cast<int32_t>(id), std::string(content),
                             IsTrue(object, "special"), IsTrue(object, "normalized")});
    }
    return {};
  }

  dom::object root_;
  std::unordered_map<std::string_view, int32_t> vocab_;  // as spelled; views of the parser's memory
  TokenizerFile file_;
};

}  // namespace

std::optional<std::string> DecodeByteLevel(std::string_view symbol) {
  return Decode(symbol, InverseByteAlphabet());
}

Result<TokenizerFile> ReadTokenizerFile(std::string_view json, std::string_view what) {
  dom::parser parser;
  dom::object root;
  if (parser.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS) {
    const std::string fault = JsonFault(json);
    return Invalid("{}: not {}; fetch the file again from the model's release", what,
                   fault.empty() ? "a JSON object" : "valid JSON " + fault);
  }
  Result<TokenizerFile> file = Reader(root).Read();
  if (!file) {
    return Invalid("{}: {}; use the tokenizer.json of the model's release", what,
                   OneLine(file.error().message));
  }
  return file;
}

}  // namespace fathom
