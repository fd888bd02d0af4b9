// Tests well-formed files. Reading returns the written values. Access to a key requires the exact type of its value.
// Also tests the small models of the repository.
#include "models/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_files.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

using test::Bytes;
using test::GgufWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kSupportedVersions[] = {2, 3};

// Returns the message of the InvalidArgument that `action` throws, or "" if `action` throws no exception.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

// Creates a separate folder for each test and removes the folder after the test.
class Gguf : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  const test::TemporaryFolder folder_;
};

TEST_F(Gguf, ReadsEveryValueTypeAtItsLimits) {
  GgufWriter writer;
  writer.add<uint8_t>("u8", 255).add<int8_t>("i8", -128).add<uint16_t>("u16", 65535).add<int16_t>("i16", -32768);
  writer.add<uint32_t>("u32", 4294967295u).add<int32_t>("i32", -2147483648).add<float>("f32", -0.0f);
  writer.add<uint64_t>("u64", ~uint64_t{0}).add<int64_t>("i64", std::numeric_limits<int64_t>::min());
  writer.add<double>("f64", 1e300).add<bool>("yes", true).add<bool>("no", false);
  writer.add("text", "caf\xc3\xa9").add("empty", "");
  const Bytes image = writer.image();
  const GgufFile file("test", image);

  EXPECT_EQ(file.get<uint8_t>("u8"), 255);
  EXPECT_EQ(file.get<int8_t>("i8"), -128);
  EXPECT_EQ(file.get<uint16_t>("u16"), 65535);
  EXPECT_EQ(file.get<int16_t>("i16"), -32768);
  EXPECT_EQ(file.get<uint32_t>("u32"), 4294967295u);
  EXPECT_EQ(file.get<int32_t>("i32"), -2147483648);
  EXPECT_TRUE(std::signbit(file.get<float>("f32")));
  EXPECT_EQ(file.get<uint64_t>("u64"), ~uint64_t{0});
  EXPECT_EQ(file.get<int64_t>("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(file.get<double>("f64"), 1e300);
  EXPECT_TRUE(file.get<bool>("yes"));
  EXPECT_FALSE(file.get<bool>("no"));
  EXPECT_EQ(file.get<std::string>("text"), "caf\xc3\xa9");
  EXPECT_EQ(file.get<std::string>("empty"), "");
  EXPECT_EQ(file.values().size(), 14u);
  EXPECT_EQ(file.values()[1].key, "i8");
}

TEST_F(Gguf, ReadsArrays) {
  GgufWriter writer;
  writer.add_array<std::string>("words", {"a", "", "long enough to leave the small-string buffer"});
  writer.add_array<float>("floats", {1.5f, -2.0f})
      .add_array<int32_t>("ints", {})
      .add_array<bool>("flags", {true, false});
  const Bytes image = writer.image();
  const GgufFile file("test", image);
  EXPECT_THAT(file.get_array<std::string>("words"),
              ElementsAre("a", "", "long enough to leave the small-string buffer"));
  EXPECT_THAT(file.get_array<float>("floats"), ElementsAre(1.5f, -2.0f));
  EXPECT_TRUE(file.get_array<int32_t>("ints").empty());
  EXPECT_THAT(file.get_array<bool>("flags"), ElementsAre(true, false));
  EXPECT_EQ(file.get_array<float>("floats").size(), 2u);
}

TEST_F(Gguf, OptionalAccessRequiresMatchingType) {
  GgufWriter writer;
  writer.add<uint32_t>("n", 7);
  const Bytes image = writer.image();
  const GgufFile file("test", image);
  EXPECT_EQ(file.get_or<uint32_t>("n", 1), 7u);
  EXPECT_EQ(file.get_or<uint32_t>("m", 1), 1u);
  EXPECT_EQ(file.find<uint32_t>("n"), 7u);
  EXPECT_FALSE(file.find<uint32_t>("m").has_value());
  EXPECT_TRUE(file.has("n"));
  EXPECT_FALSE(file.has("m"));
  // If the value has another type, access throws and does not treat the key as absent.
  EXPECT_THROW(file.find<float>("n"), InvalidArgument);
  EXPECT_THROW(file.get_or<std::string>("n", "x"), InvalidArgument);
}

TEST_F(Gguf, AccessErrorsNameFileKeyAndBothTypes) {
  GgufWriter writer;
  writer.add<uint32_t>("n", 7).add<uint32_t>("zero", 0).add_array<float>("floats", {1});
  const Bytes image = writer.image();
  const GgufFile file("model.gguf", image);
  EXPECT_THAT(error_of([&] { file.get<float>("n"); }),
              AllOf(StartsWith("model.gguf: key 'n'"), HasSubstr("f32"), HasSubstr("found u32")));
  EXPECT_THAT(error_of([&] { file.get<int32_t>("n"); }), HasSubstr("should be i32, found u32"));
  EXPECT_THAT(error_of([&] { file.get<float>("floats"); }), HasSubstr("should be f32, found array of f32"));
  EXPECT_THAT(error_of([&] { file.get_array<int32_t>("floats"); }),
              HasSubstr("should be array of i32, found array of f32"));
  EXPECT_THAT(error_of([&] { file.get_array<uint32_t>("n"); }), HasSubstr("should be array of u32, found u32"));
  EXPECT_THAT(error_of([&] { file.get<float>("none"); }), HasSubstr("model.gguf: key 'none' is missing"));
  EXPECT_THAT(error_of([&] { file.tensor("none"); }), HasSubstr("model.gguf: tensor 'none' is missing"));
  EXPECT_THAT(error_of([&] { file.get_positive("zero"); }), HasSubstr("key 'zero' is 0"));
  EXPECT_THAT(error_of([&] { file.get_positive("floats"); }), HasSubstr("should be u32"));
  EXPECT_EQ(file.get_positive("n"), 7u);
}

TEST_F(Gguf, ReadsTensors) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 20;
  for (const uint32_t version : kSupportedVersions) {
    GgufWriter writer;
    writer.version = version;
    writer.add_tensor("a", DType::kF32, {4, 2, 1, 3}, std::span(values).first(24));
    writer.add_tensor("b", DType::kQ8_0, {32, 2}, values);
    writer.add_tensor("c", DType::kF16, {5}, std::span(values).first(5));
    const Bytes image = writer.image();
    const GgufFile file("test", image);
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.alignment(), 32u);
    EXPECT_EQ(file.file_bytes(), image.size());
    EXPECT_EQ(file.tensor_bytes(), 96u + 68u + 10u);
    ASSERT_EQ(file.tensors().size(), 3u);

    const GgufTensor& a = file.tensor("a");
    EXPECT_EQ(a.shape, (Shape{4, 2, 1, 3}));
    EXPECT_EQ(a.dims, 4);
    EXPECT_EQ(a.bytes, 96u);
    EXPECT_EQ(std::memcmp(a.data, values.data(), 96), 0);
    EXPECT_EQ(a.data, image.data() + a.offset);

    const GgufTensor& b = file.tensor("b");
    EXPECT_EQ(b.dtype, DType::kQ8_0);
    EXPECT_EQ(b.shape, (Shape{32, 2, 1, 1}));
    EXPECT_EQ(b.dims, 2);
    EXPECT_EQ(b.bytes, 68u);
    EXPECT_EQ(b.offset % 32, 0u);
    EXPECT_EQ(file.tensor("c").shape, (Shape{5, 1, 1, 1}));
    EXPECT_EQ(file.find_tensor("d"), nullptr);
  }
}

