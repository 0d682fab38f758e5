#pragma once
// tokenizer.json as plain tables. Everything the Tokenizer can't reproduce is refused here, by key.
// Source: text_and_api.md 1.1; the real files give merges as strings ("a b"), newer ones as pairs.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace fathom {

struct TokenizerFile {
  // Bytes of each id; ids without an entry have known[id] == false. The size is the highest id + 1.
  std::vector<std::string> bytes;
  std::vector<bool> known;
  std::array<int32_t, 256> byte_symbols{};  // id of each single byte
  std::vector<Bpe::Merge> merges;           // by rank
  std::vector<AddedToken> added;
  std::vector<std::string> split_patterns;
};

// `what` names the text in messages.
Result<TokenizerFile> ReadTokenizerFile(std::string_view json, std::string_view what);

// Bytes of a vocabulary entry written in the byte-level alphabet, or nothing if it uses other
// characters.
std::optional<std::string> DecodeByteLevel(std::string_view symbol);

}  // namespace fathom
