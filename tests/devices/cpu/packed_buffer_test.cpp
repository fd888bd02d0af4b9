// Packed weights must behave like weights in plain memory, for every range that is written or read.
#include "devices/cpu/packed_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <random>
#include <thread>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/cpu/isa.h"
#include "graph/ops/ops.h"

namespace shoal::cpu {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

Device& device() {
  return Registry::instance().device("CPU0");
}

int64_t group_rows() {
  return kernels().panel_rows;
}

bool has_packed_form(DType dtype) {
  return kernels().weights[static_cast<size_t>(dtype)].packed.pack != nullptr;
}

Bytes random_bytes(Random& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes bytes_of(const Tensor& tensor) {
  Bytes bytes(tensor.bytes());
  if (!bytes.empty()) tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

void set_bytes(Tensor& tensor, const Bytes& bytes) {
  tensor_set(tensor, bytes.data(), 0, bytes.size());
}

/// The bytes [offset, offset + size) of a tensor.
struct Range {
  size_t offset, size;
};

/// A random range of a tensor, which may be empty. Many ranges begin at the start of a row, and many are short.
Range random_range(Random& random, const Tensor& tensor) {
  const size_t bytes = tensor.bytes(), row = bytes_for(tensor.dtype, tensor.shape[0]);
  Range range{random() % (bytes + 1), 0};
  if (random() % 2) range.offset -= range.offset % row;
  range.size = random() % (bytes - range.offset + 1);
  if (random() % 3 == 0) range.size = std::min<size_t>(range.size, random() % 40);
  return range;
}

Rows random_rows(Random& random, const Tensor& tensor) {
  const size_t bytes = tensor.bytes(), row = bytes_for(tensor.dtype, tensor.shape[0]);
  Rows rows;
  rows.row_bytes = random() % 2 ? row : 1 + random() % std::min(bytes, 2 * row);
  rows.stride = rows.row_bytes + (random() % 2 ? 0 : random() % (row + 1));
  rows.offset = random() % (bytes - rows.row_bytes + 1);
  if (random() % 2) rows.offset -= rows.offset % row;
  rows.rows = 1 + random() % (1 + (bytes - rows.offset - rows.row_bytes) / rows.stride);
  return rows;
}

/// Two equal weights, one in packed memory and one in plain memory. Each weight has the same views.
class Twins {
 public:
  Twins(DType dtype, const Shape& shape) {
    packed_ = weights_.add("packed", dtype, shape);
    plain_ = weights_.add("plain", dtype, shape);
    packed_memory_ = allocate_tensors(std::span(&packed_, 1), device().weights_type(), Usage::kWeights);
    plain_memory_ = allocate_tensors(std::span(&plain_, 1), device().buffer_type(), Usage::kWeights);
    faces_.emplace_back(packed_, plain_);
    add_views();
    const Bytes zeros(plain_->bytes());
    set_bytes(*packed_, zeros);
    set_bytes(*plain_, zeros);
  }
  const Tensor& packed() const { return *packed_; }
  size_t faces() const { return faces_.size(); }

  /// Writes the same bytes to both weights, or reads the same range of both weights.
  void access(Random& random) {
    const auto [packed, plain] = faces_[random() % faces_.size()];
    SCOPED_TRACE(describe(*plain));
    switch (random() % 5) {
      case 0:
        return set(random, *packed, *plain);
      case 1:
        return memset(random, *packed, *plain);
      case 2:
        return set_2d(random, *packed, *plain);
      case 3:
        return get(random, *packed, *plain);
      default:
        return get_2d(random, *packed, *plain);
    }
  }
  void expect_same() const {
    for (const auto& [packed, plain] : faces_) ASSERT_EQ(bytes_of(*packed), bytes_of(*plain)) << describe(*plain);
  }

 private:
  template <class Build>
  void add_view(Build&& build) {
    Tensor* packed = build(packed_);
    Tensor* plain = build(plain_);
    Buffer::place_view(*packed);
    Buffer::place_view(*plain);
    faces_.emplace_back(packed, plain);
  }

  void add_views() {
    const Shape shape = plain_->shape;
    const int64_t rows = shape[1], group = group_rows(), block = traits(plain_->dtype).block_elems;
    const auto add_slice = [&](SliceParams part) {
      if (part.length <= 0) return;
      add_view([&](Tensor* x) { return slice(graph_, x, part); });
    };
    add_slice({1, group, std::min(group, rows - group)});
    add_slice({1, group, rows - group});
    add_slice({1, 3, rows - 5});
    add_slice({1, rows - 1, 1});
    add_slice({0, block, shape[0] - 2 * block});
    if (shape[2] > 1) {
      add_slice({2, 1, shape[2] - 1});
      add_view([&](Tensor* x) { return permute(graph_, x, {0, 2, 1, 3}); });
      add_view([&](Tensor* x) { return permute(graph_, x, {0, 3, 2, 1}); });
    }
    if (block == 1) add_view([&](Tensor* x) { return transpose(graph_, x); });
    add_view([&](Tensor* x) { return reshape(graph_, x, {shape[0], -1, 1, 1}); });
    add_view([&](Tensor* x) { return reshape(graph_, x, {shape[0] * rows, 1, shape[2], shape[3]}); });
  }

  static void set(Random& random, Tensor& packed, Tensor& plain) {
    const Range range = random_range(random, plain);
    const Bytes data = random_bytes(random, range.size);
    tensor_set(packed, data.data(), range.offset, range.size);
    tensor_set(plain, data.data(), range.offset, range.size);
  }
  static void memset(Random& random, Tensor& packed, Tensor& plain) {
    const Range range = random_range(random, plain);
    const auto value = static_cast<uint8_t>(random());
    packed.buffer->memset(packed, value, range.offset, range.size);
    plain.buffer->memset(plain, value, range.offset, range.size);
  }
  static void set_2d(Random& random, Tensor& packed, Tensor& plain) {
    const Rows rows = random_rows(random, plain);
    const size_t host_stride = rows.row_bytes + random() % 9;
    const Bytes data = random_bytes(random, host_stride * rows.rows);
    packed.buffer->set_2d(packed, data.data(), host_stride, rows);
    plain.buffer->set_2d(plain, data.data(), host_stride, rows);
  }
  static void get(Random& random, const Tensor& packed, const Tensor& plain) {
    const Range range = random_range(random, plain);
    Bytes got(range.size + 1, std::byte{0x5a}), expected = got;
    tensor_get(packed, got.data(), range.offset, range.size);
    tensor_get(plain, expected.data(), range.offset, range.size);
    ASSERT_EQ(got, expected) << range.size << " bytes from " << range.offset;
  }
  static void get_2d(Random& random, const Tensor& packed, const Tensor& plain) {
    const Rows rows = random_rows(random, plain);
    const size_t host_stride = rows.row_bytes + random() % 9;
    Bytes got(host_stride * rows.rows, std::byte{0x5a}), expected = got;
    packed.buffer->get_2d(packed, got.data(), host_stride, rows);
    plain.buffer->get_2d(plain, expected.data(), host_stride, rows);
    ASSERT_EQ(got, expected) << rows.rows << " rows of " << rows.row_bytes << " bytes from " << rows.offset;
  }

  TensorContext weights_;
  Graph graph_;
  Tensor *packed_, *plain_;
  std::unique_ptr<Buffer> packed_memory_, plain_memory_;
  std::vector<std::pair<Tensor*, Tensor*>> faces_;
};

class PackedBuffer : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int64_t block() const { return traits(dtype()).block_elems; }
};

TEST_P(PackedBuffer, ReadsAndWritesGiveSameBytesAsPlainMemory) {
  Random random(static_cast<uint64_t>(dtype()) + 1);
  for (const int64_t k : block() == 1 ? std::vector<int64_t>{1, 37, 130} : std::vector{block(), 3 * block()}) {
    for (const Shape& shape : {Shape{k, 16, 1, 1}, {k, 33, 1, 1}, {k, 17, 3, 1}, {k, 47, 2, 2}, {k, 15, 1, 1}}) {
      Twins twins(dtype(), shape);
      SCOPED_TRACE(describe(twins.packed()));
      ASSERT_EQ(is_packed(twins.packed()), has_packed_form(dtype()) && shape[1] >= 16);
      ASSERT_GE(twins.faces(), 5u);
      for (int i = 0; i < 60; ++i) {
        ASSERT_NO_FATAL_FAILURE(twins.access(random));
        if (i % 10 == 9) {
          ASSERT_NO_FATAL_FAILURE(twins.expect_same());
        }
      }
    }
  }
}

/// Packed memory must store bytes in a different order than plain memory. Otherwise, equal bytes in the tests above
/// would prove nothing.
TEST_P(PackedBuffer, RowsAreInterleaved) {
  if (!has_packed_form(dtype())) GTEST_SKIP() << "not packed";
  TensorContext weights;
  Tensor* weight = weights.add("w", dtype(), {2 * block(), 32, 1, 1});
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  EXPECT_FALSE(memory->is_host());
  Random random(7);
  const Bytes bytes = random_bytes(random, weight->bytes());
  set_bytes(*weight, bytes);
  EXPECT_NE(Bytes(weight->data, weight->data + bytes.size()), bytes);
  EXPECT_EQ(bytes_of(*weight), bytes);
}

TEST_P(PackedBuffer, SizeIsWholeGroupsPlusPadding) {
  BufferType& type = device().weights_type();
  const int64_t group = group_rows();
  TensorContext weights;
  const auto size_of = [&](const Shape& shape) {
    return type.alloc_size(*weights.add(std::to_string(weights.tensors().size()), dtype(), shape));
  };
  const int64_t k = 4 * std::max<int64_t>(block(), 32);
  EXPECT_EQ(size_of({k, 15, 3, 1}), bytes_for(dtype(), k * 15 * 3)) << "too few rows";
  EXPECT_EQ(size_of({k, 0, 3, 1}), 0u);
  for (const int64_t rows : {16, 17, 31, 32, 33, 100}) {
    const int64_t matrices = 3, groups = (rows + group - 1) / group * matrices;
    const size_t size = size_of({k, rows, matrices, 1});
    if (!has_packed_form(dtype())) {
      EXPECT_EQ(size, bytes_for(dtype(), k * rows * matrices));
      continue;
    }
    const size_t least = bytes_for(dtype(), k * group * groups);
    EXPECT_GE(size, least) << rows;
    EXPECT_LE(size, least + least / 32 + static_cast<size_t>(groups) * 63) << rows;
    EXPECT_EQ(size % static_cast<size_t>(groups), 0u) << rows;
    EXPECT_EQ(size, size_of({k, (rows + group - 1) / group * group, matrices, 1})) << rows;
  }
}

TEST_P(PackedBuffer, WritesDoNotAffectNeighbouringTensors) {
  TensorContext weights;
  for (const int64_t rows : {17, 3, 33, 16, 1}) {
    weights.add(std::to_string(rows), dtype(), {3 * block(), rows, 2, 1});
  }
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  Random random(3);
  std::vector<Bytes> expected;
  for (Tensor* weight : weights.tensors())
    set_bytes(*weight, expected.emplace_back(random_bytes(random, weight->bytes())));
  const auto expect_all = [&](const std::string& changed) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(bytes_of(*weights.tensors()[i]), expected[i]) << i << " after a change of " << changed;
    }
  };
  expect_all("all");
  for (size_t i = 0; i < expected.size(); ++i) {
    Tensor& weight = *weights.tensors()[i];
    set_bytes(weight, expected[i] = random_bytes(random, weight.bytes()));
    expect_all(weight.name);
    weight.buffer->memset(weight, 0x77, 1, weight.bytes() - 1);
    std::fill(expected[i].begin() + 1, expected[i].end(), std::byte{0x77});
    expect_all(weight.name);
  }
}