TEST_F(Gguf, AlignmentKeyDeterminesTensorOffsets) {
  const std::vector<float> values{1.0f, 2.0f, 3.0f};
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer;
    writer.alignment = alignment;
    writer.add<uint32_t>("general.alignment", alignment);
    writer.add_tensor("a", DType::kF32, {3}, values).add_tensor("b", DType::kF32, {3}, values);
    const Bytes image = writer.image();
    const GgufFile file("test", image);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.tensor("b").offset - file.tensor("a").offset, std::max(alignment, 16u));
    EXPECT_EQ(std::memcmp(file.tensor("b").data, values.data(), 12), 0);
    std::vector<float> copy(2);
    file.read(file.tensor("b"), 4, std::as_writable_bytes(std::span(copy)));
    EXPECT_EQ(copy, std::vector<float>(values.begin() + 1, values.begin() + 3));
  }
}

TEST_F(Gguf, FileWithoutKeysAndTensorsIsValid) {
  const Bytes image = GgufWriter().image();
  EXPECT_EQ(image.size(), 24u);
  EXPECT_TRUE(GgufFile("test", image).tensors().empty());
}

TEST_F(Gguf, MovingKeepsViewsValid) {
  GgufWriter writer;
  writer.add<uint32_t>("n", 7).add_tensor("short", DType::kF32, {1}, std::vector<float>{2.5f});
  writer.write(path("model.gguf"));
  auto first = std::make_unique<GgufFile>(path("model.gguf"));
  const std::byte* data = first->tensor("short").data;
  GgufFile second(std::move(*first));
  first.reset();
  EXPECT_EQ(second.get<uint32_t>("n"), 7u);
  EXPECT_EQ(second.tensor("short").data, data);
  float value = 0;
  std::memcpy(&value, data, sizeof value);
  EXPECT_EQ(value, 2.5f);
}

