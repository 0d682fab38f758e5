// Any bytes as a text for the bundled tokenizer: bad UTF-8 is refused, good text comes back, and
// the stream of a detokenizer is valid at every step.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer =
      fathom::Tokenizer::Load(FATHOM_SOURCE_DIR "/models/mini-v4/tokenizer.json");
  CHECK(tokenizer.has_value(), "{}", tokenizer.error().message);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto added : {fathom::AddedTokenParsing::kOn, fathom::AddedTokenParsing::kOff}) {
    const auto ids = tokenizer->Encode(text, added);
    CHECK(ids.has_value() == fathom::IsValidUtf8(text));
    if (!ids) continue;
    CHECK(tokenizer->Decode(*ids) == text);
  }

  // The same bytes as ids: whole characters only, and in the end what Decode says.
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < size; i += 2) ids.push_back(data[i] << 8 | data[i + 1]);
  fathom::Detokenizer stream(*tokenizer, fathom::TokenVisibility::kAll);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string delta = stream.Push(id);
    CHECK(fathom::IsValidUtf8(delta));
    streamed += delta;
  }
  streamed += stream.Flush();
  CHECK(streamed == tokenizer->Decode(ids));
  return 0;
}
