// Model-based test. Random calls make the same changes to a tensor of a meta device and to a plain array. The calls are
// blocking accesses, queued accesses, copies and graphs. The tensor and the array must have equal bytes.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "meta/device/meta_buffer.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using Bytes = std::vector<std::byte>;

struct TensorCase {
  DType dtype;
  Shape shape;
  Layout layout;
};

struct Case {
  std::string name;
  int ranks;
  std::vector<TensorCase> tensors;
};

class CacheModel {
 public:
  CacheModel(const Case& one, uint64_t seed) : rng_(seed), ranks_(one.ranks), mesh_(one.ranks, declare(one)) {
    memory_ = allocate_tensors(context_.tensors(), mesh_.device->buffer_type(), Usage::kAny);
    beside_memory_ = allocate_tensors(beside_context_.tensors(), mesh_.other().buffer_type(), Usage::kAny);
    backend_ = mesh_.device->init();
    beside_backend_ = mesh_.other().init();
    memory_->clear(0);
    beside_memory_->clear(0);
  }

  ~CacheModel() {
    for (One& one : ones_) one.writer.reset();  // each writer is destroyed before the backend of its plan
  }
  CacheModel(const CacheModel&) = delete;
  CacheModel& operator=(const CacheModel&) = delete;

  void step() {
    using Action = void (CacheModel::*)();
    static constexpr Action kActions[] = {&CacheModel::set,
                                          &CacheModel::get,
                                          &CacheModel::fill,
                                          &CacheModel::set_2d,
                                          &CacheModel::get_2d,
                                          &CacheModel::copy_in,
                                          &CacheModel::copy_out,
                                          &CacheModel::set_async,
                                          &CacheModel::get_async,
                                          &CacheModel::set_2d_async,
                                          &CacheModel::get_2d_async,
                                          &CacheModel::copy_in_async,
                                          &CacheModel::copy_out_async,
                                          &CacheModel::set_rows,
                                          &CacheModel::set_async,
                                          &CacheModel::get_async,
                                          &CacheModel::set_rows,
                                          &CacheModel::finish};
    (this->*kActions[pick(static_cast<int>(std::size(kActions)))])();
    if (pick(100) == 0) clear();
  }
  void finish() {
    backend_->synchronize();
    beside_backend_->synchronize();
    for (const Read& read : reads_) expect_equal(read.got, read.expected, "queued read");
    reads_.clear();
    written_.clear();
    ids_.clear();
  }
  void check_all() {
    finish();
    for (One& one : ones_) {
      expect_equal(read(*one.tensor), one.plain, one.tensor->name);
      expect_equal(read(*one.beside), one.beside_plain, one.beside->name);
    }
  }

