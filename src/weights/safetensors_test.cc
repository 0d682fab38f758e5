#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::RawSafetensors;
using testing::TempDir;
using testing::WriteText;

std::string FaultOf(const std::string& content) {
  const TempDir dir;
  WriteText(dir / "x.safetensors", content);
  const auto file = SafetensorsFile::Open(dir / "x.safetensors");
  if (file) return "";
  EXPECT_THAT(file.error().message, HasSubstr(dir / "x.safetensors"));
  EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
  return file.error().message;
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TempDir dir;
  testing::WriteTensors(dir / "x.safetensors",
                        {testing::Make<float>("b", DType::kF32, {2, 2}, {1, 2, 3, 4}),
                         testing::Make<int32_t>("ids", DType::kI32, {1}, {-7}),
                         testing::Make<uint8_t>("a\"\\", DType::kF8E4M3, {3}, {0x38, 0x40, 0x7e}),
                         testing::Make<uint8_t>("none", DType::kI8, {0, 4}, {}),
                         testing::Make<uint8_t>("scalar", DType::kF8E8M0, {}, {127})});
  const auto file = SafetensorsFile::Open(dir / "x.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 5U);
  const Tensor& b = file->tensors()[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_EQ(ShapeText(b.shape), "[2, 2]");
  EXPECT_EQ(b.count(), 4);
  float third = 0;
  std::memcpy(&third, b.bytes.data() + 8, 4);
  EXPECT_EQ(third, 3.0F);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.bytes.data()) % 64, 0U);
  EXPECT_EQ(*b.file, dir / "x.safetensors");
  std::vector<std::string> names;
  for (const Tensor& t : file->tensors()) names.emplace_back(t.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("b", "ids", "a\"\\", "none", "scalar"));
}

TEST(Safetensors, U8IsReadAsRawBytes) {
  const std::string file =
      RawSafetensors(R"({"s":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  const std::string path = "f";
  TensorPool pool;
  const auto tensors = SafetensorsFile::ParseHeader(std::as_bytes(std::span(file)), &path, pool);
  ASSERT_TRUE(tensors);
  EXPECT_EQ((*tensors)[0].dtype, DType::kI8);
  EXPECT_TRUE((*tensors)[0].raw_bytes);
}

TEST(Safetensors, MissingFile) {
  const auto file = SafetensorsFile::Open("/nowhere/x.safetensors");
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("/nowhere/x.safetensors: No such file"));
}

TEST(Safetensors, DamagedLengths) {
  EXPECT_THAT(FaultOf(""), HasSubstr("truncated: 0 bytes"));
  EXPECT_THAT(FaultOf("1234567"), HasSubstr("truncated: 7 bytes"));
  EXPECT_THAT(FaultOf(std::string(8, '\xff')),
              HasSubstr("header claims 18446744073709551615 bytes"));
  EXPECT_THAT(FaultOf(RawSafetensors("{}", 0).substr(0, 9)),
              HasSubstr("header claims 2 bytes, the file has 1"));
  EXPECT_THAT(FaultOf(RawSafetensors("", 0)), HasSubstr("not valid JSON"));
}

TEST(Safetensors, DamagedHeaders) {
  EXPECT_THAT(FaultOf(RawSafetensors("{", 0)),
              HasSubstr("the header of 1 bytes: not valid JSON at line 1, column 2, where it ends "
                        "too early; correct it there, or fetch the file again"));
  EXPECT_THAT(FaultOf(RawSafetensors("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(FaultOf(RawSafetensors(R"({"a":1})", 0)), HasSubstr("'a' has no dtype"));
  EXPECT_THAT(FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4)),
              HasSubstr("'a' has no usable shape"));
  EXPECT_THAT(
      FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4)),
      HasSubstr("bad size in its shape"));
  EXPECT_THAT(
      FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4)),
      HasSubstr("bad size in its shape"));
  for (const char* shape :
       {"3", "null", "{}", "[1],\"shape\":{}", "[1],\"shape\":1", "{\"a\":1}", "\"[1]\""}) {
    EXPECT_THAT(
        FaultOf(RawSafetensors(
            fmt::format(R"({{"a":{{"dtype":"F32","shape":{},"data_offsets":[0,4]}}}})", shape), 4)),
        HasSubstr("'a' has no usable shape"))
        << shape;
  }
  for (const char* shape : {"[[1]]", "[1,{}]", "[null]", "[\"1\"]", "[18446744073709551615]"}) {
    EXPECT_THAT(
        FaultOf(RawSafetensors(
            fmt::format(R"({{"a":{{"dtype":"F32","shape":{},"data_offsets":[0,4]}}}})", shape), 4)),
        HasSubstr("'a' has a bad size in its shape"))
        << shape;
  }
  for (const char* entry : {"1", "[]", "{}", "\"F32\"", R"({"dtype":["F32"]})", R"({"dtype":4})"}) {
    EXPECT_THAT(FaultOf(RawSafetensors(fmt::format(R"({{"a":{}}})", entry), 4)),
                HasSubstr("'a' has no dtype"))
        << entry;
  }
  // What readers don't know of may be anything.
  EXPECT_EQ(
      FaultOf(RawSafetensors(R"({"__metadata__":[{"shape":[1]}],"a":{"x":[{"y":[]}],"dtype":"F32",
                                      "shape":[1],"data_offsets":[0,4]}})",
                             4)),
      "");
  for (const char* offsets :
       {"[4,0]", "[0]", "[0,4,8]", "[-4,0]", "[0,\"4\"]", "null", "[[0],4]", "{}"}) {
    EXPECT_THAT(
        FaultOf(RawSafetensors(
            fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})", offsets), 8)),
        HasSubstr("bad data_offsets"))
        << offsets;
  }
}

