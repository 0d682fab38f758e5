#pragma once
// What the commands load of a model directory.

#include <memory>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "settings.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace fathom {

Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& model_dir);

// The encoder of --chat_encoding for that model.
Result<ChatEncoder> LoadChatEncoder(const std::string& model_dir);

// Text side and engine together. The engine goes first when this ends.
struct LoadedModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatEncoder> encoder;
  std::unique_ptr<Engine> engine;
};
Result<LoadedModel> LoadModel(const Settings& settings);

}  // namespace fathom
