// Tests of buffers: placement, all forms of blocking access, and copies. No call may write outside of its tensor.
#pragma once

#include <algorithm>

#include "tests/devices/conformance/case.h"

namespace shoal::test {

class BufferSuite : public DeviceFixture {
 protected:
  BufferType& type() { return device().buffer_type(); }
};

TEST_P(BufferSuite, AllocatesAlignedMemory) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{4096}, size_t{1} << 20}) {
    const auto buffer = type().allocate(size);
    ASSERT_NE(buffer, nullptr);
    EXPECT_GE(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->base()) % type().alignment(), 0U);
    EXPECT_EQ(&buffer->type(), &type());
    EXPECT_EQ(buffer->is_host(), type().is_host());
    EXPECT_FALSE(buffer->is_multi());
  }
}

TEST_P(BufferSuite, AllocatesZeroBytes) {
  const auto buffer = type().allocate(0);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->base()) % type().alignment(), 0U);
  buffer->clear(1);
}

TEST_P(BufferSuite, OutOfMemoryErrorNamesDeviceAndSize) {
  try {
    type().allocate(size_t{1} << 55);
    FAIL() << "32 PiB were allocated";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(device().name()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("32.0 PiB"), std::string::npos) << error.what();
  }
}

TEST_P(BufferSuite, RefusesToPlaceTensorsAtInvalidOffsets) {
  const size_t alignment = type().alignment();
  const auto buffer = type().allocate(4 * alignment);
  TensorContext context;
  const auto floats = static_cast<int64_t>(alignment / sizeof(float));
  Tensor* fits = context.add("fits", DType::kF32, {floats, 1, 1, 1});
  Tensor* large = context.add("large", DType::kF32, {floats * 4, 1, 1, 1});
  EXPECT_THROW(buffer->place(*large, alignment), InvalidArgument);
  EXPECT_THROW(buffer->place(*fits, 4 * alignment), InvalidArgument);
  EXPECT_THROW(buffer->place(*fits, alignment / 2), InvalidArgument);
  EXPECT_EQ(fits->buffer, nullptr);
  buffer->place(*fits, 3 * alignment);
  EXPECT_EQ(fits->buffer, buffer.get());
  EXPECT_EQ(fits->data, buffer->base() + 3 * alignment);
  EXPECT_THROW(buffer->place(*fits, 0), InvalidArgument) << "placed twice";
}

TEST_P(BufferSuite, ReportsItsUsage) {
  const auto buffer = type().allocate(64);
  EXPECT_EQ(buffer->usage(), Usage::kAny);
  buffer->set_usage(Usage::kWeights);
  EXPECT_EQ(buffer->usage(), Usage::kWeights);
}

TEST_P(BufferSuite, SetsAndGetsAnyByteRange) {
  Tensor& x = placed("x", {33, 7, 1, 1});
  const std::vector<float> values = ramp(33 * 7);
  set_floats(x, values);
  EXPECT_EQ(get_floats(x), values);
  // A stored tensor is a sequence of bytes. So the range does not need to begin or end at the boundary of an element.
  std::vector<std::byte> expected(x.bytes());
  std::copy_n(reinterpret_cast<const std::byte*>(values.data()), expected.size(), expected.begin());
  const std::vector<std::byte> part(41, std::byte{0x5a});
  tensor_set(x, part.data(), 123, part.size());
  std::copy(part.begin(), part.end(), expected.begin() + 123);
  std::vector<std::byte> got(x.bytes() - 11);
  tensor_get(x, got.data(), 11, got.size());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + 11));
}

TEST_P(BufferSuite, FillReadsEachByteOnce) {
  constexpr int64_t kLarge = 2'300'007;  // larger than any staging memory
  Tensor& x = placed("x", {kLarge, 1, 1, 1});
  const std::vector<float> values = ramp(kLarge);
  const auto bytes = std::as_bytes(std::span(values));
  std::vector<uint8_t> reads(x.bytes());
  const ByteReader read = [&](size_t offset, std::span<std::byte> to) {
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    for (size_t i = 0; i < to.size(); ++i) ++reads[offset + i];
  };
  x.buffer->fill(x, 0, 123, read);
  x.buffer->fill(x, 123, 400, read);
  x.buffer->fill(x, 523, x.bytes() - 523, read);
  EXPECT_TRUE(get_floats(x) == values);
  EXPECT_TRUE(reads == std::vector<uint8_t>(x.bytes(), 1));
  EXPECT_THROW(x.buffer->fill(x, 0, x.bytes() + 1, read), InvalidArgument);
  const ByteReader fails = [](size_t, std::span<std::byte>) { fail<InvalidArgument>("the file is too short"); };
  EXPECT_THROW(x.buffer->fill(x, 0, 4, fails), InvalidArgument);
}

