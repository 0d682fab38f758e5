#pragma once
// Where the tests of this folder find vectors and tokenizers. Only *_test.cc files include it.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace fathom::testing {

// The cases of tests/data/vectors/NAME.
inline Json LoadVectors(const std::string& name) {
  const std::string path = FATHOM_SOURCE_DIR "/tests/data/vectors/" + name;
  Result<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.has_value()) << path;
  Result<Json> json = text ? ParseJson(*text, path) : Json();
  EXPECT_TRUE(json.has_value()) << path;
  return json ? *std::move(json) : Json();
}

// A real tokenizer.json of shared/tokenizers ("deepseek_v4"), unpacked by xz; nothing where it is
// missing.
inline std::optional<std::string> SharedTokenizerJson(const std::string& model) {
  const std::string path = FATHOM_SHARED_DIR "/tokenizers/" + model + "_tokenizer.json.xz";
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::FILE* pipe = popen(("xz -dc '" + path + "'").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 65536> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  EXPECT_EQ(pclose(pipe), 0) << path;
  return text;
}

// Loaded once for a test program; null where shared/tokenizers is missing.
inline const Tokenizer* SharedTokenizer(const std::string& model) {
  static std::map<std::string, std::optional<Tokenizer>> loaded;
  const auto [entry, is_new] = loaded.try_emplace(model);
  if (is_new) {
    if (const auto json = SharedTokenizerJson(model)) {
      Result<Tokenizer> tokenizer = Tokenizer::FromJson(*json, model);
      EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
      if (tokenizer) entry->second = *std::move(tokenizer);
    }
  }
  return entry->second ? &*entry->second : nullptr;
}

#define REQUIRE_SHARED_TOKENIZER(tokenizer, model)                                  \
  const ::fathom::Tokenizer* tokenizer = ::fathom::testing::SharedTokenizer(model); \
  if (tokenizer == nullptr) {                                                       \
    GTEST_SKIP() << "needs shared/tokenizers/" model "_tokenizer.json.xz";          \
  }

// The tokenizer.json of the bundled mini model.
inline std::string MiniTokenizerPath() {
  const std::string bundled = FATHOM_SOURCE_DIR "/models/mini-v4/tokenizer.json";
  if (std::filesystem::exists(bundled)) return bundled;
  return FATHOM_SHARED_DIR "/mini_model/checkpoint/tokenizer.json";
}

inline const Tokenizer& MiniTokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::Load(MiniTokenizerPath());
  CHECK(tokenizer.has_value(), "{}", tokenizer.error().message);
  return *tokenizer;
}

}  // namespace fathom::testing
