// Any bytes as a tokenizer.json: an error, or a tokenizer that gives back every text it encodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = fathom::Tokenizer::FromJson(json, "fuzz");
  if (!tokenizer) {
    CHECK(!tokenizer.error().message.empty() &&
          tokenizer.error().message.find('\n') == std::string::npos);
    return 0;
  }
  for (const std::string_view text :
       {"Hello, world 123  \n", "<｜User｜>é漢😀</think>", "aaaaaaa"}) {
    const auto ids = tokenizer->Encode(text, fathom::AddedTokenParsing::kOff);
    if (!ids) continue;  // a split that exceeds the match limit
    CHECK(tokenizer->Decode(*ids) == text, "decoded \"{}\"", tokenizer->Decode(*ids));
    const auto with_added = tokenizer->Encode(text);
    CHECK(!with_added || tokenizer->Decode(*with_added) == text);
  }
  return 0;
}
