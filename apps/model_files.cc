#include "model_files.h"

#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "flags.h"

namespace fathom {

Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& model_dir) {
  TRY(Tokenizer tokenizer, Tokenizer::Load(model_dir + "/tokenizer.json"));
  return std::make_shared<const Tokenizer>(std::move(tokenizer));
}

Result<ChatEncoder> LoadChatEncoder(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  TRY(const std::string text, ReadFile(path));
  TRY(const Json config, ParseJson(text, path));
  TRY(const ChatEncoding encoding, ResolveChatEncoding(FLAGS_chat_encoding, config));
  return ChatEncoder::Create(encoding);
}

Result<LoadedModel> LoadModel(const Settings& settings) {
  LoadedModel model;
  TRY(model.tokenizer, LoadTokenizer(settings.engine.model_dir));
  TRY(ChatEncoder encoder, LoadChatEncoder(settings.engine.model_dir));
  model.encoder = std::make_unique<const ChatEncoder>(std::move(encoder));
  TRY(model.engine, Engine::Create(settings.engine, model.tokenizer));
  return model;
}

}  // namespace fathom
