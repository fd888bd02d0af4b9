// Malformed files: every class of fault that GGUF readers are known to have fallen for. Each file differs from a
// valid one in the named field only, and the error must name that field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "models/gguf/gguf.h"
#include "tests/support/gguf_writer.h"

namespace shoal::models {
namespace {

using test::append;
using test::Bytes;
using test::GgufTensorSpec;
using test::GgufWriter;
using test::kGgufArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

GgufTensorSpec tensor(std::string name, std::vector<int64_t> dims = {8}, size_t bytes = 32) {
  return {std::move(name), 0, std::move(dims), Bytes(bytes), {}, {}};
}

template <class... Parts>
Bytes joined(const Parts&... parts) {
  Bytes bytes;
  (append(bytes, parts), ...);
  return bytes;
}

// The error for a valid file with one key and one tensor after `spoil` has changed it.
std::string error_after(const std::function<void(GgufWriter&)>& spoil) {
  GgufWriter writer;
  writer.add<uint32_t>("answer", 42).add_tensor(tensor("first"));
  spoil(writer);
  const Bytes image = writer.image();
  try {
    GgufFile file("bad.gguf", image);
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), StartsWith("bad.gguf: "));
    EXPECT_THAT(error.what(), HasSubstr("at byte"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(GgufMalformed, NothingSpoiledIsValid) {
  EXPECT_EQ(error_after([](GgufWriter&) {}), "");
}

TEST(GgufMalformed, Magic) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.magic = 0x46554748; }), HasSubstr("does not start with \"GGUF\""));
}

TEST(GgufMalformed, Version) {
  for (const uint32_t version : {0u, 1u, 4u, 0x7fffffffu}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.version = version; }), HasSubstr("supported are 2 and 3"));
  }
}

TEST(GgufMalformed, BigEndian) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.version = 0x03000000; }), HasSubstr("big-endian"));
}

TEST(GgufMalformed, KeyCountOverflow) {
  // The second wraps to a few bytes when multiplied by the least size of a key.
  for (const uint64_t count : {kHuge, kHuge / 14 + 1, uint64_t{1} << 40, uint64_t{1000}}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.key_count = count; }), HasSubstr("keys cannot fit"));
  }
  EXPECT_NE(error_after([](GgufWriter& w) { w.key_count = 2; }), "");
  EXPECT_NE(error_after([](GgufWriter& w) { w.key_count = 0; }), "");
}

TEST(GgufMalformed, TensorCountOverflow) {
  for (const uint64_t count : {kHuge, kHuge / 33 + 1, uint64_t{1} << 40, uint64_t{1000}}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.tensor_count = count; }), HasSubstr("tensors cannot fit"));
  }
  EXPECT_THAT(error_after([](GgufWriter& w) { w.tensor_count = 2; }), HasSubstr("a tensor name"));
}

TEST(GgufMalformed, StringLength) {
  for (const uint64_t length : {kHuge, kHuge - 7, uint64_t{1} << 63, uint64_t{100000}}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add_raw("text", 8, joined(length)); }),
                HasSubstr("key 'text': a string has " + std::to_string(length) + " bytes"));
  }
}

TEST(GgufMalformed, KeyLength) {
  const std::string longest(65535, 'k');
  EXPECT_EQ(error_after([&](GgufWriter& w) { w.add<uint32_t>(longest, 1); }), "");
  EXPECT_THAT(error_after([&](GgufWriter& w) { w.add<uint32_t>(longest + "k", 1); }), HasSubstr("allows 65535"));
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add<uint32_t>("", 1); }), HasSubstr("a key is empty"));
}

TEST(GgufMalformed, ArrayCountTimesSizeOverflow) {
  // count * 8 == 8 modulo 2^64 in the second case.
  for (const uint64_t count : {kHuge, (uint64_t{1} << 61) + 1, uint64_t{1} << 62, uint64_t{1000}}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add_raw("list", kGgufArray, joined(uint32_t{10}, count)); }),
                HasSubstr("key 'list': the value: " + std::to_string(count) + " x 8 bytes do not fit"));
  }
}

TEST(GgufMalformed, ArrayOfStringsCount) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_raw("list", kGgufArray, joined(uint32_t{8}, kHuge)); }),
              HasSubstr("key 'list'"));
}