/// Four threads write different bytes of the same rows.
TEST_P(PackedBuffer, ThreadsMayWriteBytesOfOneGroup) {
  constexpr size_t kPiece = 7, kThreads = 4;
  TensorContext weights;
  Tensor* weight = weights.add("w", dtype(), {2 * block(), 2 * group_rows() + 17, 1, 1});
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  Random random(11);
  for (int round = 0; round < 4; ++round) {
    const Bytes expected = random_bytes(random, weight->bytes());
    std::latch together(kThreads);
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        together.arrive_and_wait();
        for (size_t at = t * kPiece; at < expected.size(); at += kThreads * kPiece) {
          const size_t size = std::min(kPiece, expected.size() - at);
          weight->buffer->set(*weight, expected.data() + at, at, size);
        }
      });
    }
    threads.clear();
    ASSERT_EQ(bytes_of(*weight), expected) << "round " << round;
  }
}

/// One thread overwrites whole groups of interleaved rows without reading the old bytes of these groups. At the same
/// time, another thread writes a part of a group.
TEST_P(PackedBuffer, ThreadsMayWriteWholeAndPartialGroups) {
  const auto rows = static_cast<size_t>(group_rows());
  TensorContext weights;
  Tensor* weight = weights.add("w", dtype(), {2 * block(), 6 * group_rows(), 1, 1});
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  const size_t row = weight->strides[1], half = 3 * rows * row + 5;  // `half` is inside the fourth group
  Random random(13);
  for (int round = 0; round < 20; ++round) {
    const Bytes expected = random_bytes(random, weight->bytes());
    std::latch together(2);
    const auto set = [&](size_t begin, size_t end) {
      together.arrive_and_wait();
      weight->buffer->set(*weight, expected.data() + begin, begin, end - begin);
    };
    std::jthread other(set, half, expected.size());
    set(0, half);
    other.join();
    ASSERT_EQ(bytes_of(*weight), expected) << "round " << round;
  }
}