TEST_P(BufferSuite, RefusesRangesOutsideTheTensor) {
  Tensor& x = placed("x", {8, 2, 1, 1});
  std::vector<std::byte> bytes(256);
  EXPECT_THROW(tensor_set(x, bytes.data(), 0, 65), InvalidArgument);
  EXPECT_THROW(tensor_get(x, bytes.data(), 64, 1), InvalidArgument);
  EXPECT_THROW(tensor_get(x, bytes.data(), ~size_t{0}, 2), InvalidArgument) << "offset + size wraps";
  EXPECT_THROW(x.buffer->memset(x, 0, 60, 5), InvalidArgument);
  EXPECT_THROW(x.buffer->set_2d(x, bytes.data(), 16, {0, 16, 3, 32}), InvalidArgument);
  EXPECT_THROW(x.buffer->get_2d(x, bytes.data(), 16, {0, 16, 3, ~size_t{0} / 2}), InvalidArgument);
  tensor_set(x, bytes.data(), 64, 0);  // zero bytes at the end are legal
}

TEST_P(BufferSuite, MemsetSetsOnlyItsRange) {
  Tensor& x = placed("x", {16, 1, 1, 1});
  x.buffer->memset(x, 0xff, 0, x.bytes());
  x.buffer->memset(x, 0, 4, 8);
  std::vector<uint8_t> got(x.bytes());
  tensor_get(x, got.data(), 0, got.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i >= 4 && i < 12 ? 0 : 0xff) << i;
}

TEST_P(BufferSuite, ClearSetsEveryByte) {
  Tensor& x = placed("x", {100, 1, 1, 1});
  x.buffer->clear(0x21);
  std::vector<uint8_t> got(x.bytes());
  tensor_get(x, got.data(), 0, got.size());
  EXPECT_EQ(std::count(got.begin(), got.end(), 0x21), static_cast<std::ptrdiff_t>(got.size()));
}

TEST_P(BufferSuite, CopiesRectanglesInBothDirections) {
  Tensor& x = placed("x", {10, 6, 1, 1});
  set_floats(x, ramp(60));
  // Accesses columns 2 to 4 of rows 1, 3 and 5. The host array has 5 floats per row.
  const std::vector<float> host = ramp(15, -1.0f);
  const Rows rows{(10 + 2) * sizeof(float), 3 * sizeof(float), 3, 20 * sizeof(float)};
  x.buffer->set_2d(x, host.data(), 5 * sizeof(float), rows);
  std::vector<float> expected = ramp(60);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t column = 0; column < 3; ++column) expected[(2 * row + 1) * 10 + 2 + column] = host[row * 5 + column];
  }
  EXPECT_EQ(get_floats(x), expected);
  std::vector<float> back(15, 99.0f);
  x.buffer->get_2d(x, back.data(), 5 * sizeof(float), rows);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(back[i], i % 5 < 3 ? host[i] : 99.0f) << i;
}

TEST_P(BufferSuite, ReadsAndWritesViewsInViewOrder) {
  Tensor& x = placed("x", {3, 4, 1, 1});
  set_floats(x, ramp(12));
  Graph graph;
  Tensor* turned = transpose(graph, &x);             // shape [4, 3]
  Tensor* middle = slice(graph, turned, {0, 1, 2});  // rows 1 and 2 of x
  Tensor* rows = slice(graph, &x, {0, 1, 2});        // elements 1 and 2 of each row of x
  for (Tensor* view : {turned, middle, rows}) Buffer::place_view(*view);
  EXPECT_EQ(get_floats(*turned), (std::vector<float>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}));
  EXPECT_EQ(get_floats(*middle), (std::vector<float>{3, 6, 4, 7, 5, 8}));
  EXPECT_EQ(get_floats(*rows), (std::vector<float>{1, 2, 4, 5, 7, 8, 10, 11}));
  const std::vector<float> two{-1, -2};
  tensor_set(*middle, two.data(), 4, 8);  // elements 1 and 2 of the view: x(0, 2) and x(1, 1)
  std::vector<float> expected = ramp(12);
  expected[6] = -1;
  expected[4] = -2;
  EXPECT_EQ(get_floats(x), expected);
}