TEST(GgufMalformed, ArrayOfArrays) {
  EXPECT_THAT(error_after([](GgufWriter& w) {
                w.add_raw("list", kGgufArray, joined(kGgufArray, uint64_t{1}, uint32_t{4}, uint64_t{1}, uint32_t{7}));
              }),
              HasSubstr("arrays of arrays"));
}

TEST(GgufMalformed, ValueType) {
  for (const uint32_t type : {13u, 255u, 0x80000000u, 0xffffffffu}) {
    const std::string expected = "unknown value type " + std::to_string(type);
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add_raw("value", type, joined(uint64_t{0})); }),
                HasSubstr(expected));
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add_raw("value", kGgufArray, joined(type, uint64_t{0})); }),
                HasSubstr(expected));
  }
}

TEST(GgufMalformed, BooleanValue) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_raw("flag", 7, joined(uint8_t{2})); }),
              HasSubstr("key 'flag': a boolean is 2"));
  EXPECT_THAT(error_after([](GgufWriter& w) {
                w.add_raw("flags", kGgufArray, joined(uint32_t{7}, uint64_t{3}, uint8_t{1}, uint8_t{0}, uint8_t{255}));
              }),
              HasSubstr("key 'flags': a boolean is 255"));
}

TEST(GgufMalformed, DuplicateKey) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add<float>("answer", 1); }), HasSubstr("a key 'answer' occurs twice"));
}

TEST(GgufMalformed, DuplicateTensorName) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_tensor(tensor("first")); }),
              HasSubstr("a tensor name 'first' occurs twice"));
}

TEST(GgufMalformed, TensorName) {
  EXPECT_EQ(error_after([](GgufWriter& w) { w.add_tensor(tensor(std::string(64, 'n'))); }), "");
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_tensor(tensor(std::string(65, 'n'))); }), HasSubstr("allows 64"));
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_tensor(tensor("")); }), HasSubstr("a tensor name is empty"));
}

TEST(GgufMalformed, DimensionCount) {
  for (const uint32_t count : {0u, 5u, 0xffffffffu}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) {
                  GgufTensorSpec bad = tensor("bad");
                  bad.dim_count = count;
                  w.add_tensor(bad);
                }),
                HasSubstr("tensor 'bad': " + std::to_string(count) + " dimensions"));
  }
}

TEST(GgufMalformed, DimensionZeroOrNegative) {
  for (const int64_t length : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) {
                  w.add_tensor(tensor("bad", {8, length}));
                }),
                HasSubstr("tensor 'bad': dimension 1 has length " + std::to_string(length)));
  }
}

TEST(GgufMalformed, DimensionProductOverflow) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{kMax, 2},
                                           {int64_t{1} << 32, int64_t{1} << 32},
                                           {int64_t{1} << 16, int64_t{1} << 16, int64_t{1} << 16, int64_t{1} << 16},
                                           {2, 2, 2, kMax}}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add_tensor(tensor("bad", dims)); }),
                HasSubstr("tensor 'bad': the number of elements does not fit"));
  }
}

TEST(GgufMalformed, ByteCountOverflow) {
  // The elements fit in 63 bits; their bytes wrap to 0, or to a few when padding is added.
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_tensor(tensor("bad", {int64_t{1} << 62})); }),
              HasSubstr("do not fit in 64 bits of bytes"));
  EXPECT_THAT(error_after([](GgufWriter& w) {
                w.add_tensor(tensor("bad", {4, 1073741823, 1073741825}));
              }),
              HasSubstr("tensor 'bad': 18446744073709551600 bytes at offset 32"));
}

TEST(GgufMalformed, BlockMultiple) {
  EXPECT_THAT(error_after([](GgufWriter& w) {
                GgufTensorSpec bad = tensor("bad", {48, 2}, 102);
                bad.type = traits(DType::kQ8_0).gguf_type;
                w.add_tensor(bad);
              }),
              HasSubstr("tensor 'bad': row length 48 is no multiple of the 32"));
}

