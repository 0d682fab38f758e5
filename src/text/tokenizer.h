#pragma once
// Byte-level BPE after a Hugging Face tokenizer.json (DeepSeek V3, V3.2, V4 and the mini model):
// added tokens, regex splits, merges by rank. Ids are int32 as the model counts them.
//
// Encode never adds BOS or EOS: in chats they come from the chat encoder's text. Truncation and
// padding settings of the file serve training batches and are ignored. Threads: immutable after
// loading; all const members may be called from any number of threads. Errors: a file this class
// can't reproduce exactly is refused with the key that says so. Source: text_and_api.md section 1.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace fathom {

// Whether the texts of added tokens (<think>, roles, ...) inside the input become those tokens.
enum class AddedTokenParsing { kOn, kOff };

// Which tokens give text when decoding.
enum class TokenVisibility {
  kAll,          // everything, as skip_special_tokens=false
  kSkipSpecial,  // not the added tokens marked special (BOS, EOS, padding, place holders)
  kForParser,  // of the added tokens only <think>, </think> and the DSML token: what output parsers
               // read
};

class Tokenizer {
 public:
  static Result<Tokenizer> Load(const std::string& path);
  // `what` names the text in messages.
  static Result<Tokenizer> FromJson(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The text must be valid UTF-8 (else kInvalidArgument with the byte's position). O(n log n) for
  // any text.
  Result<std::vector<int32_t>> Encode(std::string_view text,
                                      AddedTokenParsing added = AddedTokenParsing::kOn) const;

  // Valid UTF-8, the same as a Detokenizer's deltas together. Unknown ids give no text.
  std::string Decode(std::span<const int32_t> ids,
                     TokenVisibility visibility = TokenVisibility::kAll) const;

  // The bytes an id stands for: not always valid UTF-8 on their own; empty for unknown ids.
  std::string_view TokenBytes(int32_t id) const;

  // Added tokens first, then vocabulary entries with exactly these bytes.
  std::optional<int32_t> TokenId(std::string_view bytes) const;

  bool IsAdded(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  bool IsVisible(int32_t id, TokenVisibility visibility) const;

  // Highest known id + 1. A model's logits may be wider.
  int32_t vocab_size() const;

  // The pieces that merging works on, for tests and `fathom tokenize`.
  Result<std::vector<std::string_view>> Split(std::string_view text) const;

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<const Tables> tables);
  std::unique_ptr<const Tables> tables_;
};

}  // namespace fathom
