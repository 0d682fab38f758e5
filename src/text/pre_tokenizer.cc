#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "text/utf8.h"

namespace fathom {
namespace {

// Against patterns that explode: the real ones need a few steps for each character.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kMaxPatternBytes = 16'384;

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// One call of Split: the scratch space and the recursion over the splits.
class Splitter {
 public:
  Splitter(pcre2_match_data* data, pcre2_match_context* context,
           std::vector<std::string_view>* pieces)
      : data_(data), context_(context), pieces_(pieces) {}

  template <typename Codes>
  Status Run(const Codes& codes, size_t level, std::string_view text) {
    if (text.empty()) return {};
    if (level == codes.size()) {
      pieces_->push_back(text);
      return {};
    }
    size_t done = 0;    // cut so far
    size_t search = 0;  // where the next match may begin
    while (search < text.size()) {
      const int rc = pcre2_match(codes[level].get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), search, PCRE2_NO_UTF_CHECK, data_, context_);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return Fail(ErrorCode::kInternal,
                    "split {} of the tokenizer failed on a text of {} bytes: {}", level,
                    text.size(), Pcre2Message(rc));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_);
      const size_t begin = bounds[0];
      const size_t end = bounds[1];
      if (end <= begin) {  // an empty match cuts nothing
        if (end >= text.size()) break;
        search = end + Utf8Length(text[end]);
        continue;
      }
      TRY_STATUS(Run(codes, level + 1, text.substr(done, begin - done)));
      TRY_STATUS(Run(codes, level + 1, text.substr(begin, end - begin)));
      done = search = end;
    }
    return Run(codes, level + 1, text.substr(done));
  }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  std::vector<std::string_view>* pieces_;
};

}  // namespace

std::string RewriteWhiteSpace(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out.append("\\p{White_Space}");
    } else if (escaped == 'S') {
      out.append("\\P{White_Space}");
    } else {
      out.push_back('\\');
      out.push_back(escaped);
    }
  }
  return out;
}

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<PreTokenizer> PreTokenizer::Compile(const std::vector<std::string>& patterns) {
  std::vector<Code> codes;
  for (const std::string& pattern : patterns) {
    if (pattern.size() > kMaxPatternBytes) {
      return Invalid("a pattern of {} bytes is longer than {}", pattern.size(), kMaxPatternBytes);
    }
    const std::string rewritten = RewriteWhiteSpace(pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    // \C could cut a character, and (*...) at the start could switch UTF off.
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    if (rewritten.starts_with("(*")) return Invalid("pattern {} starts with (*", pattern);
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                            options, &error, &offset, nullptr));
    if (code == nullptr) {
      return Invalid("pattern {} does not compile: {} at byte {} of {}", pattern,
                     Pcre2Message(error), offset, rewritten);
    }
    // Without JIT (a system that forbids executable memory) the interpreter gives the same matches.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    codes.push_back(std::move(code));
  }
  return PreTokenizer(std::move(codes));
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatch> context(
      pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) {
    return Fail(ErrorCode::kResourceExhausted, "no memory to split a text");
  }
  pcre2_set_match_limit(context.get(), kMatchLimit);
  return Splitter(data.get(), context.get(), pieces).Run(codes_, 0, text);
}

}  // namespace fathom