TEST(GgufMalformed, TensorType) {
  const auto error_of_type = [](uint32_t type) {
    return error_after([&](GgufWriter& w) {
      GgufTensorSpec bad = tensor("bad");
      bad.type = type;
      w.add_tensor(bad);
    });
  };
  EXPECT_THAT(error_of_type(4), HasSubstr("tensor 'bad': unknown tensor type 4"));
  EXPECT_THAT(error_of_type(0xffffffff), HasSubstr("unknown tensor type 4294967295"));
  EXPECT_THAT(error_of_type(1000), HasSubstr("; the file is damaged, or of a newer format: download it again, or "));
  // Not the file's fault.
  EXPECT_THAT(error_of_type(9), HasSubstr("tensor 'bad': type q8_1 is not supported (at byte "));
  EXPECT_THAT(error_of_type(9), HasSubstr("; quantise the model to another one, such as q4_K_M: types can be f32"));
  EXPECT_THAT(error_of_type(9), Not(HasSubstr("damaged")));
  EXPECT_THAT(error_of_type(15), HasSubstr("tensor 'bad': type q8_K is not supported (at byte "));
  EXPECT_THAT(error_of_type(28), HasSubstr("tensor 'bad': type f64 is not supported (at byte "));
}

TEST(GgufMalformed, OffsetPastTheEnd) {
  // The second wraps to a place inside the file when the size or the start of the data is added.
  for (const uint64_t offset : {uint64_t{64}, kHuge - 31, uint64_t{1} << 63}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) {
                  GgufTensorSpec bad = tensor("bad");
                  bad.offset = offset;
                  w.add_tensor(bad);
                }),
                HasSubstr("tensor 'bad': 32 bytes at offset " + std::to_string(offset)));
  }
}

TEST(GgufMalformed, DataShorterThanShape) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_tensor(tensor("bad", {9}, 32)); }),
              HasSubstr("tensor 'bad': 36 bytes at offset 32 of the tensor data, which has 64 bytes"));
}

TEST(GgufMalformed, OffsetNotAligned) {
  EXPECT_THAT(error_after([](GgufWriter& w) {
                GgufTensorSpec bad = tensor("bad", {1}, 32);
                bad.offset = 36;
                w.add_tensor(bad);
              }),
              HasSubstr("tensor 'bad': offset 36 is no multiple of the alignment 32"));
}

TEST(GgufMalformed, OverlappingTensors) {
  // "long" has bytes 32 to 96: "bad" would share all of "first", the head or the tail of "long", or begin after it.
  const std::pair<uint64_t, const char*> cases[] = {
      {0, "overlaps tensor"}, {32, "overlaps tensor"}, {64, "tensor 'bad': overlaps tensor 'long'"}, {96, ""}};
  for (const auto& [offset, message] : cases) {
    EXPECT_THAT(error_after([&, offset = offset](GgufWriter& w) {
                  GgufTensorSpec bad = tensor("bad");
                  bad.offset = offset;
                  w.add_tensor(tensor("long", {16}, 64)).add_tensor(bad);
                }),
                HasSubstr(message))
        << offset;
  }
  EXPECT_EQ(error_after([](GgufWriter& w) { w.add_tensor(tensor("long", {16}, 64)).add_tensor(tensor("next")); }), "");
}

TEST(GgufMalformed, AlignmentZeroOrNoPowerOfTwo) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 0x80000001u}) {
    EXPECT_THAT(error_after([&](GgufWriter& w) { w.add<uint32_t>("general.alignment", alignment); }),
                HasSubstr("'general.alignment' is " + std::to_string(alignment)));
  }
}

TEST(GgufMalformed, AlignmentLargerThanTheFile) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add<uint32_t>("general.alignment", 0x80000000u); }),
              HasSubstr("tensor 'first': 32 bytes at offset 0 of the tensor data, which has 0 bytes"));
}

TEST(GgufMalformed, AlignmentType) {
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add<uint64_t>("general.alignment", 32); }),
              HasSubstr("should be u32, found u64"));
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add("general.alignment", "32"); }),
              HasSubstr("should be u32, found string"));
  EXPECT_THAT(error_after([](GgufWriter& w) { w.add_array<uint32_t>("general.alignment", {32}); }),
              HasSubstr("should be u32, found array"));
}

}  // namespace
}  // namespace shoal::models
