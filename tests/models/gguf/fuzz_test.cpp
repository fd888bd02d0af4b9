// Tests damaged files. The tests truncate a small valid file at every length or change some bytes of the file. The
// damaged file must be readable to the last byte, or opening the file must throw a shoal::Error. Each file image is a
// heap block of exactly the size of the image, so that AddressSanitizer detects reads past the end.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "base/error.h"
#include "models/gguf/gguf.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/gguf_writer.h"

namespace shoal::models {
namespace {

using test::Bytes;
using test::GgufWriter;

Bytes valid_image() {
  GgufWriter writer;
  writer.add("general.architecture", "llama").add<uint32_t>("general.alignment", 32);
  writer.add<float>("scale", 0.5f).add<bool>("flag", true).add<uint64_t>("big", 1).add<int8_t>("small", -1);
  writer.add("tokenizer.ggml.model", "llama");
  writer.add_array<std::string>("tokenizer.ggml.tokens", {"<unk>", "a", "bc"});
  writer.add_array<float>("tokenizer.ggml.scores", {0, -1, -2}).add_array<bool>("flags", {true, false});
  const std::vector<float> values(64, 1.0f);
  writer.add_tensor("a", DType::kF32, {8}, std::span(values).first(8));
  writer.add_tensor("blk.0.b", DType::kQ8_0, {32, 2}, values);
  writer.add_tensor("c", DType::kF16, {4, 2, 2}, std::span(values).first(16));
  return writer.image();
}

uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<uint64_t>(b);
  return sum;
}

// Reads everything in the file.
uint64_t touch(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    sum += sum_of({tensor.data, tensor.bytes});
    EXPECT_EQ(file.find_tensor(tensor.name), &tensor);
    EXPECT_EQ(tensor.bytes % traits(tensor.dtype).block_bytes, 0u);
  }
  for (const GgufValue& value : file.values()) {
    EXPECT_EQ(file.find_value(value.key), &value);
    if (value.type == GgufType::kArray && value.element == GgufType::kString) {
      for (const std::string& text : file.get_array<std::string>(value.key)) sum += text.size();
    } else if (value.type == GgufType::kString) {
      sum += file.get<std::string>(value.key).size();
    } else {
      sum += sum_of({value.data, value.count * size_of(value.element)});
    }
  }
  return sum;
}

enum class Outcome { kRead, kRefused };

Outcome open_copy(std::span<const std::byte> bytes) {
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  try {
    const GgufFile file("fuzz", {copy.get(), bytes.size()});
    EXPECT_GE(touch(file), 0u);
    EXPECT_THROW(Tokenizer{file}, Error);  // the vocabulary always lacks byte tokens
    return Outcome::kRead;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return Outcome::kRefused;
  }
}

TEST(GgufFuzz, EveryTruncatedFileIsRefused) {
  const Bytes image = valid_image();
  ASSERT_EQ(open_copy(image), Outcome::kRead);
  for (size_t length = 0; length < image.size(); ++length) {
    EXPECT_EQ(open_copy(std::span(image).first(length)), Outcome::kRefused) << "cut to " << length << " bytes";
  }
}

TEST(GgufFuzz, FilesWithChangedBytesAreReadOrRefused) {
  const Bytes original = valid_image();
  int outcomes[2] = {0, 0};
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Bytes image = original;
    // Extreme values (0, ff, 7f, 80 or one flipped bit) reveal more faults than random values.
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % image.size();
      const std::byte choices[] = {std::byte{0}, std::byte{0xff}, std::byte{0x7f}, std::byte{0x80},
                                   image[at] ^ std::byte(1u << random() % 8)};
      image[at] = choices[random() % std::size(choices)];
    }
    ++outcomes[static_cast<int>(open_copy(image))];
    if (HasFailure()) return;
  }
  // Many files must be read and many must be refused. Otherwise, the changes test only one outcome.
  EXPECT_GT(outcomes[0], 500);
  EXPECT_GT(outcomes[1], 500);
}

TEST(GgufFuzz, FilesWithChangedWordsAreReadOrRefused) {
  const Bytes original = valid_image();
  const uint64_t words[] = {
      0, 1, 5, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32, (uint64_t{1} << 61) + 1, original.size()};
  for (size_t at = 0; at + 8 <= original.size(); ++at) {
    for (const uint64_t word : words) {
      SCOPED_TRACE(fmt::format("{} at {}", word, at));
      Bytes image = original;
      std::memcpy(image.data() + at, &word, sizeof word);
      open_copy(image);
    }
  }
}

}  // namespace
}  // namespace shoal::models
