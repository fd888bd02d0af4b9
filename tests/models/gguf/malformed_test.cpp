// Tests files with every known class of GGUF fault. Each file differs from a valid file in one field only. The error
// must name this field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

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

using Spoil = std::function<void(GgufWriter&)>;

// Creates a valid file with one key and one tensor, and lets `spoil` change the file. Returns the error of opening the
// changed file.
std::string error_after(const Spoil& spoil) {
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
  return "it opened";
}

/// Returns a change that adds a second tensor. `change` may modify this tensor.
Spoil second(GgufTensorSpec spec, const std::function<void(GgufTensorSpec&)>& change = {}) {
  if (change) change(spec);
  return [spec](GgufWriter& w) { w.add_tensor(spec); };
}

Spoil raw(const std::string& key, uint32_t type, const Bytes& bytes) {
  return [=](GgufWriter& w) { w.add_raw(key, type, bytes); };
}

template <class T>
Spoil added(const std::string& key, T value) {
  return [=](GgufWriter& w) { w.add<T>(key, value); };
}

struct Fault {
  std::string name;
  Spoil spoil;
  std::string says;
};

/// Adds one case for each invalid value of a field.
template <class T, class Make, class Says>
void each(std::vector<Fault>& faults, const std::string& name, const std::vector<T>& values, Make make, Says says) {
  for (size_t i = 0; i < values.size(); ++i) {
    faults.push_back({name + std::to_string(i), make(values[i]), says(std::to_string(values[i]))});
  }
}