TEST_P(BufferSuite, ViewsNeedAPlacedBase) {
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {4, 4, 1, 1});
  Graph graph;
  Tensor* view = transpose(graph, x);
  EXPECT_THROW(Buffer::place_view(*view), InvalidArgument);
  EXPECT_THROW(Buffer::place_view(*x), InvalidArgument) << "not a view";
  float value = 0;
  EXPECT_THROW(tensor_get(*x, &value, 0, 4), InvalidArgument) << "no memory";
}

TEST_P(BufferSuite, CopiesTensorsAndViews) {
  Tensor& x = placed("x", {5, 6, 1, 1});
  Tensor& y = placed("y", {5, 6, 1, 1});
  Tensor& t = placed("t", {6, 5, 1, 1});
  set_floats(x, ramp(30));
  tensor_copy(x, y);
  EXPECT_EQ(get_floats(y), ramp(30));
  Graph graph;
  Tensor* turned = transpose(graph, &x);
  Buffer::place_view(*turned);
  tensor_copy(*turned, t);
  EXPECT_EQ(get_floats(t), get_floats(*turned));
  EXPECT_THROW(tensor_copy(x, t), InvalidArgument) << "different shape";
}

TEST_P(BufferSuite, AliasUsesMemoryOfItsTensor) {
  Tensor& x = placed("x", {3, 4, 1, 1});
  set_floats(x, ramp(12));
  TensorContext context;
  Tensor* name = context.add("name", DType::kF32, {3, 4, 1, 1});
  Tensor* other_shape = context.add("other", DType::kF32, {4, 3, 1, 1});
  x.buffer->alias(*name, x);
  EXPECT_EQ(get_floats(*name), ramp(12));
  set_floats(*name, ramp(12, 3.0f));
  EXPECT_EQ(get_floats(x), ramp(12, 3.0f));
  EXPECT_THROW(x.buffer->alias(*name, x), InvalidArgument) << "already placed";
  EXPECT_THROW(x.buffer->alias(*other_shape, x), InvalidArgument);
  const auto backend = new_backend();
  std::vector<float> seen(12);
  const std::vector<float> values = ramp(12, 5.0f);
  backend->set_async(*name, values.data(), 0, 48);
  backend->get_async(x, seen.data(), 0, 48);
  backend->synchronize();
  EXPECT_EQ(seen, values);
  x.buffer->unplace(*name);
  EXPECT_EQ(name->buffer, nullptr);
  EXPECT_THROW(x.buffer->unplace(*name), InvalidArgument) << "already removed";
  EXPECT_EQ(get_floats(x), values);
  x.buffer->alias(*name, x);
  EXPECT_EQ(get_floats(*name), values);
  x.buffer->unplace(*name);
}

TEST_P(BufferSuite, ViewsMayHaveAliases) {
  Tensor& x = placed("x", {3, 4, 1, 1});
  set_floats(x, ramp(12));
  TensorContext context;
  Tensor* twin = context.add("twin", DType::kF32, {3, 4, 1, 1});
  Graph graph;
  Tensor* turned = transpose(graph, &x);
  Tensor* name = transpose(graph, twin);
  Buffer::place_view(*turned);
  turned->buffer->alias(*name, *turned);
  const std::vector<float> expected{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11};
  EXPECT_EQ(get_floats(*name), expected);
  turned->buffer->unplace(*turned);
  EXPECT_EQ(get_floats(*name), expected);
  x.buffer->unplace(*name);
  Buffer::place_view(*turned);
  EXPECT_EQ(get_floats(*turned), expected);
}

