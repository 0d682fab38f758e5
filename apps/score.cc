// fathom score: logits of every position of given token ids. Needs no tokenizer.

#include "engine/score.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "commands.h"
#include "flags.h"
#include "npy.h"
#include "settings.h"

namespace fathom {
namespace {

struct Input {
  std::vector<std::vector<int32_t>> sequences;
  bool several = false;  // a list of lists: --out is a directory
};

Result<std::vector<int32_t>> ReadIds(const Json& list, const std::string& path) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return Invalid("{}: token ids must be integers from 0 on, found {}", path, DumpJson(id));
    }
    ids.push_back(id.get<int32_t>());
  }
  if (ids.empty()) return Invalid("{}: a list of token ids is empty", path);
  return ids;
}

Result<Input> ReadInput(const std::string& path) {
  TRY(const std::string text, ReadFile(path));
  TRY(const Json json, ParseJson(text, path));
  if (!json.is_array() || json.empty()) return Invalid("{}: a list of token ids is expected", path);
  Input input;
  input.several = json[0].is_array();
  if (!input.several) {
    TRY(input.sequences.emplace_back(), ReadIds(json, path));
    return input;
  }
  for (const Json& list : json) {
    if (!list.is_array()) return Invalid("{}: lists and ids can't be mixed", path);
    TRY(input.sequences.emplace_back(), ReadIds(list, path));
  }
  return input;
}

}  // namespace

Status RunScore() {
  if (FLAGS_ids.empty() || FLAGS_out.empty()) return Invalid("give --ids FILE and --out FILE");
  TRY(const Settings settings, ResolveSettings());
  TRY(const Input input, ReadInput(FLAGS_ids));
  if (input.several) {
    std::error_code error;
    std::filesystem::create_directories(FLAGS_out, error);
    if (error) return Invalid("--out={}: {}", FLAGS_out, error.message());
  }
  std::optional<NpyWriter> writer;
  const auto sink = [&](size_t index, int64_t first_row, int64_t rows, int64_t vocab,
                        const float* logits) -> Status {
    const auto length = static_cast<int64_t>(input.sequences[index].size());
    if (first_row == 0) {
      const std::string path =
          input.several ? fmt::format("{}/{}.npy", FLAGS_out, index) : FLAGS_out;
      TRY(NpyWriter created, NpyWriter::Create(path, length, vocab));
      writer.emplace(std::move(created));
    }
    TRY_STATUS(writer->Write({logits, static_cast<size_t>(rows * vocab)}));
    return first_row + rows == length ? writer->Finish() : Status();
  };
  return ScoreSequences(settings.engine, input.sequences, sink);
}

}  // namespace fathom
