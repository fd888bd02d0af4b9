#include "meta/meta_buffer.h"

#include <gmock/gmock.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "graph/error.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Bytes = std::vector<std::byte>;

/// Tensors on a mesh beside plain arrays: whatever is done to both, they stay equal.
class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed), ranks_(1 + pick(5)), mesh_(ranks_, declare()) {
    memory_ = allocate_tensors(context_.tensors(), mesh_.device->buffer_type(), Usage::kWeights);
    backend_ = mesh_.device->init();
    memory_->clear(0);
  }

  void step() {
    using Action = void (Model::*)();
    static constexpr Action kActions[] = {&Model::set,       &Model::set,       &Model::get,       &Model::get,
                                          &Model::fill,      &Model::set_2d,    &Model::get_2d,    &Model::set_async,
                                          &Model::set_async, &Model::get_async, &Model::get_async, &Model::finish};
    (this->*kActions[pick(static_cast<int>(std::size(kActions)))])();
    if (pick(100) == 0) clear();
  }
  void finish() {
    backend_->synchronize();
    for (const Read& read : reads_) expect_equal(read.got, read.expected, "asynchronous read");
    reads_.clear();
    written_.clear();
  }
  void check_all() {
    finish();
    for (Tensor* tensor : context_.tensors()) {
      Bytes got(tensor->bytes());
      tensor_get(*tensor, got.data(), 0, got.size());
      expect_equal(got, plain_[tensor], tensor->name);
    }
  }

 private:
  struct Read {
    Bytes got, expected;
  };
  struct Range {
    Tensor& tensor;
    Bytes& plain;
    size_t offset, size;
  };

  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }

  test::Layouts declare() {
    static constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kI32,
                                       DType::kQ8_0, DType::kQ4_0, DType::kQ5_1};
    test::Layouts layouts;
    for (int i = 0; i < 8; ++i) {
      const DType dtype = kTypes[pick(7)];
      const Shape shape{traits(dtype).block_elems * (1 + pick(5)), 1 + pick(6), 1 + pick(3), 1 + pick(2)};
      Tensor* tensor = context_.add(fmt::format("t{}", i), dtype, shape, pick(3) == 0 ? Role::kCache : Role::kWeight);
      layouts.emplace(tensor->name, test::random_layout(rng_, *tensor, ranks_, traits(dtype).block_elems == 1));
      plain_[tensor] = Bytes(tensor->bytes());
    }
    return layouts;
  }

  Range range() {
    Tensor& tensor = *context_.tensors()[static_cast<size_t>(pick(8))];
    const size_t offset = rng_() % (tensor.bytes() + 1);
    return {tensor, plain_[&tensor], offset, rng_() % (tensor.bytes() - offset + 1)};
  }
  /// Below 0x40, so that every pattern is a finite number >= 0: the sum that a Partial tensor is keeps its bytes.
  Bytes random_bytes(size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(pick(0x40));
    return bytes;
  }
  void expect_equal(const Bytes& got, const Bytes& expected, const std::string& what) {
    ASSERT_EQ(got, expected) << what << " on " << ranks_ << " ranks";
  }

  void set() {
    finish();
    const Range r = range();
    const Bytes bytes = random_bytes(r.size);
    tensor_set(r.tensor, bytes.data(), r.offset, r.size);
    std::copy(bytes.begin(), bytes.end(), r.plain.begin() + static_cast<ptrdiff_t>(r.offset));
  }
  void get() {
    finish();
    const Range r = range();
    Bytes got(r.size);
    tensor_get(r.tensor, got.data(), r.offset, r.size);
    expect_equal(got, part(r), r.tensor.name);
  }
  void fill() {
    finish();
    const Range r = range();
    const auto value = static_cast<uint8_t>(pick(0x40));
    r.tensor.buffer->memset(r.tensor, value, r.offset, r.size);
    std::fill_n(r.plain.begin() + static_cast<ptrdiff_t>(r.offset), r.size, std::byte{value});
  }
  void clear() {
    finish();
    const auto value = static_cast<uint8_t>(pick(0x40));
    memory_->clear(value);
    for (auto& [tensor, bytes] : plain_) std::fill(bytes.begin(), bytes.end(), std::byte{value});
  }

  /// Rows inside the tensor and the stride that they have in host memory.
  std::pair<Rows, size_t> rows(const Tensor& tensor) {
    const size_t bytes = tensor.bytes();
    Rows rows;
    rows.row_bytes = 1 + rng_() % bytes;
    rows.stride = rows.row_bytes + rng_() % 7;
    rows.rows = 1 + rng_() % ((bytes - rows.row_bytes) / rows.stride + 1);
    rows.offset = rng_() % (bytes - rows.row_bytes - (rows.rows - 1) * rows.stride + 1);
    return {rows, rows.row_bytes + rng_() % 5};
  }
  void set_2d() {
    finish();
    Tensor& tensor = *context_.tensors()[static_cast<size_t>(pick(8))];
    const auto [rows, host_stride] = this->rows(tensor);
    const Bytes bytes = random_bytes(rows.rows * host_stride);
    tensor.buffer->set_2d(tensor, bytes.data(), host_stride, rows);
    for (size_t row = 0; row < rows.rows; ++row) {
      std::memcpy(plain_[&tensor].data() + rows.offset + row * rows.stride, bytes.data() + row * host_stride,
                  rows.row_bytes);
    }
  }
  void get_2d() {
    finish();
    Tensor& tensor = *context_.tensors()[static_cast<size_t>(pick(8))];
    const auto [rows, host_stride] = this->rows(tensor);
    Bytes got(rows.rows * host_stride), expected(rows.rows * host_stride);
    tensor.buffer->get_2d(tensor, got.data(), host_stride, rows);
    for (size_t row = 0; row < rows.rows; ++row) {
      std::memcpy(expected.data() + row * host_stride, plain_[&tensor].data() + rows.offset + row * rows.stride,
                  rows.row_bytes);
    }
    expect_equal(got, expected, tensor.name);
  }

  void set_async() {
    const Range r = range();
    written_.push_back(random_bytes(r.size));
    backend_->set_async(r.tensor, written_.back().data(), r.offset, r.size);
    std::copy(written_.back().begin(), written_.back().end(), r.plain.begin() + static_cast<ptrdiff_t>(r.offset));
  }
  void get_async() {
    const Range r = range();
    reads_.push_back({Bytes(r.size), part(r)});
    backend_->get_async(r.tensor, reads_.back().got.data(), r.offset, r.size);
  }

  static Bytes part(const Range& r) {
    const auto begin = r.plain.begin() + static_cast<ptrdiff_t>(r.offset);
    return {begin, begin + static_cast<ptrdiff_t>(r.size)};
  }

  std::mt19937_64 rng_;
  int ranks_;
  TensorContext context_;
  std::map<Tensor*, Bytes> plain_;
  test::Mesh mesh_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Backend> backend_;
  std::deque<Bytes> written_;
  std::deque<Read> reads_;
};

