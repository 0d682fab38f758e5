// Flags and files of the command line; what needs a process of its own is in tests/http.

#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "flag_checks.h"
#include "flags.h"
#include "npy.h"
#include "settings.h"
#include "weights/testing.h"

namespace fathom {
namespace {

class FlagsTest : public ::testing::Test {
 protected:
  void SetUp() override { Set("model", std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4"); }
  static void Set(const char* name, const std::string& value) {
    ASSERT_FALSE(gflags::SetCommandLineOption(name, value.c_str()).empty()) << name;
  }
  static std::string Fault() {
    const auto settings = ResolveSettings();
    return settings ? "" : settings.error().message;
  }
  const gflags::FlagSaver saver_;
};

TEST_F(FlagsTest, TheDocumentIsUpToDate) {
  const auto text = ReadFile(std::string(FATHOM_SOURCE_DIR) + "/docs/flags.md");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, FlagsMarkdown()) << "run: build/fathom docs flags > docs/flags.md";
}

TEST_F(FlagsTest, NamesAreUnique) {
  std::set<std::string> names;
  for (const FlagRow& row : FlagTable()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
  EXPECT_GT(names.size(), 150U);
}

TEST_F(FlagsTest, DefaultsAreGood) {
  const auto settings = ResolveSettings();
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->server.model_id, "mini-v4");
  EXPECT_EQ(settings->http.port, 8010);
  EXPECT_EQ(settings->engine.max_tokens_per_batch, 10240);
  EXPECT_EQ(IneffectiveFlagsWarning(), "");
}

TEST_F(FlagsTest, BadValuesAreNamed) {
  const std::vector<std::tuple<const char*, std::string, std::string>> cases = {
      {"port", "65536", "--port=65536 must be in [0, 65535]"},
      {"node_rank", "1", "--node_rank=1 must be in [0, nnodes)"},
      {"node_rank", "-1", "--node_rank=-1 must be in [0, nnodes)"},
      {"nnodes", "0", "--nnodes=0 must be at least 1"},
      {"dp_size", "2", "nnodes (1) must be divisible by dp_size*cp_size (2)"},
      {"ep_size", "3", "nnodes (1) must be divisible by ep_size (3)"},
      {"block_size", "64", "DeepSeek-V4 requires --block_size=128"},
      {"max_memory_utilization", "0", "--max_memory_utilization=0 must be in (0, 1]"},
      {"max_tokens_per_batch", "0", "--max_tokens_per_batch=0 must be at least 1"},
      {"prefix_group_tokens", "200", "--prefix_group_tokens=200 must be a multiple of 128"},
      {"tool_call_parser", "x", "--tool_call_parser=x is not one of: auto deepseekv3"},
      {"priority_strategy", "x", "--priority_strategy=x is not one of: fcfs"},
      {"model_impl", "x", "--model_impl=x is not one of"},
      {"devices", "tpu:0", "--devices=tpu:0: unknown kind of device"},
      {"devices", "cuda:0", "--devices=cuda:0: this build has no CUDA backend"},
      {"devices", "npu:x", "--devices=npu:x: 'x' is not a number"},
      {"master_node_addr", "nowhere", "--master_node_addr=nowhere must be host:port"},
      {"num_speculative_tokens", "3", "--num_speculative_tokens > 0 requires --draft_model"},
      {"speculative_algorithm", "Eagle3", "--speculative_algorithm=Eagle3 is not supported"},
      {"rank_tablefile", "/nonexistent", "--rank_tablefile: /nonexistent: $: not a regular file"},
      {"default_chat_template_kwargs", "{", "--default_chat_template_kwargs: "},
      {"model", "", "--model is required"},
      {"model", "/nonexistent", "model path does not exist: /nonexistent"},
      {"model", FATHOM_SOURCE_DIR "/docs", "no config.json in " FATHOM_SOURCE_DIR "/docs"},
  };
  for (const auto& [name, value, text] : cases) {
    const gflags::FlagSaver saver;
    Set(name, value);
    const std::string fault = Fault();
    EXPECT_TRUE(fault.starts_with(text)) << name << "=" << value << ": " << fault;
  }
}

TEST_F(FlagsTest, SpeculationIsChecked) {
  Set("draft_model", FLAGS_model);
  EXPECT_EQ(Fault(), "--draft_model requires --num_speculative_tokens > 0");
  Set("num_speculative_tokens", "5");
  Set("speculative_algorithm", "dspark");
  EXPECT_EQ(Fault(), "");
  Set("enable_chunked_prefill", "false");
  EXPECT_EQ(Fault(), "DSpark requires --enable_chunked_prefill=true");
  Set("enable_chunked_prefill", "true");
  const testing::TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir / "config.json", "{}"));
  Set("draft_model", dir.path());
  EXPECT_EQ(Fault(), "DSpark requires 'dspark_block_size' in config.json of --draft_model");
}

TEST_F(FlagsTest, OtherRanksHaveNothingToDo) {
  Set("nnodes", "2");
  Set("node_rank", "1");
  const auto settings = ResolveSettings();
  ASSERT_TRUE(settings);
  EXPECT_TRUE(settings->idle_rank);
}

TEST_F(FlagsTest, OneWarningNamesAllFlagsWithoutEffect) {
  Set("enable_graph", "true");
  Set("enable_eplb", "true");
  EXPECT_EQ(IneffectiveFlagsWarning(),
            "flags with no effect yet: --enable_eplb; no effect on backend cpu: --enable_graph");
}

TEST_F(FlagsTest, ConfigFile) {
  const testing::TempDir dir;
  const std::string path = dir / "flags.json";
  Set("config_json_file", "/nonexistent.json");
  EXPECT_TRUE(Fault().starts_with("--config_json_file=/nonexistent.json")) << Fault();
  Set("config_json_file", path);
  ASSERT_TRUE(WriteFileAtomically(path, "{"));
  EXPECT_TRUE(Fault().starts_with("--config_json_file: ")) << Fault();
  ASSERT_TRUE(WriteFileAtomically(
      path, R"({"max_seqs_per_batch": 7, "api_key": "k", "enable_chunked_prefill": false, "port": 1,
               "num_threads": 3, "unknown": 1})"));
  Set("num_threads", "5");
  const auto settings = ResolveSettings();
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->engine.max_seqs_per_batch, 7);
  EXPECT_EQ(settings->server.api_key, "k");
  EXPECT_FALSE(settings->engine.enable_chunked_prefill);
  EXPECT_EQ(settings->http.port, 8010);  // never from the file
  EXPECT_EQ(settings->http.threads, 5);  // the command line wins
  ASSERT_TRUE(WriteFileAtomically(path, R"({"max_seqs_per_batch": "many"})"));
  const gflags::FlagSaver saver;
  EXPECT_EQ(Fault(), "");  // set before, so the file is not looked at
}

