#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint_files.h"

namespace glm53 {
namespace {

using test::bytes_of;
using test::error_of;
using test::safetensors_file;
using test::TempDirectory;
using test::TestTensor;
using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kMalformed = GLM53_TEST_DATA "/malformed/safetensors";

TestTensor floats(const std::string& name, const std::vector<float>& values) {
  return {name, "F32", {static_cast<int64_t>(values.size())}, bytes_of(values)};
}

std::string index_file(const nlohmann::json& weight_map) {
  return nlohmann::json{{"metadata", {{"total_size", 16}}}, {"weight_map", weight_map}}.dump();
}

std::string open_error(const TempDirectory& directory) {
  return error_of([&] { Checkpoint::open(directory.path()); });
}

TEST(Safetensors, SingleFileRoundTrip) {
  TempDirectory directory;
  const std::vector<uint16_t> bf16 = {0x3F80, 0x4000, 0xC040, 0, 0x3F00, 0xBF80};
  directory.write("model.safetensors", safetensors_file({{"scalar", "I32", {}, bytes_of<int32_t>({-7})},
                                                         {"odd", "U8", {3}, "abc"},  // what follows is unaligned
                                                         {"matrix", "BF16", {2, 3}, bytes_of(bf16)},
                                                         {"none", "F32", {0, 5}, ""},
                                                         floats("vector", {1.5F, -2.0F})}));
  Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(checkpoint.file_count(), 1U);
  EXPECT_EQ(checkpoint.tensors().size(), 5U);
  EXPECT_EQ(checkpoint.total_bytes(), 4U + 3 + 12 + 8);
  EXPECT_EQ(checkpoint.directory(), directory.path());

  const Checkpoint moved = std::move(checkpoint);  // views survive
  const HostTensor* matrix = moved.find("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->name, "matrix");
  EXPECT_EQ(matrix->file, directory.path() + "/model.safetensors");
  EXPECT_EQ(matrix->dtype, DType::kBF16);
  EXPECT_EQ(matrix->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(to_floats(*matrix), (std::vector<float>{1, 2, -3, 0, 0.5F, -1}));
  EXPECT_EQ(to_floats(*moved.find("vector")), (std::vector<float>{1.5F, -2.0F}));
  EXPECT_TRUE(moved.find("scalar")->shape.empty());
  EXPECT_EQ(moved.find("none")->bytes.size(), 0U);
  EXPECT_EQ(moved.find("matri"), nullptr);
}

TEST(Safetensors, EntriesHaveAbsoluteOffsets) {
  const std::string file = safetensors_file({floats("b", {1, 2}), floats("a", {3})});
  const std::vector<SafetensorsEntry> entries = parse_safetensors_header(file, file.size(), "f");
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "b");
  EXPECT_EQ(entries[0].begin, file.size() - 12);
  EXPECT_EQ(entries[1].end, file.size());
}

TEST(Safetensors, HeaderMayBePaddedAndHoldNoTensor) {
  std::string file = safetensors_file({});
  file += "   ";
  file[0] = static_cast<char>(file[0] + 3);
  EXPECT_TRUE(parse_safetensors_header(file, file.size(), "f").empty());
}

TEST(Safetensors, TinyCheckpointOpens) {
  const Checkpoint checkpoint = Checkpoint::open(GLM53_TEST_DATA "/models/glm53-tiny");
  EXPECT_EQ(checkpoint.file_count(), 3U);
  EXPECT_EQ(checkpoint.tensors().size(), 957U);
  EXPECT_EQ(checkpoint.total_bytes(), 28898416U);  // metadata.total_size of its index
}

TEST(Safetensors, ShardedRoundTrip) {
  TempDirectory directory;
  directory.write("model-00001-of-00002.safetensors", safetensors_file({floats("a", {1})}));
  directory.write("model-00002-of-00002.safetensors", safetensors_file({floats("b", {2})}));
  directory.write("stray.safetensors", "not read, because the index does not name it");
  directory.write("model.safetensors.index.json",
                  index_file({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}));
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EXPECT_EQ(checkpoint.file_count(), 2U);
  EXPECT_EQ(to_floats(*checkpoint.find("a")), std::vector<float>{1});
  EXPECT_EQ(to_floats(*checkpoint.find("b")), std::vector<float>{2});
}

TEST(Safetensors, MtpFileBesideTheIndexIsRead) {
  TempDirectory directory;
  directory.write("model.safetensors", safetensors_file({floats("a", {1})}));
  directory.write("mtp.safetensors", safetensors_file({floats("m", {2})}));
  directory.write("model.safetensors.index.json", index_file({{"a", "model.safetensors"}}));
  EXPECT_NE(Checkpoint::open(directory.path()).find("m"), nullptr);
}

TEST(Safetensors, SeveralFilesWithoutIndex) {
  TempDirectory directory;
  directory.write("x.safetensors", safetensors_file({floats("a", {1})}));
  directory.write("y.safetensors", safetensors_file({floats("b", {2})}));
  EXPECT_EQ(Checkpoint::open(directory.path()).tensors().size(), 2U);
  directory.write("z.safetensors", safetensors_file({floats("a", {3})}));
  EXPECT_THAT(open_error(directory), AllOf(HasSubstr("z.safetensors: tensor a"), HasSubstr("x.safetensors")));
}

TEST(Safetensors, DirectoryErrors) {
  TempDirectory directory;
  EXPECT_THAT(open_error(directory), HasSubstr("holds no safetensors file"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(directory.path() + "/none"); }), HasSubstr("/none: no such directory"));
  directory.write("model.safetensors", "");
  EXPECT_THAT(open_error(directory), HasSubstr("model.safetensors: is empty"));
}

TEST(Safetensors, FifoAndDirectoryAreNotFiles) {
  TempDirectory directory;
  const std::string path = directory.path() + "/model.safetensors";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(open_error(directory), HasSubstr("model.safetensors: not a regular file"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_THAT(open_error(directory), HasSubstr("model.safetensors: is a directory"));
}

TEST(Safetensors, IndexErrorsNameFileAndTensor) {
  struct Row {
    std::string index;
    std::vector<std::string> message_parts;
  };
  const std::vector<Row> rows = {
      {"{", {"index.json: not valid JSON"}},
      {"[]", {"index.json", "not a JSON object"}},
      {"{}", {"index.json", "weight_map", "missing"}},
      {R"({"weight_map": []})", {"index.json", "weight_map", "not an object"}},
      {R"({"weight_map": {"a": 1}})", {"index.json: tensor a", "not a string"}},
      {R"({"weight_map": {"a": "../m1.safetensors"}})", {"index.json: tensor a", "../m1.safetensors"}},
      {R"({"weight_map": {"a": "/m1.safetensors"}})", {"index.json: tensor a", "/m1.safetensors"}},
      {R"({"weight_map": {"a": "m1.safetensors\u0000.safetensors"}})", {"index.json: tensor a"}},
      {R"({"weight_map": {"a": ".."}})", {"index.json: tensor a", ".."}},
      {R"({"weight_map": {"a": ""}})", {"index.json: tensor a"}},
      {R"({"weight_map": {"a": "m1.safetensors", "a": "m1.safetensors"}})", {"index.json: key \"a\" occurs twice"}},
      {R"({"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors", "c": "m3.safetensors"}})",
       {"m3.safetensors: shard is missing", "tensor c"}},
      {R"({"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors", "c": "m2.safetensors"}})",
       {"m2.safetensors: tensor c is missing"}},
      {R"({"weight_map": {"b": "m2.safetensors", "x": "m1.safetensors"}})",
       {"m1.safetensors: tensor a is not in model.safetensors.index.json"}},
      {R"({"weight_map": {"a": "m2.safetensors", "b": "m1.safetensors"}})",
       {"m1.safetensors: tensor a belongs in m2.safetensors"}},
  };
  for (const Row& row : rows) {
    TempDirectory directory;
    directory.write("m1.safetensors", safetensors_file({floats("a", {1})}));
    directory.write("m2.safetensors", safetensors_file({floats("b", {2})}));
    directory.write("model.safetensors.index.json", row.index);
    const std::string message = open_error(directory);
    EXPECT_NE(message, "") << row.index;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : row.message_parts) EXPECT_THAT(message, HasSubstr(part)) << row.index;
  }
}

TEST(Safetensors, TensorInTwoShards) {
  TempDirectory directory;
  directory.write("m1.safetensors", safetensors_file({floats("a", {1})}));
  directory.write("m2.safetensors", safetensors_file({floats("b", {2}), floats("a", {1})}));
  directory.write("model.safetensors.index.json", index_file({{"a", "m1.safetensors"}, {"b", "m2.safetensors"}}));
  EXPECT_THAT(open_error(directory), AllOf(HasSubstr("m2.safetensors: tensor a is also in"), HasSubstr("m1.")));
}

/// What the message must hold besides the file's name, by file of tests/data/malformed/safetensors.
const std::map<std::string, std::string> kMalformedMessages = {
    {"empty", "shorter than the 8 bytes"},
    {"seven-bytes", "shorter than the 8 bytes"},
    {"length-beyond-file", "header length 5000 is more than the file's"},
    {"length-huge", "more than the limit"},
    {"length-over-limit", "header length 100000001 is more than the limit"},
    {"length-zero", "header is not a JSON object"},
    {"header-truncated", "not valid JSON at byte"},
    {"header-not-object", "header is not a JSON object"},
    {"header-garbage", "not valid JSON at byte"},
    {"header-invalid-utf8", "not valid JSON at byte"},
    {"header-deep", "tensor bad: the entry is an array"},
    {"entry-not-object", "tensor bad: the entry is a number"},
    {"entry-null", "tensor bad: the entry is null"},
    {"dtype-missing", "tensor bad: field dtype is missing"},
    {"dtype-unsupported", "tensor bad: dtype \"F8_E5M2\" is not supported"},
    {"dtype-number", "tensor bad: dtype is a number"},
    {"shape-missing", "tensor bad: field shape is missing"},
    {"shape-negative", "tensor bad: shape holds a negative number"},
    {"shape-float", "tensor bad: shape holds a number that is no integer"},
    {"shape-string", "tensor bad: shape is a string"},
    {"shape-nested", "tensor bad: shape holds an array"},
    {"shape-over-int64", "tensor bad: shape has an extent out of range"},
    {"shape-product-overflow", "tensor bad: the size of shape [4294967296, 4294967296] BF16 overflows"},
    {"shape-product-wraps", "tensor bad: the size of shape [4611686018427387904, 4, 1] BF16 overflows"},
    {"shape-too-many-dimensions", "tensor bad: shape has more than 8 dimensions"},
    {"offsets-missing", "tensor bad: field data_offsets is missing"},
    {"offsets-one", "tensor bad: data_offsets has fewer than two numbers"},
    {"offsets-three", "tensor bad: data_offsets has more than two numbers"},
    {"offsets-negative", "tensor bad: data_offsets holds a negative number"},
    {"offsets-backwards", "tensor bad: data_offsets [16, 8] run backwards"},
    {"offsets-outside-file", "tensor bad: data_offsets [8, 16] leave the file"},
    {"offsets-huge", "tensor bad: data_offsets [8, 18446744073709551615] leave the file"},
    {"size-mismatch", "tensor bad: [2, 3] BF16 takes 12 bytes, data_offsets [8, 16] hold 8"},
    {"overlap", "tensor bad overlaps tensor a.weight"},
    {"hole", "tensor bad: 4 unused bytes before its data"},
    {"trailing-bytes", "1 bytes after the last tensor, bad"},
    {"duplicate-tensor", "tensor bad occurs twice"},
    {"duplicate-field", "tensor bad: field dtype occurs twice"},
    {"unknown-field", "tensor bad: unknown field \"stride\""},
    {"metadata-not-object", "__metadata__ is not an object of strings"},
    {"metadata-number", "__metadata__ is not an object of strings"},
    {"metadata-nested", "__metadata__ is not an object of strings"},
    {"metadata-twice", "__metadata__ occurs twice"},
    {"name-control-characters", "tensor bad\\x0aname\\x1b[2J: [1] F32 takes 4 bytes"},
};

TEST(Safetensors, MalformedFilesAreRefusedInOneLine) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kMalformed)) {
    ++files;
    const std::string stem = entry.path().stem().string();
    const std::string name = entry.path().filename().string();
    const auto expected = kMalformedMessages.find(stem);
    ASSERT_NE(expected, kMalformedMessages.end()) << name << " has no expected message";
    const std::string bytes = test::read_file(entry.path());
    const std::string message = error_of([&] { parse_safetensors_header(bytes, bytes.size(), name); });
    EXPECT_THAT(message, AllOf(testing::StartsWith(name + ": "), HasSubstr(expected->second)));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;

    TempDirectory directory;
    directory.write("model.safetensors", bytes);
    EXPECT_THAT(open_error(directory), HasSubstr("model.safetensors: ")) << name;
  }
  EXPECT_EQ(files, kMalformedMessages.size());
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = safetensors_file({floats("a", {1, 2}), floats("b", {3})});
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(error_of([&] { parse_safetensors_header(std::string_view(file).substr(0, size), size, "f"); }), "");
  }
}

}  // namespace
}  // namespace glm53