TEST(MetaBuffer, BehavesAsAPlainArray) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Model model(seed);
    for (int i = 0; i < 100 && !testing::Test::HasFatalFailure(); ++i) model.step();
    model.check_all();
    if (testing::Test::HasFatalFailure()) return;
  }
}

Layout split(int axis, int ranks, std::string_view runs) {
  return Layout::split(axis, Partition::parse(ranks, runs));
}

/// One f32 [8, 6] tensor on two ranks and one beside them, with values.
struct Copies : testing::Test {
  Copies() {
    sharded = context.add("sharded", DType::kF32, {8, 6, 1, 1});
    plain = context.add("plain", DType::kF32, {8, 6, 1, 1});
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
    sharded_memory = allocate_tensors({&sharded, 1}, mesh.device->buffer_type(), Usage::kWeights);
    plain_memory = allocate_tensors({&plain, 1}, mesh.other().buffer_type(), Usage::kWeights);
  }
  test::Mesh mesh{2, {{"sharded", split(1, 2, "2:{0} 3:{1} 1:{0}")}}};
  TensorContext context;
  Tensor *sharded, *plain;
  std::unique_ptr<Buffer> sharded_memory, plain_memory;
  std::vector<float> values = std::vector<float>(48);
};

TEST_F(Copies, BothWays) {
  tensor_set(*plain, values.data(), 0, 192);
  tensor_copy(*plain, *sharded);
  EXPECT_EQ(test::read_floats(*sharded), values);
  EXPECT_EQ(test::read_floats(shard(*sharded, 1)), std::vector<float>(values.begin() + 16, values.begin() + 40));
  plain_memory->clear(0);
  tensor_copy(*sharded, *plain);
  EXPECT_EQ(test::read_floats(*plain), values);
}