 private:
  /// A graph that writes some rows into a tensor.
  struct Writer {
    Graph graph{"rows"};
    Tensor *rows = nullptr, *ids = nullptr;
    std::unique_ptr<GraphPlan> plan;
  };
  /// A tensor of the meta device, a tensor of a simple device with the same type and shape, and the expected bytes of
  /// the two tensors.
  struct One {
    Tensor *tensor = nullptr, *beside = nullptr;
    Bytes plain, beside_plain;
    std::unique_ptr<Writer> writer;
  };
  struct Read {
    Bytes got, expected;
  };
  struct Range {
    size_t offset, size;
  };
  struct Block {
    Rows rows;
    size_t host_stride;
    size_t host_bytes() const { return rows.rows * host_stride; }
  };

  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }

  test::Layouts declare(const Case& one) {
    test::Layouts layouts;
    for (const TensorCase& t : one.tensors) {
      const std::string name = fmt::format("t{}", ones_.size());
      One& added = ones_.emplace_back();
      added.tensor = context_.add(name, t.dtype, t.shape, Role::kCache);
      added.beside = beside_context_.add("beside_" + name, t.dtype, t.shape, Role::kCache);
      added.plain = added.beside_plain = Bytes(added.tensor->bytes());
      layouts.emplace(name, t.layout);
    }
    return layouts;
  }

  One& any() { return ones_[static_cast<size_t>(pick(static_cast<int>(ones_.size())))]; }
  Range range(const One& one) {
    const size_t offset = rng_() % (one.plain.size() + 1);
    return {offset, rng_() % (one.plain.size() - offset + 1)};
  }
  /// Random rows inside the tensor, and a random stride for the rows in host memory.
  Block block(const One& one) {
    const size_t bytes = one.plain.size();
    Rows rows;
    rows.row_bytes = 1 + rng_() % bytes;
    if (pick(2) == 0) rows.row_bytes = 1 + rng_() % std::min<size_t>(bytes, 40);  // short rows, so that many rows fit
    rows.stride = rows.row_bytes + rng_() % 7;
    rows.rows = 1 + rng_() % ((bytes - rows.row_bytes) / rows.stride + 1);
    rows.offset = rng_() % (bytes - rows.row_bytes - (rows.rows - 1) * rows.stride + 1);
    return {rows, rows.row_bytes + rng_() % 5};
  }
  /// Random bytes below 0x40. In the dtypes of Partial tensors (f32, f16, bf16 and i32), elements of such bytes are
  /// finite and >= 0. One addend of a Partial tensor is the value, and the other addends are zeros. So the sum of these
  /// addends has the same bytes as the value.
  Bytes random_bytes(size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(pick(0x40));
    return bytes;
  }
  static Bytes read(const Tensor& tensor) {
    Bytes got(tensor.bytes());
    tensor_get(tensor, got.data(), 0, got.size());
    return got;
  }
  void expect_equal(const Bytes& got, const Bytes& expected, const std::string& what) {
    ASSERT_EQ(got, expected) << what << " on " << ranks_ << " ranks";
  }

  // part() and write() access the plain array. Each of the functions below accesses the tensor and the plain array in
  // the same way.
  static Bytes part(const One& one, const Range& r) {
    const auto begin = one.plain.begin() + static_cast<ptrdiff_t>(r.offset);
    return {begin, begin + static_cast<ptrdiff_t>(r.size)};
  }
  static void write(One& one, const Range& r, const Bytes& bytes) {
    std::copy(bytes.begin(), bytes.end(), one.plain.begin() + static_cast<ptrdiff_t>(r.offset));
  }
  static Bytes part(const One& one, const Block& b) {
    Bytes out(b.host_bytes());
    for (size_t row = 0; row < b.rows.rows; ++row) {
      std::memcpy(out.data() + row * b.host_stride, one.plain.data() + b.rows.offset + row * b.rows.stride,
                  b.rows.row_bytes);
    }
    return out;
  }
  static void write(One& one, const Block& b, const Bytes& bytes) {
    for (size_t row = 0; row < b.rows.rows; ++row) {
      std::memcpy(one.plain.data() + b.rows.offset + row * b.rows.stride, bytes.data() + row * b.host_stride,
                  b.rows.row_bytes);
    }
  }

  void set() {
    finish();
    One& one = any();
    const Range r = range(one);
    const Bytes bytes = random_bytes(r.size);
    tensor_set(*one.tensor, bytes.data(), r.offset, r.size);
    write(one, r, bytes);
  }
  void get() {
    finish();
    One& one = any();
    const Range r = range(one);
    Bytes got(r.size);
    tensor_get(*one.tensor, got.data(), r.offset, r.size);
    expect_equal(got, part(one, r), one.tensor->name);
  }
  void fill() {
    finish();
    One& one = any();
    const Range r = range(one);
    const auto value = static_cast<uint8_t>(pick(0x40));
    one.tensor->buffer->memset(*one.tensor, value, r.offset, r.size);
    write(one, r, Bytes(r.size, std::byte{value}));
  }
  void clear() {
    finish();
    const auto value = static_cast<uint8_t>(pick(0x40));
    memory_->clear(value);
    for (One& one : ones_) std::fill(one.plain.begin(), one.plain.end(), std::byte{value});
  }
  void set_2d() {
    finish();
    One& one = any();
    const Block b = block(one);
    const Bytes bytes = random_bytes(b.host_bytes());
    one.tensor->buffer->set_2d(*one.tensor, bytes.data(), b.host_stride, b.rows);
    write(one, b, bytes);
  }
  void get_2d() {
    finish();
    One& one = any();
    const Block b = block(one);
    Bytes got(b.host_bytes());
    one.tensor->buffer->get_2d(*one.tensor, got.data(), b.host_stride, b.rows);
    expect_equal(got, part(one, b), one.tensor->name);
  }
  void copy_in() {
    finish();
    One& one = any();
    change_beside(one);
    finish();
    tensor_copy(*one.beside, *one.tensor);
    one.plain = one.beside_plain;
  }
  void copy_out() {
    finish();
    One& one = any();
    tensor_copy(*one.tensor, *one.beside);
    one.beside_plain = one.plain;
    expect_equal(read(*one.beside), one.beside_plain, one.beside->name);
  }

  void set_async() {
    One& one = any();
    const Range r = range(one);
    const Bytes& bytes = written_.emplace_back(random_bytes(r.size));
    backend_->set_async(*one.tensor, bytes.data(), r.offset, r.size);
    write(one, r, bytes);
  }
  void get_async() {
    One& one = any();
    const Range r = range(one);
    reads_.push_back({Bytes(r.size), part(one, r)});
    backend_->get_async(*one.tensor, reads_.back().got.data(), r.offset, r.size);
  }
  void set_2d_async() {
    One& one = any();
    const Block b = block(one);
    const Bytes& bytes = written_.emplace_back(random_bytes(b.host_bytes()));
    backend_->set_2d_async(*one.tensor, bytes.data(), b.host_stride, b.rows);
    write(one, b, bytes);
  }
  void get_2d_async() {
    One& one = any();
    const Block b = block(one);
    reads_.push_back({Bytes(b.host_bytes()), part(one, b)});
    backend_->get_2d_async(*one.tensor, reads_.back().got.data(), b.host_stride, b.rows);
  }
  /// Queues a write of random bytes to the tensor of the simple device.
  void change_beside(One& one) {
    const Bytes& bytes = written_.emplace_back(random_bytes(one.beside_plain.size()));
    beside_backend_->set_async(*one.beside, bytes.data(), 0, bytes.size());
    one.beside_plain = bytes;
  }
  void copy_in_async() {
    One& one = any();
    change_beside(one);
    beside_backend_->copy_async(*one.beside, *backend_, *one.tensor);
    one.plain = one.beside_plain;
    if (pick(2) == 0) change_beside(one);  // this later write must not affect the copy
  }
  void copy_out_async() {
    One& one = any();
    backend_->copy_async(*one.tensor, *beside_backend_, *one.beside);
    one.beside_plain = one.plain;
    reads_.push_back({Bytes(one.plain.size()), one.plain});
    beside_backend_->get_async(*one.beside, reads_.back().got.data(), 0, one.plain.size());
  }

  static std::unique_ptr<Writer> make_writer(Tensor& tensor, Backend& backend) {
    auto writer = std::make_unique<Writer>();
    const int64_t count = std::min<int64_t>(3, tensor.shape[1]);
    writer->rows = writer->graph.input("x", DType::kF32, {tensor.shape[0], count, tensor.shape[2], tensor.shape[3]});
    writer->ids = writer->graph.input("i", DType::kI32, {count, 1, 1, 1});
    writer->graph.output(shoal::set_rows(writer->graph, &tensor, writer->rows, writer->ids));
    writer->plan = backend.create_plan(writer->graph);
    return writer;
  }
  /// Runs a graph that writes up to three rows. An id of -1 writes no row.
  void set_rows() {
    One& one = any();
    const Tensor& t = *one.tensor;
    if (layout_of(t).is_partial() || traits(t.dtype).from_f32 == nullptr) return;
    if (one.writer == nullptr) {
      finish();
      one.writer = make_writer(*one.tensor, *backend_);
    }
    Bytes& values = written_.emplace_back(one.writer->rows->bytes());
    for (size_t i = 0; i < values.size(); i += sizeof(float)) {
      const float value = static_cast<float>(pick(2001) - 1000) / 256.0f;
      std::memcpy(values.data() + i, &value, sizeof value);
    }
    std::vector<int32_t>& ids = ids_.emplace_back(static_cast<size_t>(t.shape[1]));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng_);
    ids.resize(static_cast<size_t>(one.writer->ids->shape[0]));
    if (pick(3) == 0) ids[static_cast<size_t>(pick(static_cast<int>(ids.size())))] = -1;
    backend_->set_async(*one.writer->rows, values.data(), 0, values.size());
    backend_->set_async(*one.writer->ids, ids.data(), 0, ids.size() * sizeof(int32_t));
    backend_->compute_async(*one.writer->plan);
    write_rows(one, values, ids);
  }
  static void write_rows(One& one, const Bytes& values, const std::vector<int32_t>& ids) {
    const Tensor& t = *one.tensor;
    const size_t row_bytes = bytes_for(t.dtype, t.shape[0]);
    std::vector<float> row(static_cast<size_t>(t.shape[0]));
    const std::byte* from = values.data();
    for (int64_t outer = 0; outer < t.shape[2] * t.shape[3]; ++outer) {
      for (int32_t id : ids) {
        std::memcpy(row.data(), from, row.size() * sizeof(float));
        from += row.size() * sizeof(float);
        if (id < 0) continue;
        std::byte* to = one.plain.data() + static_cast<size_t>(outer * t.shape[1] + id) * row_bytes;
        traits(t.dtype).from_f32(row.data(), to, t.shape[0]);
      }
    }
  }

  std::mt19937_64 rng_;
  int ranks_;
  TensorContext context_, beside_context_;
  std::vector<One> ones_;
  test::CpuMesh mesh_;
  std::unique_ptr<Buffer> memory_, beside_memory_;
  std::deque<Bytes> written_;
  std::deque<std::vector<int32_t>> ids_;
  std::deque<Read> reads_;
  std::unique_ptr<Backend> backend_, beside_backend_;
};