TEST_F(FlagsTest, BadValueInTheConfigFile) {
  const testing::TempDir dir;
  const std::string path = dir / "bad_flags.json";
  Set("config_json_file", path);
  ASSERT_TRUE(WriteFileAtomically(path, R"({"ep_size": "many"})"));
  EXPECT_TRUE(Fault().starts_with("illegal value 'many' specified for int32 flag 'ep_size'"))
      << Fault();
}

TEST(NpyTest, HeaderAndValues) {
  const testing::TempDir dir;
  const std::string path = dir / "test.npy";
  auto writer = NpyWriter::Create(path, 2, 3);
  ASSERT_TRUE(writer);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(writer->Write({values.data(), 4}));
  ASSERT_TRUE(writer->Write({values.data() + 4, 2}));
  ASSERT_TRUE(writer->Finish());
  const auto bytes = ReadFile(path);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header =
      static_cast<unsigned char>((*bytes)[8]) + 256U * static_cast<unsigned char>((*bytes)[9]);
  EXPECT_EQ((10 + header) % 64, 0U);
  EXPECT_EQ(bytes->size(), 10 + header + 6 * sizeof(float));
  EXPECT_NE(bytes->find("'shape': (2, 3)"), bytes->npos);
  EXPECT_EQ(std::memcmp(bytes->data() + 10 + header, values.data(), 24), 0);
}

}  // namespace
}  // namespace fathom