TEST_F(Copies, BetweenBackends) {
  const auto meta = mesh.device->init();
  const auto simple = mesh.other().init();
  const std::vector<float> zeros(48);
  simple->set_async(*plain, values.data(), 0, 192);
  simple->copy_async(*plain, *meta, *sharded);
  simple->set_async(*plain, zeros.data(), 0, 192);  // after the copy
  std::vector<float> seen(48), back(48);
  meta->get_async(*sharded, seen.data(), 0, 192);
  meta->copy_async(*sharded, *simple, *plain);
  simple->get_async(*plain, back.data(), 0, 192);
  meta->synchronize();
  simple->synchronize();
  EXPECT_EQ(seen, values);
  EXPECT_EQ(back, values);
}

TEST_F(Copies, BetweenDifferentLayouts) {
  Tensor* other = context.add("other", DType::kF32, {8, 6, 1, 1});
  const auto meta = MetaDevice::create({mesh.members[1], mesh.members[0]},
                                       test::callback_for({{"other", split(0, 2, "7:{0} 1:{1}")}}));
  const auto memory = allocate_tensors({&other, 1}, meta->buffer_type(), Usage::kWeights);
  tensor_set(*sharded, values.data(), 0, 192);
  tensor_copy(*sharded, *other);
  EXPECT_EQ(test::read_floats(*other), values);
}

TEST_F(Copies, UsageReachesTheMembers) {
  EXPECT_EQ(shard(*sharded, 0).buffer->usage(), Usage::kWeights);
  EXPECT_EQ(shard(*sharded, 1).buffer->usage(), Usage::kWeights);
  sharded_memory->set_usage(Usage::kCompute);
  EXPECT_EQ(sharded_memory->usage(), Usage::kCompute);
  for (int rank : {0, 1}) EXPECT_EQ(shard(*sharded, rank).buffer->usage(), Usage::kCompute);
}

TEST_F(Copies, PartsOfATensorAreWrittenByThreadsAtATime) {
  sharded_memory->clear(0);
  std::vector<std::jthread> threads;
  const size_t bytes = values.size() * sizeof(float), piece = bytes / 4;
  for (size_t begin = 0; begin < bytes; begin += piece) {
    const size_t size = std::min(piece, bytes - begin);
    threads.emplace_back([this, begin, size] {
      tensor_set(*sharded, reinterpret_cast<const std::byte*>(values.data()) + begin, begin, size);
    });
  }
  threads.clear();
  EXPECT_EQ(test::read_floats(*sharded), values);
  EXPECT_EQ(test::read_floats(shard(*sharded, 1)), std::vector<float>(values.begin() + 16, values.begin() + 40));
  EXPECT_THROW(shard(*sharded, 2), InvalidArgument);
  EXPECT_THROW(shard(*sharded, -1), InvalidArgument);
}

