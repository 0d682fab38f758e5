#include "text/tokenizer.h"

#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace fathom {
namespace {

enum TokenFlags : uint8_t { kKnown = 1, kAdded = 2, kSpecial = 4, kMarker = 8 };

// The added tokens that output parsers look for.
bool IsMarker(std::string_view content) {
  return content == "<think>" || content == "</think>" || content == "｜DSML｜";
}

}  // namespace

struct Tokenizer::Tables {
  Tables(TokenizerFile file, PreTokenizer splits)
      : bytes(std::move(file.bytes)),
        flags(bytes.size()),
        splitter(std::move(splits)),
        bpe(file.byte_symbols, file.merges) {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (AddedToken& token : file.added) {
      const uint8_t special = token.special ? kSpecial : 0;
      const uint8_t marker = IsMarker(token.content) ? kMarker : 0;
      flags[static_cast<size_t>(token.id)] = static_cast<uint8_t>(kAdded | special | marker);
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    ids.reserve(bytes.size());
    // Added tokens come first: they keep a text that an entry of the vocabulary has too.
    for (const bool added : {true, false}) {
      for (size_t id = 0; id < bytes.size(); ++id) {
        if (!file.known[id] || ((flags[id] & kAdded) != 0) != added) continue;
        flags[id] |= kKnown;
        ids.emplace(bytes[id], static_cast<int32_t>(id));
      }
    }
    raw_added = AddedTokenMatcher(std::move(raw));
    normalized_added = AddedTokenMatcher(std::move(normalized));
  }

  bool Has(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < bytes.size(); }
  uint8_t Flags(int32_t id) const { return Has(id) ? flags[static_cast<size_t>(id)] : uint8_t{0}; }

  // Calls on_text(view) and on_token(id) in order over what `matcher` finds.
  template <typename OnText, typename OnToken>
  static Status Walk(const AddedTokenMatcher& matcher, std::string_view text, OnText on_text,
                     OnToken on_token) {
    size_t done = 0;
    while (const auto match = matcher.Next(text, done)) {
      if (match->begin > done) TRY_STATUS(on_text(text.substr(done, match->begin - done)));
      on_token(match->id);
      done = match->end;
    }
    if (done < text.size()) TRY_STATUS(on_text(text.substr(done)));
    return {};
  }

  // Text without added tokens.
  Status EncodePlain(std::string_view text, std::vector<int32_t>* out) const {
    std::vector<std::string_view> pieces;
    TRY_STATUS(splitter.Split(text, &pieces));
    for (const std::string_view piece : pieces) bpe.Encode(piece, out);
    return {};
  }

  std::vector<std::string> bytes;  // by id
  std::vector<uint8_t> flags;      // by id: TokenFlags
  std::unordered_map<std::string_view, int32_t> ids;
  AddedTokenMatcher raw_added;
  AddedTokenMatcher normalized_added;
  PreTokenizer splitter;
  Bpe bpe;
};

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& path) {
  TRY(const std::string json, ReadFile(path));
  return FromJson(json, path);
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view json, std::string_view what) {
  TRY(TokenizerFile file, ReadTokenizerFile(json, what));
  Result<PreTokenizer> splitter = PreTokenizer::Compile(file.split_patterns);
  if (!splitter) {
    return Invalid("{}: pre_tokenizer: {}; use the tokenizer.json of the model's release", what,
                   OneLine(splitter.error().message));
  }
  return Tokenizer(std::make_unique<const Tables>(std::move(file), *std::move(splitter)));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                               AddedTokenParsing added) const {
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return Invalid("the text is not valid UTF-8 at byte {} of {}", valid, text.size());
  }
  const Tables& tables = *tables_;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  const auto plain = [&](std::string_view part) { return tables.EncodePlain(part, &ids); };
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto rest = [&](std::string_view part) {
    return Tables::Walk(tables.normalized_added, part, plain, token);
  };
  if (added == AddedTokenParsing::kOff) {
    TRY_STATUS(plain(text));
  } else {
    TRY_STATUS(Tables::Walk(tables.raw_added, text, rest, token));
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, TokenVisibility visibility) const {
  Detokenizer detokenizer(*this, visibility);
  std::string text;
  for (const int32_t id : ids) text.append(detokenizer.Push(id));
  text.append(detokenizer.Flush());
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return tables_->Has(id) ? tables_->bytes[static_cast<size_t>(id)] : std::string_view();
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view bytes) const {
  const auto found = tables_->ids.find(bytes);
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::IsAdded(int32_t id) const { return (tables_->Flags(id) & kAdded) != 0; }
bool Tokenizer::IsSpecial(int32_t id) const { return (tables_->Flags(id) & kSpecial) != 0; }

bool Tokenizer::IsVisible(int32_t id, TokenVisibility visibility) const {
  const uint8_t flags = tables_->Flags(id);
  switch (visibility) {
    case TokenVisibility::kAll:
      return (flags & kKnown) != 0;
    case TokenVisibility::kSkipSpecial:
      return (flags & kKnown) != 0 && (flags & kSpecial) == 0;
    case TokenVisibility::kForParser:
      return (flags & kKnown) != 0 && ((flags & kAdded) == 0 || (flags & kMarker) != 0);
  }
  CHECK(false, "visibility {}", static_cast<int>(visibility));
  return false;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(tables_->bytes.size()); }

Result<std::vector<std::string_view>> Tokenizer::Split(std::string_view text) const {
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return Invalid("the text is not valid UTF-8 at byte {} of {}", valid, text.size());
  }
  std::vector<std::string_view> pieces;
  TRY_STATUS(tables_->splitter.Split(text, &pieces));
  return pieces;
}

}  // namespace fathom