TEST_F(Gguf, ErrorsNameUnusableFiles) {
  const auto open = [](const std::string& path) { return error_of([&] { GgufFile file(path); }); };
  EXPECT_THAT(open(path("none.gguf")), AllOf(HasSubstr("none.gguf: cannot open"), HasSubstr("No such file")));
  EXPECT_THAT(open(path("")), HasSubstr("is a directory"));
  test::write_file(path("empty.gguf"), {});
  EXPECT_THAT(open(path("empty.gguf")), HasSubstr("is empty"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(open(path("pipe")), HasSubstr("not a regular file"));
}

// Root can read every file, so the test temporarily switches to another user.
TEST_F(Gguf, ErrorNamesUnreadableFile) {
  constexpr uid_t kNobody = 65534;
  GgufWriter().write(path("model.gguf"));
  ASSERT_EQ(chmod(path("model.gguf").c_str(), 0), 0);
  const uid_t user = geteuid();
  if (user == 0 && seteuid(kNobody) != 0) GTEST_SKIP() << "root can read every file and cannot switch users here";
  const std::string message = error_of([&] { GgufFile file(path("model.gguf")); });
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_THAT(message, HasSubstr("cannot open the model file: Permission denied"));
}

TEST_F(Gguf, ErrorsAreOneLine) {
  GgufWriter writer;
  writer.add<uint32_t>("two\nlines\x1b[31m", 1).add<uint32_t>("two\nlines\x1b[31m", 1);
  const Bytes image = writer.image();
  const std::string message = error_of([&] { GgufFile file("test", image); });
  EXPECT_THAT(message, AllOf(HasSubstr("'two\\nlines\\x1b[31m' occurs twice"), Not(HasSubstr("\n"))));
}

TEST_F(Gguf, SmallModelHasExpectedContents) {
  const GgufFile file(test::model_file("tiny-kjv-5m-q4_k_m.gguf"));
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.file_bytes(), 3174464u);
  EXPECT_EQ(file.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(file.get_positive("llama.block_count"), 6u);
  EXPECT_EQ(file.get_positive("llama.attention.head_count_kv"), 4u);
  EXPECT_FLOAT_EQ(file.get<float>("llama.rope.freq_base"), 10000);
  EXPECT_EQ(file.get_array<std::string>("tokenizer.ggml.tokens").size(), 1024u);
  EXPECT_EQ(file.tensors().size(), 57u);
  EXPECT_EQ(file.tensor("output.weight").dtype, DType::kQ6_K);
  EXPECT_EQ(file.tensor("blk.5.ffn_down.weight").shape, (Shape{768, 256, 1, 1}));
  int64_t parameters = 0;
  for (const GgufTensor& tensor : file.tensors())
    parameters += bytes_for(DType::kF32, tensor.shape[0] * tensor.shape[1]);
  EXPECT_EQ(parameters / 4, 5246208);
}

// The dequantised weights equal the weights of the F16 file within the precision of the quantised types. So offsets,
// shapes and block layouts are read correctly.
TEST_F(Gguf, DequantisedWeightsMatchF16Weights) {
  const GgufFile reference(test::model_file("tiny-kjv-5m-f16.gguf"));
  const std::pair<const char*, double> cases[] = {{"tiny-kjv-5m-q8_0.gguf", 0.01}, {"tiny-kjv-5m-q4_k_m.gguf", 0.12}};
  const auto floats = [](const GgufTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
    traits(tensor.dtype).to_f32(tensor.data, values.data(), static_cast<int64_t>(values.size()));
    return values;
  };
  for (const auto& [name, bound] : cases) {
    const GgufFile file(test::model_file(name));
    ASSERT_EQ(file.tensors().size(), reference.tensors().size());
    for (const GgufTensor& tensor : file.tensors()) {
      const std::vector<float> actual = floats(tensor), expected = floats(reference.tensor(tensor.name));
      ASSERT_EQ(actual.size(), expected.size());
      double error = 0, norm = 0;
      for (size_t i = 0; i < actual.size(); ++i) {
        error += std::pow(actual[i] - expected[i], 2.0);
        norm += std::pow(expected[i], 2.0);
      }
      EXPECT_GT(norm, 0) << tensor.name;
      EXPECT_LT(std::sqrt(error / norm), bound) << name << " " << tensor.name;
    }
  }
}

}  // namespace
}  // namespace shoal::models