TEST_F(Copies, ErrorsNameWhatIsWrong) {
  const auto message = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  std::vector<float> out(48);
  const auto backend = mesh.device->init();
  EXPECT_THAT([&] { tensor_set(*sharded, values.data(), 100, 100); }, message("outside the tensor's 192 bytes"));
  EXPECT_THAT([&] { tensor_get(*sharded, out.data(), 193, 0); }, message("[get sharded]"));
  EXPECT_THAT([&] { backend->set_async(*sharded, values.data(), 100, 100); }, message("sharded f32 [8, 6] of 192"));
  EXPECT_THAT([&] { backend->get_async(*sharded, out.data(), 0, SIZE_MAX); }, message("sharded f32 [8, 6] of 192"));
  EXPECT_THAT([&] { sharded_memory->set(*plain, values.data(), 0, 4); }, message("lies in another buffer"));
  EXPECT_THAT([&] { backend->set_async(*plain, values.data(), 0, 4); },
              message("not lie in a buffer of a meta device"));
  EXPECT_THAT([&] { layout_of(*plain); }, message("plain f32 [8, 6] does not lie in a buffer of a meta device"));
  EXPECT_THAT([&] { allocated_per_rank(*plain_memory); }, message("not one of a meta device"));
  EXPECT_THAT([&] { sharded_memory->place(*sharded, 0); }, message("placed already"));
  backend->synchronize();
}

TEST_F(Copies, ATensorWithoutAPlanSaysSo) {
  Graph graph("g");
  Tensor* input = graph.input("x", DType::kF32, {4, 1, 1, 1});
  const auto buffer = mesh.device->buffer_type().allocate(64);
  buffer->place(*input, 0);
  EXPECT_THAT([&] { tensor_set(*input, values.data(), 0, 16); },
              ThrowsMessage<InvalidArgument>(HasSubstr("x f32 [4] has no shards yet; make a plan of its graph first")));
}

TEST_F(Copies, PlacesSingleTensors) {
  Tensor* more[] = {context.add("a", DType::kF32, {5, 1, 1, 1}), context.add("b", DType::kF32, {3, 2, 1, 1})};
  auto buffer = mesh.device->buffer_type().allocate(256);
  buffer->place(*more[0], 0);
  buffer->place(*more[1], 64);
  tensor_set(*more[0], values.data(), 0, 20);
  tensor_set(*more[1], values.data() + 5, 0, 24);
  EXPECT_EQ(test::read_floats(*more[0]), std::vector<float>(values.begin(), values.begin() + 5));
  EXPECT_EQ(test::read_floats(*more[1]), std::vector<float>(values.begin() + 5, values.begin() + 11));
  EXPECT_EQ(allocated_per_rank(*buffer), (std::vector<size_t>{128, 128}));
  EXPECT_THAT(
      [&] {
        buffer->place(*context.add("c", DType::kF32, {5, 1, 1, 1}), 256);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("do not fit")));
  EXPECT_NE(mesh.device->shards().find(*more[0]), nullptr);
  buffer.reset();
  EXPECT_EQ(mesh.device->shards().find(*more[0]), nullptr);
}

TEST_F(Copies, ResetForgetsWhatWasPlaced) {
  const auto free = mesh.free();
  auto buffer = mesh.device->buffer_type().allocate(256);
  Tensor tensor = *context.add("a", DType::kF32, {5, 1, 1, 1});
  buffer->place(tensor, 0);
  buffer->reset();
  EXPECT_EQ(mesh.device->shards().find(tensor), nullptr);
  EXPECT_EQ(mesh.free(), free);
  // Another tensor at the same address is another tensor.
  tensor = *context.add("b", DType::kF32, {9, 3, 1, 1});
  buffer->place(tensor, 0);
  EXPECT_EQ(shard(tensor, 0).shape, (Shape{9, 3, 1, 1}));
  tensor_set(tensor, values.data(), 0, 108);
  EXPECT_EQ(test::read_floats(tensor), std::vector<float>(values.begin(), values.begin() + 27));
}

Device& null_device(std::string_view params) {
  return Registry::instance().find_family("NULL")->create_device(params);
}