std::vector<Fault> faults() {
  const std::string longest(65535, 'k');
  std::vector<Fault> all{
      {"Nothing", [](GgufWriter&) {}, "it opened"},
      {"Magic", [](GgufWriter& w) { w.magic = 0x46554748; }, "does not start with \"GGUF\""},
      {"BigEndian", [](GgufWriter& w) { w.version = 0x03000000; }, "big-endian"},
      {"OneKeyTooMany", [](GgufWriter& w) { w.key_count = 2; }, "bad.gguf"},
      {"OneKeyTooFew", [](GgufWriter& w) { w.key_count = 0; }, "bad.gguf"},
      {"OneTensorTooMany", [](GgufWriter& w) { w.tensor_count = 2; }, "a tensor name"},
      {"LongestKey", added<uint32_t>(longest, 1), "it opened"},
      {"LongKey", added<uint32_t>(longest + "k", 1), "at most 65535 are valid"},
      {"EmptyKey", added<uint32_t>("", 1), "a key is empty"},
      {"DuplicateKey", added<float>("answer", 1), "a key 'answer' occurs twice"},
      {"StringsCount", raw("list", kGgufArray, joined(uint32_t{8}, kHuge)), "key 'list'"},
      {"ArrayOfArrays", raw("list", kGgufArray, joined(kGgufArray, uint64_t{1}, uint32_t{4}, uint64_t{1}, uint32_t{7})),
       "arrays of arrays"},
      {"Boolean", raw("flag", 7, joined(uint8_t{2})), "key 'flag': a boolean is 2"},
      {"Booleans", raw("flags", kGgufArray, joined(uint32_t{7}, uint64_t{3}, uint8_t{1}, uint8_t{0}, uint8_t{255})),
       "key 'flags': a boolean is 255"},
      {"DuplicateTensor", second(tensor("first")), "a tensor name 'first' occurs twice"},
      {"LongestTensorName", second(tensor(std::string(64, 'n'))), "it opened"},
      {"LongTensorName", second(tensor(std::string(65, 'n'))), "at most 64 are valid"},
      {"EmptyTensorName", second(tensor("")), "a tensor name is empty"},
      // The number of elements fits in 63 bits. The number of bytes overflows 64 bits. In the second case, only the
      // padding causes the overflow.
      {"ByteCountThatWraps", second(tensor("bad", {int64_t{1} << 62})), "need more than 2^64 bytes"},
      {"ByteCountThatWrapsPadded", second(tensor("bad", {4, 1073741823, 1073741825})),
       "tensor 'bad': 18446744073709551600 bytes at offset 32"},
      {"BlockMultiple",
       second(tensor("bad", {48, 2}, 102), [](auto& spec) { spec.type = traits(DType::kQ8_0).gguf_type; }),
       "tensor 'bad': row length 48 is not a multiple of the 32"},
      {"DataShorterThanShape", second(tensor("bad", {9}, 32)),
       "tensor 'bad': 36 bytes at offset 32 exceed the tensor data of 64 bytes"},
      {"OffsetNotAligned", second(tensor("bad", {1}, 32), [](auto& spec) { spec.offset = 36; }),
       "tensor 'bad': offset 36 is not a multiple of the alignment 32"},
      {"AlignmentLargerThanTheFile", added<uint32_t>("general.alignment", 0x80000000u),
       "tensor 'first': 32 bytes at offset 0 exceed the tensor data of 0 bytes"},
      {"AlignmentU64", added<uint64_t>("general.alignment", 32), "should be u32, found u64"},
      {"AlignmentString", [](GgufWriter& w) { w.add("general.alignment", "32"); }, "should be u32, found string"},
      {"AlignmentArray", [](GgufWriter& w) { w.add_array<uint32_t>("general.alignment", {32}); },
       "should be u32, found array"},
  };
  each<uint32_t>(
      all, "Version", {0, 1, 4, 0x7fffffff}, [](auto n) { return [n](GgufWriter& w) { w.version = n; }; },
      [](auto) { return "versions 2 and 3 are supported"; });
  // The second count, multiplied by the minimum size of a key or tensor, overflows to a few bytes.
  each<uint64_t>(
      all, "KeyCount", {kHuge, kHuge / 14 + 1, uint64_t{1} << 40, 1000},
      [](auto n) { return [n](GgufWriter& w) { w.key_count = n; }; }, [](auto) { return "keys cannot fit"; });
  each<uint64_t>(
      all, "TensorCount", {kHuge, kHuge / 33 + 1, uint64_t{1} << 40, 1000},
      [](auto n) { return [n](GgufWriter& w) { w.tensor_count = n; }; }, [](auto) { return "tensors cannot fit"; });
  each<uint64_t>(
      all, "StringLength", {kHuge, kHuge - 7, uint64_t{1} << 63, 100000},
      [](auto n) { return raw("text", 8, joined(n)); },
      [](const auto& n) { return "key 'text': a string has " + n + " bytes"; });
  // In the second case, count * 8 == 8 modulo 2^64.
  each<uint64_t>(
      all, "ArrayCount", {kHuge, (uint64_t{1} << 61) + 1, uint64_t{1} << 62, 1000},
      [](auto n) { return raw("list", kGgufArray, joined(uint32_t{10}, n)); },
      [](const auto& n) { return "key 'list': the value: " + n + " x 8 bytes do not fit"; });
  const auto unknown = [](const auto& n) { return "unknown value type " + n; };
  const std::vector<uint32_t> types{13, 255, 0x80000000, 0xffffffff};
  each<uint32_t>(all, "ValueType", types, [](auto n) { return raw("value", n, joined(uint64_t{0})); }, unknown);
  each<uint32_t>(
      all, "ElementType", types, [](auto n) { return raw("value", kGgufArray, joined(n, uint64_t{0})); }, unknown);
  each<uint32_t>(
      all, "DimensionCount", {0, 5, 0xffffffff},
      [](auto n) { return second(tensor("bad"), [n](auto& spec) { spec.dim_count = n; }); },
      [](const auto& n) { return "tensor 'bad': " + n + " dimensions"; });
  each<int64_t>(
      all, "Dimension", {0, -1, std::numeric_limits<int64_t>::min()},
      [](auto n) { return second(tensor("bad", {8, n})); },
      [](const auto& n) { return "tensor 'bad': dimension 1 has length " + n; });
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{kMax, 2},
                                           {int64_t{1} << 32, int64_t{1} << 32},
                                           {int64_t{1} << 16, int64_t{1} << 16, int64_t{1} << 16, int64_t{1} << 16},
                                           {2, 2, 2, kMax}}) {
    all.push_back({"DimensionProduct" + std::to_string(all.size()), second(tensor("bad", dims)),
                   "tensor 'bad': the number of elements exceeds 63 bits"});
  }
  // If a reader adds the tensor size or the start of the data to the second offset, the sum overflows to an offset
  // inside the file.
  each<uint64_t>(
      all, "Offset", {64, kHuge - 31, uint64_t{1} << 63},
      [](auto n) { return second(tensor("bad"), [n](auto& spec) { spec.offset = n; }); },
      [](const auto& n) { return "tensor 'bad': 32 bytes at offset " + n; });
  each<uint32_t>(
      all, "Alignment", {0, 1, 4, 24, 33, 0x80000001}, [](auto n) { return added<uint32_t>("general.alignment", n); },
      [](const auto& n) { return "'general.alignment' is " + n; });
  const auto typed = [](auto n) { return second(tensor("bad"), [n](auto& spec) { spec.type = n; }); };
  each<uint32_t>(all, "TensorType", {4, 0xffffffff}, typed,
                 [](const auto& n) { return "tensor 'bad': unknown tensor type " + n; });
  all.push_back(
      {"NewerTensorType", typed(1000u), "; the file is damaged or has a newer format: download it again, or "});
  // Valid files with unsupported tensor types.
  for (const auto& [number, name] :
       std::vector<std::pair<uint32_t, const char*>>{{9, "q8_1"}, {15, "q8_K"}, {28, "f64"}}) {
    all.push_back({std::string("Unsupported_") + name, typed(number),
                   std::string("tensor 'bad': type ") + name + " is not supported (at byte "});
  }
  all.push_back(
      {"UnsupportedTensorType", typed(9u), "; quantise the model to another type, such as q4_K_M; supported types"});
  // Tensor "long" is stored in bytes 32 to 96. Tensor "bad" has 32 bytes. The four offsets place "bad" in this order:
  // on "first", on the first half of "long", on the second half of "long", after "long".
  for (const auto& [offset, says] :
       std::vector<std::pair<uint64_t, const char*>>{{0, "overlaps tensor"},
                                                     {32, "overlaps tensor"},
                                                     {64, "tensor 'bad': overlaps tensor 'long'"},
                                                     {96, "it opened"}}) {
    const Spoil bad = second(tensor("bad"), [at = offset](auto& spec) { spec.offset = at; });
    all.push_back({"Overlap" + std::to_string(offset),
                   [bad](GgufWriter& w) {
                     w.add_tensor(tensor("long", {16}, 64));
                     bad(w);
                   },
                   says});
  }
  return all;
}

class GgufMalformed : public testing::TestWithParam<Fault> {};

TEST_P(GgufMalformed, ErrorNamesInvalidField) {
  EXPECT_THAT(error_after(GetParam().spoil), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(Files, GgufMalformed, testing::ValuesIn(faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shoal::models