void run_model(const Case& one, uint64_t seed, int steps) {
  CacheModel model(one, seed);
  for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) model.step();
  if (!testing::Test::HasFatalFailure()) model.check_all();
}

/// Caches of the types f16, q8_0 and f32. Each cache has 4 heads, with 12 rows of `row` elements for each head.
Case caches(std::string name, int ranks, const Layout& layout, int64_t row = 64) {
  Case one{std::move(name), ranks, {}};
  for (DType dtype : {DType::kF16, DType::kQ8_0, DType::kF32}) {
    one.tensors.push_back({dtype, Shape{row, 12, 4, 1}, layout});
  }
  return one;
}

std::vector<Case> cases() {
  return {
      caches("Mirrored", 3, Layout::mirrored()),
      caches("InsideRows", 2, split(0, 2, "32:{0} 32:{1}")),
      caches("InsideRowsUneven", 3, split(0, 3, "32:{0} 96:{1} 64:{2}"), 192),
      caches("InsideRowsInSegments", 2, split(0, 2, "32:{0} 64:{1} 64:{0} 32:{1}"), 192),
      caches("RowsUneven", 3, split(1, 3, "5:{0} 4:{1} 3:{2}")),
      caches("RowsOfTwoOfFour", 4, split(1, 4, "7:{1} 5:{3}")),
      caches("RowsInSegments", 2, split(1, 2, "3:{0} 2:{1} 4:{0} 3:{1}")),
      caches("Heads", 2, split(2, 2, "2:{0} 2:{1}")),
      caches("HeadsUneven", 2, split(2, 2, "3:{0} 1:{1}")),
      caches("HeadsWithAnEmptyMember", 3, split(2, 3, "3:{0} 1:{2}")),
      caches("HeadsInSegments", 2, split(2, 2, "1:{0} 1:{1} 1:{0} 1:{1}")),
      caches("HeadsThatMembersShare", 4, split(2, 4, "2:{0,1} 2:{2,3}")),
      caches("OneMemberHasAll", 2, split(2, 2, "4:{1}")),
  };
}

class CacheLayouts : public testing::TestWithParam<Case> {};

TEST_P(CacheLayouts, BehaveLikePlainArrays) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    run_model(GetParam(), seed, 1000);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CacheLayouts, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// Eight tensors of random types, shapes and layouts. Some of the layouts are Partial.
Case random_case(uint64_t seed) {
  static constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kI32,
                                     DType::kQ8_0, DType::kQ4_0, DType::kQ5_1, DType::kMXFP4};
  std::mt19937_64 rng(seed);
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  Case one{"random", 1 + pick(5), {}};
  for (int i = 0; i < 8; ++i) {
    const DType dtype = kTypes[pick(8)];
    const Shape shape{traits(dtype).block_elems * (1 + pick(5)), 1 + pick(6), 1 + pick(3), 1 + pick(2)};
    TensorContext context;
    const Tensor* leaf = context.add("t", dtype, shape, Role::kCache);
    one.tensors.push_back({dtype, shape, test::random_layout(rng, *leaf, one.ranks, traits(dtype).block_elems == 1)});
  }
  return one;
}

TEST(RandomTensors, BehaveLikePlainArrays) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    run_model(random_case(seed), seed, 200);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace shoal::meta