std::vector<DType> dtypes() {
  std::vector<DType> all;
  for (int i = 0; i < kDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

INSTANTIATE_TEST_SUITE_P(, PackedBuffer, ::testing::ValuesIn(dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Tests of placement in packed memory.

Tensor* add_weight(TensorContext& weights, const char* name, int64_t rows = 33, DType dtype = DType::kQ4_0) {
  return weights.add(name, dtype, {128, rows, 1, 1});
}

std::unique_ptr<Buffer> room_for(const TensorContext& weights) {
  const StaticLayout layout = layout_tensors(weights.tensors(), device().weights_type());
  return device().weights_type().allocate(layout.total_bytes());
}

Bytes filled(const Tensor& tensor, uint8_t value) {
  return Bytes(tensor.bytes(), static_cast<std::byte>(value));
}

TEST(PackedPlacement, AcceptsOnlyWeights) {
  BufferType& type = device().weights_type();
  TensorContext persistent;
  Graph graph;
  Tensor* cache = persistent.add("cache", DType::kF16, {64, 64, 1, 1}, Role::kCache);
  Tensor* input = graph.input("input", DType::kF32, {64, 64, 1, 1});
  Tensor* node = scale(graph, input, {2.0f, 0});
  Tensor* weight = add_weight(persistent, "weight");
  const auto memory = type.allocate(size_t{1} << 20);
  for (Tensor* tensor : {cache, input, node}) {
    EXPECT_THROW(memory->place(*tensor, 0), InvalidArgument) << tensor->name;
    EXPECT_EQ(tensor->buffer, nullptr) << tensor->name;
    EXPECT_EQ(tensor->data, nullptr) << tensor->name;
    EXPECT_THROW(type.allocate_tensors(std::span(&tensor, 1), Usage::kAny), InvalidArgument) << tensor->name;
    EXPECT_EQ(tensor->buffer, nullptr) << tensor->name;
  }
  memory->place(*weight, 0);
  EXPECT_TRUE(is_packed(*weight));
  Tensor* view = slice(graph, weight, {1, 1, 8});
  Buffer::place_view(*view);
  EXPECT_TRUE(is_packed(*view));
  EXPECT_FALSE(packed_matrices(*view).has_value()) << "the view begins inside a group";
}

TEST(PackedPlacement, OnlyViewsThatBeginAtAGroupArePacked) {
  TensorContext weights;
  Tensor* weight = weights.add("w", DType::kF32, {48, 3 * group_rows() + 17, 3, 2});
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  Graph graph;
  const auto where = [&](Tensor* view) -> std::optional<size_t> {
    Buffer::place_view(*view);
    const auto matrices = packed_matrices(*view);
    if (!matrices) return std::nullopt;
    return static_cast<size_t>(matrices->first - weight->data);
  };
  const auto all = packed_matrices(*weight);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->first, weight->data);
  EXPECT_GE(all->group_bytes, 48 * 4 * static_cast<size_t>(group_rows()));
  EXPECT_EQ(where(slice(graph, weight, {1, 0, 5})), 0u);
  EXPECT_EQ(where(slice(graph, weight, {1, 2 * group_rows(), 3})), 2 * all->group_bytes);
  EXPECT_EQ(where(slice(graph, slice(graph, weight, {3, 1, 1}), {2, 1, 2})), 4 * all->matrix_bytes);
  EXPECT_EQ(where(slice(graph, weight, {1, 1, group_rows()})), std::nullopt) << "begins inside a group";
  EXPECT_EQ(where(slice(graph, weight, {0, 0, 32})), std::nullopt) << "parts of rows";
  EXPECT_EQ(where(transpose(graph, weight)), std::nullopt);
  EXPECT_EQ(where(permute(graph, weight, {0, 1, 3, 2})), std::nullopt) << "matrices in another order";
  EXPECT_EQ(where(slice(graph, weight, {2, 0, 2})), std::nullopt) << "matrices with gaps between them";
  EXPECT_EQ(where(reshape(graph, weight, {48, -1, 1, 1})), std::nullopt) << "rows across matrices";
  EXPECT_EQ(where(reshape(graph, weight, {24, -1, 3, 2})), std::nullopt) << "other rows";
}

TEST(PackedPlacement, AliasesMustReferToWholeWeights) {
  TensorContext weights;
  Tensor* weight = add_weight(weights, "weight");
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  Random random(5);
  set_bytes(*weight, random_bytes(random, weight->bytes()));
  TensorContext names;
  Tensor* name = add_weight(names, "name");
  memory->alias(*name, *weight);
  EXPECT_EQ(bytes_of(*name), bytes_of(*weight));
  EXPECT_TRUE(is_packed(*name));
  set_bytes(*name, random_bytes(random, weight->bytes()));
  EXPECT_EQ(bytes_of(*name), bytes_of(*weight));
  memory->unplace(*name);
  memory->clear(3);
  EXPECT_EQ(bytes_of(*weight), filled(*weight, 3));

  // A tensor that is not a view cannot be an alias of only some rows of a weight, because such a tensor does not record
  // which rows of the weight it contains.
  Graph graph;
  Tensor* view = slice(graph, weight, {1, group_rows(), 17});
  Buffer::place_view(*view);
  Tensor* part = add_weight(names, "part", 17);
  EXPECT_THROW(memory->alias(*part, *view), InvalidArgument);
  EXPECT_EQ(part->buffer, nullptr);
  EXPECT_EQ(part->data, nullptr);
}

TEST(PackedPlacement, ClearingSetsEveryByte) {
  TensorContext weights;
  for (int i = 0; i < kDTypeCount; ++i) {
    weights.add(std::to_string(i), static_cast<DType>(i), {768, 33, 2, 1});
    weights.add(std::to_string(i) + " few rows", static_cast<DType>(i), {768, 3, 1, 1});
  }
  const auto memory = allocate_tensors(weights.tensors(), device().weights_type(), Usage::kWeights);
  for (const uint8_t value : {0, 1, 0x80, 0xff}) {
    memory->clear(value);
    for (const Tensor* weight : weights.tensors()) ASSERT_EQ(bytes_of(*weight), filled(*weight, value)) << weight->name;
  }
}

TEST(PackedPlacement, UnplacedWeightsAreNoLongerPacked) {
  for (const bool all : {false, true}) {
    TensorContext weights;
    Tensor* weight = add_weight(weights, "weight");
    const auto memory = room_for(weights);
    memory->place(*weight, 0);
    if (all) {
      memory->reset();
      weight->buffer = nullptr;
      weight->data = nullptr;
    } else {
      memory->unplace(*weight);
    }
    EXPECT_EQ(weight->buffer, nullptr);
    // A tensor that is not packed is placed at the same address.
    Tensor* plain = add_weight(weights, "plain", 8);
    memory->place(*plain, 0);
    memory->clear(9);
    EXPECT_EQ(bytes_of(*plain), filled(*plain, 9)) << all;
    memory->unplace(*plain);
    memory->place(*weight, 0);
    memory->clear(10);
    EXPECT_EQ(bytes_of(*weight), filled(*weight, 10)) << all;
  }
}

/// Programs may destroy graphs and models before the buffers of their tensors.
TEST(PackedPlacement, BufferCanBeClearedAfterTensorsAreDestroyed) {
  auto weights = std::make_unique<TensorContext>();
  for (const char* name : {"a", "b", "c"}) add_weight(*weights, name);
  const auto memory = allocate_tensors(weights->tensors(), device().weights_type(), Usage::kWeights);
  const size_t offset = static_cast<size_t>(weights->tensors()[1]->data - memory->base());
  weights.reset();
  memory->clear(0xa5);
  TensorContext others;
  Tensor* same = add_weight(others, "same");
  memory->place(*same, offset);
  EXPECT_EQ(bytes_of(*same), filled(*same, 0xa5));
  memory->clear(7);
  EXPECT_EQ(bytes_of(*same), filled(*same, 7));
}

TEST(PackedPlacement, CopiesBetweenPackedAndPlainMemory) {
  TensorContext weights;
  Tensor *packed = add_weight(weights, "packed"), *plain = add_weight(weights, "plain"),
         *back = add_weight(weights, "back");
  const auto memory = allocate_tensors(std::vector{packed, back}, device().weights_type(), Usage::kWeights);
  const auto host = allocate_tensors(std::vector{plain}, device().buffer_type(), Usage::kWeights);
  Random random(17);
  const Bytes bytes = random_bytes(random, plain->bytes());
  set_bytes(*plain, bytes);
  tensor_copy(*plain, *packed);
  EXPECT_EQ(bytes_of(*packed), bytes);
  tensor_copy(*packed, *back);
  EXPECT_EQ(bytes_of(*back), bytes);
  set_bytes(*plain, Bytes(bytes.size()));
  tensor_copy(*back, *plain);
  EXPECT_EQ(bytes_of(*plain), bytes);
  // Copies rows 5 to 24 to rows 2 to 21, so the position of a row inside its group changes.
  Graph graph;
  Tensor *from = slice(graph, packed, {1, 5, 20}), *to = slice(graph, back, {1, 2, 20});
  Buffer::place_view(*from);
  Buffer::place_view(*to);
  tensor_copy(*from, *to);
  EXPECT_EQ(bytes_of(*to), bytes_of(*from));
  Bytes expected = bytes;
  const size_t row = plain->strides[1];
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(5 * row), 20 * row,
              expected.begin() + static_cast<ptrdiff_t>(2 * row));
  EXPECT_EQ(bytes_of(*back), expected);
}

}  // namespace
}  // namespace shoal::cpu