TEST(Safetensors, NamesMustBePrintable) {
  for (const char* name : {"", "a\\nb", "a\\u0000", "\\u00e9"}) {
    EXPECT_THAT(
        FaultOf(RawSafetensors(
            fmt::format(R"({{"{}":{{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}}})", name), 1)),
        HasSubstr("is no usable tensor name"))
        << name;
  }
}

TEST(Safetensors, UnknownDtypeNamesTensorAndType) {
  const std::string fault =
      FaultOf(RawSafetensors(R"({"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2));
  EXPECT_THAT(fault, HasSubstr("tensor 'w' has dtype 'F16', expected F32, BF16"));
}

TEST(Safetensors, SizesMustMatchAndNotOverflow) {
  EXPECT_THAT(
      FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8)),
      HasSubstr("'a' of F32 [2] needs 8 bytes, its data_offsets give 4"));
  for (const char* shape :
       {"[4611686018427387904,2]", "[9223372036854775807,9223372036854775807,0]",
        "[4611686018427387904,4,0]", "[3037000500,3037000500]"}) {
    EXPECT_THAT(
        FaultOf(RawSafetensors(
            fmt::format(R"({{"a":{{"dtype":"BF16","shape":{},"data_offsets":[0,0]}}}})", shape),
            8)),
        HasSubstr("needs too many bytes"))
        << shape;
  }
  EXPECT_THAT(FaultOf(RawSafetensors(
                  R"({"a":{"dtype":"I8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1)),
              HasSubstr("no usable shape"));
}

TEST(Safetensors, TruncatedData) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(FaultOf(RawSafetensors(header, 8)), "");
  EXPECT_THAT(FaultOf(RawSafetensors(header, 7)),
              HasSubstr("truncated: tensor 'a' ends at byte 8 of the data"));
  EXPECT_THAT(
      FaultOf(RawSafetensors(
          R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})",
          8)),
      HasSubstr("truncated"));
}

TEST(Safetensors, OverlapAndDuplicates) {
  EXPECT_THAT(FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                                         "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                     8)),
              HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(FaultOf(RawSafetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                                         "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                     8)),
              HasSubstr("'a' comes twice"));
}

TEST(SafetensorsWriter, NothingAppearsBeforeFinish) {
  const TempDir dir;
  {
    auto writer = SafetensorsWriter::Create(dir / "x.safetensors", {{"a", DType::kF32, {2}}});
    ASSERT_TRUE(writer);
    const std::vector<std::byte> half(4);
    ASSERT_TRUE(writer->Write(half));
    EXPECT_FALSE(std::filesystem::exists(dir / "x.safetensors"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, NamesThePathThatCannotBeWritten) {
  const auto writer = SafetensorsWriter::Create("/nowhere/x.safetensors", {});
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().message,
              HasSubstr("cannot write /nowhere/x.safetensors.part: No such file"));
}

TEST(SafetensorsWriter, DiskFullIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  const TempDir dir;
  std::filesystem::create_symlink("/dev/full", dir / "x.safetensors.part");
  auto writer = SafetensorsWriter::Create(dir / "x.safetensors", {{"a", DType::kI8, {1 << 20}}});
  Status status;
  if (writer) {
    const std::vector<std::byte> data(1 << 20);
    status = writer->Write(data);
    if (status) status = writer->Finish();
  } else {
    status = tl::unexpected<Error>(writer.error());
  }
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("No space left on device; free disk space"));
}

TEST(SafetensorsWriterDeathTest, WritingTooMuchIsOurBug) {
  const TempDir dir;
  auto writer = SafetensorsWriter::Create(dir / "x.safetensors", {{"a", DType::kF32, {1}}});
  ASSERT_TRUE(writer);
  const std::vector<std::byte> data(8);
  EXPECT_DEATH(static_cast<void>(writer->Write(data)), "8 bytes written, 4 declared");
}

}  // namespace
}  // namespace fathom
