// fathom tokenize: text to ids as JSON, or back.

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "commands.h"
#include "flags.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

Status Decode(const Tokenizer& tokenizer, const std::string& input, const std::string& what) {
  TRY(const Json json, ParseJson(input, what));
  if (!json.is_array()) return Invalid("{}: a list of token ids is expected", what);
  std::vector<int32_t> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= tokenizer.vocab_size()) {
      return Invalid("{}: token ids must be in [0, {}), found {}", what, tokenizer.vocab_size(),
                     DumpJson(id));
    }
    ids.push_back(id.get<int32_t>());
  }
  const std::string text = tokenizer.Decode(ids);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

}  // namespace

Status RunTokenize() {
  if (FLAGS_tokenizer.empty() && FLAGS_model.empty())
    return Invalid("give --tokenizer FILE or --model DIR");
  if (FlagIsGiven("text") == FlagIsGiven("file"))
    return Invalid("give either --text TEXT or --file FILE");
  const std::string path =
      FLAGS_tokenizer.empty() ? FLAGS_model + "/tokenizer.json" : FLAGS_tokenizer;
  TRY(const Tokenizer tokenizer, Tokenizer::Load(path));
  std::string input = FLAGS_text;
  if (FlagIsGiven("file")) {
    TRY(input, ReadFile(FLAGS_file));
  }
  const std::string what = FlagIsGiven("file") ? FLAGS_file : "--text";
  if (FLAGS_decode) return Decode(tokenizer, input, what);
  const auto ids = tokenizer.Encode(input);
  if (!ids) return Invalid("{}: {}", what, ids.error().message);
  fmt::print("{}\n", DumpJson(Json(*ids)));
  return {};
}

}  // namespace fathom