TEST_P(BufferSuite, ReleasedBufferUnplacesItsTensors) {
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {3, 4, 1, 1});
  Tensor* name = context.add("name", DType::kF32, {3, 4, 1, 1});
  Tensor* kept = context.add("kept", DType::kF32, {3, 4, 1, 1});
  Graph graph;
  Tensor* view = transpose(graph, x);
  const std::vector<Tensor*> both{x, kept};
  for (const bool is_reset : {true, false}) {
    auto buffer = allocate_tensors({&x, 1}, type(), Usage::kWeights);
    ASSERT_NE(buffer, nullptr);
    const auto other = allocate_tensors({&kept, 1}, type(), Usage::kWeights);
    Buffer::place_view(*view);
    x->buffer->alias(*name, *x);
    set_floats(*x, ramp(12));
    set_floats(*kept, ramp(12, 3.0f));
    is_reset ? buffer->reset() : buffer.reset();
    for (const Tensor* tensor : {x, name, view}) {
      EXPECT_EQ(tensor->buffer, nullptr) << tensor->name;
      EXPECT_EQ(tensor->data, nullptr) << tensor->name;
    }
    EXPECT_THROW(get_floats(*x), InvalidArgument);
    const auto again = allocate_tensors(both, type(), Usage::kWeights);
    ASSERT_NE(again, nullptr);
    set_floats(*x, ramp(12, 2.0f));
    Buffer::place_view(*view);
    EXPECT_EQ(get_floats(*view), (std::vector<float>{0, 6, 12, 18, 2, 8, 14, 20, 4, 10, 16, 22}));
    EXPECT_EQ(get_floats(*kept), ramp(12, 3.0f));
    buffer.reset();  // must not unplace tensors that are in other buffers now
    EXPECT_EQ(get_floats(*x), ramp(12, 2.0f));
  }
}

TEST_P(BufferSuite, BufferMayOutliveItsTensors) {
  std::unique_ptr<Buffer> buffer;
  {
    TensorContext context;
    context.add("x", DType::kF32, {3, 4, 1, 1});
    buffer = allocate_tensors(context.tensors(), type(), Usage::kWeights);
    Graph graph;
    Tensor* view = transpose(graph, context.find("x"));
    Buffer::place_view(*view);
  }
  buffer->clear(1);
  buffer->reset();
  // This tensor probably has the same address as the destroyed tensor.
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {5, 4, 1, 1});
  const auto other = allocate_tensors({&x, 1}, type(), Usage::kWeights);
  set_floats(*x, ramp(20));
  buffer.reset();
  EXPECT_EQ(get_floats(*x), ramp(20));
}

TEST_P(BufferSuite, ReleasedBufferDoesNotUnplaceCopiesOfTensors) {
  Tensor copy;
  {
    TensorContext context;
    Tensor* x = context.add("x", DType::kF32, {3, 4, 1, 1});
    const auto buffer = allocate_tensors({&x, 1}, type(), Usage::kWeights);
    copy = *x;
    EXPECT_EQ(copy.buffer, buffer.get());
  }
  EXPECT_NE(copy.data, nullptr) << "the owner of the copy must clear it";
}

TEST_P(BufferSuite, WritesNothingOutsideTheTensor) {
  TensorContext context;
  std::vector<Tensor*> tensors;
  for (const char* name : {"before", "x", "after"}) {
    tensors.push_back(context.add(name, DType::kF32, {29, 3, 1, 1}));  // the size is not a multiple of the alignment
  }
  const auto buffer = allocate_tensors(tensors, type(), Usage::kAny);
  buffer->clear(0xa5);
  Tensor& x = *tensors[1];
  const std::vector<float> values = ramp(29 * 3);
  set_floats(x, values);
  x.buffer->memset(x, 0, 0, x.bytes());
  x.buffer->set_2d(x, values.data(), 29 * 4, {0, 29 * 4, 3, 29 * 4});
  Tensor& other = placed("other", {29, 3, 1, 1});
  set_floats(other, values);
  tensor_copy(other, x);
  EXPECT_EQ(get_floats(x), values);
  for (const Tensor* guard : {tensors[0], tensors[2]}) {
    std::vector<uint8_t> bytes(guard->bytes());
    tensor_get(*guard, bytes.data(), 0, bytes.size());
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xa5), static_cast<std::ptrdiff_t>(bytes.size())) << guard->name;
  }
}

TEST_P(BufferSuite, QuantisedTensorsAreReadAsBytes) {
  Tensor& x = placed("x", {64, 3, 1, 1}, DType::kQ8_0);
  std::vector<uint8_t> bytes(x.bytes());
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  tensor_set(x, bytes.data(), 0, bytes.size());
  std::vector<uint8_t> part(50);
  tensor_get(x, part.data(), 77, part.size());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 77));
}

TEST_P(BufferSuite, AcceptsZeroSizeTensors) {
  Tensor& x = placed("x", {16, 0, 4, 1});
  EXPECT_NE(x.buffer, nullptr);
  tensor_set(x, nullptr, 0, 0);
  tensor_get(x, nullptr, 0, 0);
  Tensor& y = placed("y", {16, 0, 4, 1});
  tensor_copy(x, y);
}

}  // namespace shoal::test