TEST(MetaBufferFailure, OfOneMemberReleasesTheRest) {
  for (bool last : {false, true}) {
    Device& healthy = null_device("");
    Device& full = null_device("fail_alloc_after=1K");
    const std::vector<Device*> members = last ? std::vector{&healthy, &full} : std::vector{&full, &healthy};
    const auto meta = MetaDevice::create(members, test::callback_for({{"b", split(1, 2, "1:{0} 1:{1}")}}));
    TensorContext context;
    Tensor* tensors[] = {context.add("a", DType::kF32, {128, 1, 1, 1}), context.add("b", DType::kF32, {256, 2, 1, 1})};
    const size_t free = healthy.memory().free;
    EXPECT_THAT([&] { allocate_tensors(tensors, meta->buffer_type(), Usage::kWeights); },
                ThrowsMessage<DeviceError>(HasSubstr(full.name())));
    EXPECT_EQ(healthy.memory().free, free);
    for (Tensor* tensor : tensors) {
      EXPECT_EQ(tensor->buffer, nullptr);
      EXPECT_EQ(tensor->data, nullptr);
      EXPECT_EQ(meta->shards().find(*tensor), nullptr);
    }
    // Single tensors fail alike, and what fits can be placed afterwards.
    const auto buffer = meta->buffer_type().allocate(4096);
    buffer->place(*tensors[0], 0);
    EXPECT_THROW(buffer->place(*tensors[1], 512), DeviceError);
    EXPECT_EQ(tensors[1]->buffer, nullptr);
    EXPECT_EQ(meta->shards().find(*tensors[1]), nullptr);
    EXPECT_EQ(healthy.memory().free, free - 512);
    const float value = 3;
    tensor_set(*tensors[0], &value, 508, 4);
    EXPECT_EQ(test::read_floats(*tensors[0]).back(), 3);
  }
}

TEST(MetaBufferFailure, OfTheCallbackLeavesNothing) {
  Device& device = null_device("");
  const auto meta = MetaDevice::create({&device, &Registry::instance().device("NULL0")}, [](const Tensor& tensor) {
    return tensor.name == "bad" ? SplitState::split(1, {{3, 4}}) : SplitState::mirrored();
  });
  TensorContext context;
  Tensor* tensors[] = {context.add("good", DType::kF32, {4, 8, 1, 1}), context.add("bad", DType::kF32, {4, 8, 1, 1})};
  const size_t free = device.memory().free;
  EXPECT_THAT([&] { allocate_tensors(tensors, meta->buffer_type(), Usage::kWeights); },
              ThrowsMessage<InvalidArgument>(HasSubstr("bad")));
  EXPECT_EQ(device.memory().free, free);
  EXPECT_EQ(meta->shards().find(*tensors[0]), nullptr);
  EXPECT_EQ(tensors[0]->buffer, nullptr);
}

TEST(MetaBufferLimits, AMembersLargestAllocation) {
  Device& small = null_device("max_size=1K");
  const auto meta = MetaDevice::create({&Registry::instance().device("NULL0"), &small}, test::callback_for({}));
  TensorContext context;
  for (int i = 0; i < 5; ++i) context.add(fmt::format("t{}", i), DType::kF32, {150, 1, 1, 1});
  const auto memory = allocate_tensors(context.tensors(), meta->buffer_type(), Usage::kWeights);
  EXPECT_EQ(allocated_per_rank(*memory), (std::vector<size_t>{5 * 640, 5 * 640}));
  std::vector<float> values(150);
  for (Tensor* tensor : context.tensors()) {
    std::fill(values.begin(), values.end(), static_cast<float>(tensor->name[1]));
    tensor_set(*tensor, values.data(), 0, 600);
  }
  for (const Tensor* tensor : context.tensors()) {
    EXPECT_THAT(test::read_floats(shard(*tensor, 1)), Each(static_cast<float>(tensor->name[1])));
  }
  memory->set_usage(Usage::kCompute);
  EXPECT_EQ(shard(*context.tensors()[4], 1).buffer->usage(), Usage::kCompute);
  memory->clear(0);
  EXPECT_THAT(test::read_floats(*context.tensors()[4]), Each(0.0f));
  Tensor* large = context.add("large", DType::kF32, {300, 1, 1, 1});
  EXPECT_THAT(
      [&] {
        allocate_tensors({&large, 1}, meta->buffer_type(), Usage::kWeights);
      },
      ThrowsMessage<DeviceError>(HasSubstr("large f32 [300] needs 1.2 KiB")));
}

}  // namespace
}  // namespace shoal::meta
