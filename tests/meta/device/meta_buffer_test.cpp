#include "meta/device/meta_buffer.h"

#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A tensor f32 [8, 6] on two ranks, a tensor of the same shape on another device, and values for the two tensors.
struct MetaBufferTensors : testing::Test {
  MetaBufferTensors() {
    sharded = context.add("sharded", DType::kF32, {8, 6, 1, 1});
    plain = context.add("plain", DType::kF32, {8, 6, 1, 1});
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
    sharded_memory = allocate_tensors({&sharded, 1}, mesh.device->buffer_type(), Usage::kWeights);
    plain_memory = allocate_tensors({&plain, 1}, mesh.other().buffer_type(), Usage::kWeights);
  }
  test::CpuMesh mesh{2, {{"sharded", split(1, 2, "2:{0} 3:{1} 1:{0}")}}};
  TensorContext context;
  Tensor *sharded, *plain;
  std::unique_ptr<Buffer> sharded_memory, plain_memory;
  std::vector<float> values = std::vector<float>(48);
};

TEST_F(MetaBufferTensors, AreCopiedToAndFromOtherDevices) {
  tensor_set(*plain, values.data(), 0, 192);
  tensor_copy(*plain, *sharded);
  EXPECT_EQ(test::read_floats(*sharded), values);
  EXPECT_EQ(test::read_floats(shard(*sharded, 1)), std::vector<float>(values.begin() + 16, values.begin() + 40));
  plain_memory->clear(0);
  tensor_copy(*sharded, *plain);
  EXPECT_EQ(test::read_floats(*plain), values);
}

TEST_F(MetaBufferTensors, AreCopiedBetweenBackendsInStreamOrder) {
  const auto meta = mesh.device->init();
  const auto simple = mesh.other().init();
  const std::vector<float> zeros(48);
  simple->set_async(*plain, values.data(), 0, 192);
  simple->copy_async(*plain, *meta, *sharded);
  simple->set_async(*plain, zeros.data(), 0, 192);  // this later write must not affect the copy
  std::vector<float> seen(48), back(48);
  meta->get_async(*sharded, seen.data(), 0, 192);
  meta->copy_async(*sharded, *simple, *plain);
  simple->get_async(*plain, back.data(), 0, 192);
  meta->synchronize();
  simple->synchronize();
  EXPECT_EQ(seen, values);
  EXPECT_EQ(back, values);
}

TEST_F(MetaBufferTensors, AreCopiedBetweenDifferentLayouts) {
  Tensor* other = context.add("other", DType::kF32, {8, 6, 1, 1});
  const auto meta = MetaDevice::create({mesh.members[1], mesh.members[0]},
                                       test::callback_for({{"other", split(0, 2, "7:{0} 1:{1}")}}));
  const auto memory = allocate_tensors({&other, 1}, meta->buffer_type(), Usage::kWeights);
  tensor_set(*sharded, values.data(), 0, 192);
  tensor_copy(*sharded, *other);
  EXPECT_EQ(test::read_floats(*other), values);
}

TEST(MetaBufferOfHostMemory, WrapsContiguousShardsAndCopiesOthers) {
  const test::CpuMesh mesh(2, {{"rows", split(1, 2, "4:{0} 2:{1}")},
                               {"columns", split(0, 2, "3:{0} 5:{1}")},
                               {"sum", Layout::partial()}});
  TensorContext context;
  std::vector<Tensor*> tensors;
  for (const char* name : {"rows", "columns", "sum", "whole"}) {
    tensors.push_back(context.add(name, DType::kF32, {8, 6, 1, 1}));
  }
  alignas(64) float host[4][48];
  for (size_t i = 0; i < 4; ++i) std::iota(host[i], host[i] + 48, static_cast<float>(100 * i));
  const auto free = mesh.free();
  const auto memory = mesh.device->buffer_from_host_ptr(host, sizeof(host));
  for (size_t i = 0; i < 4; ++i) memory->place(*tensors[i], i * sizeof(host[0]));

  const auto data = [&](size_t i, int rank) { return reinterpret_cast<float*>(shard(*tensors[i], rank).data); };
  EXPECT_EQ(data(0, 0), host[0]);
  EXPECT_EQ(data(0, 1), host[0] + 32) << "rank 1 owns rows 4 and 5";
  EXPECT_EQ(data(2, 0), host[2]);
  EXPECT_EQ(data(3, 0), host[3]);
  EXPECT_EQ(data(3, 1), host[3]);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(test::read_floats(*tensors[i]), std::vector<float>(host[i], host[i] + 48)) << tensors[i]->name;
  }
  EXPECT_EQ(test::read_floats(shard(*tensors[2], 1)), std::vector<float>(48, 0.0f));
  const auto used = [&](size_t rank) { return free[rank] - mesh.members[rank]->memory().free; };
  EXPECT_EQ(used(0), size_t{128}) << "the shard of \"columns\" with padding";
  EXPECT_EQ(used(1), size_t{128 + 192}) << "the shard of \"columns\", and the zeros of \"sum\"";

  const float one = 1.0f;
  tensor_set(*tensors[0], &one, 40 * sizeof(float), sizeof(float));
  EXPECT_EQ(host[0][40], 1.0f);
  EXPECT_THROW(mesh.device->buffer_from_host_ptr(nullptr, 8), InvalidArgument);
}

TEST(MetaBufferOfHostMemory, CachesAreWrappedByOneRankUnlessRanksHaveDifferentRows) {
  struct Case {
    const char* name;
    Role role;
    Layout layout;
    std::array<bool, 3> is_wrapped;  ///< for each rank
  };
  const Layout apart = split(1, 3, "2:{0} 3:{1} 1:{2}"), shared = split(1, 3, "2:{0} 4:{1,2}");
  const Case cases[] = {
      {"weight", Role::kWeight, Layout::mirrored(), {true, true, true}},
      {"split_weight", Role::kWeight, apart, {true, true, true}},
      {"shared_weight", Role::kWeight, shared, {true, true, true}},
      {"partial_weight", Role::kWeight, Layout::partial(), {true, false, false}},
      {"cache", Role::kCache, Layout::mirrored(), {true, false, false}},
      {"split_cache", Role::kCache, apart, {true, true, true}},
      {"shared_cache", Role::kCache, shared, {true, false, false}},
      {"partial_cache", Role::kCache, Layout::partial(), {true, false, false}},
  };
  test::Layouts layouts;
  for (const Case& one : cases) layouts.emplace(one.name, one.layout);
  const test::CpuMesh mesh(3, layouts);
  alignas(64) float host[std::size(cases)][96];  // a row of 16 elements has 64 bytes, so all rows are aligned
  const auto memory = mesh.device->buffer_from_host_ptr(host, sizeof(host));
  TensorContext context;
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& one = cases[i];
    std::iota(host[i], host[i] + 96, static_cast<float>(100 * i));
    Tensor* tensor = context.add(one.name, DType::kF32, {16, 6, 1, 1}, one.role);
    memory->place(*tensor, i * sizeof(host[0]));
    for (int rank = 0; rank < 3; ++rank) {
      const auto* data = reinterpret_cast<const float*>(shard(*tensor, rank).data);
      EXPECT_EQ(data >= host[i] && data < host[i] + 96, one.is_wrapped[static_cast<size_t>(rank)])
          << one.name << " on rank " << rank;
    }
    EXPECT_EQ(test::read_floats(*tensor), std::vector<float>(host[i], host[i] + 96)) << one.name;
    std::vector<float> values(96, 0.5f);
    tensor_set(*tensor, values.data(), 0, sizeof(host[0]));
    EXPECT_EQ(test::read_floats(*tensor), values) << one.name;
    if (one.layout.is_mirrored()) {
      EXPECT_EQ(test::read_floats(shard(*tensor, 2)), values) << one.name;
    }
  }
}

TEST_F(MetaBufferTensors, UsageIsSetForAllMembers) {
  EXPECT_EQ(shard(*sharded, 0).buffer->usage(), Usage::kWeights);
  EXPECT_EQ(shard(*sharded, 1).buffer->usage(), Usage::kWeights);
  sharded_memory->set_usage(Usage::kCompute);
  EXPECT_EQ(sharded_memory->usage(), Usage::kCompute);
  for (int rank : {0, 1}) EXPECT_EQ(shard(*sharded, rank).buffer->usage(), Usage::kCompute);
}

TEST_F(MetaBufferTensors, AcceptConcurrentWritesOfDifferentBytes) {
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

TEST_F(MetaBufferTensors, ErrorsNameTensorAndCause) {
  const auto message = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  std::vector<float> out(48);
  const auto backend = mesh.device->init();
  EXPECT_THAT([&] { tensor_set(*sharded, values.data(), 100, 100); }, message("outside the tensor's 192 bytes"));
  EXPECT_THAT([&] { tensor_get(*sharded, out.data(), 193, 0); }, message("[get sharded]"));
  EXPECT_THAT([&] { backend->set_async(*sharded, values.data(), 100, 100); }, message("exceed the tensor's 192 bytes"));
  EXPECT_THAT([&] { backend->get_async(*sharded, out.data(), 0, SIZE_MAX); }, message("exceed the tensor's 192 bytes"));
  EXPECT_THAT([&] { sharded_memory->set(*plain, values.data(), 0, 4); }, message("is placed in another buffer"));
  EXPECT_THAT([&] { backend->set_async(*plain, values.data(), 0, 4); }, message("is not in a buffer of a meta device"));
  EXPECT_THAT([&] { layout_of(*plain); }, message("plain f32 [8, 6] is not in a buffer of a meta device"));
  EXPECT_THAT([&] { allocated_per_rank(*plain_memory); }, message("does not belong to a meta device"));
  EXPECT_THAT([&] { sharded_memory->place(*sharded, 0); }, message("placed already"));
  backend->synchronize();
}

TEST_F(MetaBufferTensors, InputWithoutPlanHasNoShards) {
  Graph graph("g");
  Tensor* input = graph.input("x", DType::kF32, {4, 1, 1, 1});
  const auto buffer = mesh.device->buffer_type().allocate(64);
  buffer->place(*input, 0);
  EXPECT_THAT([&] { tensor_set(*input, values.data(), 0, 16); },
              ThrowsMessage<InvalidArgument>(HasSubstr("x f32 [4] has no shards yet; make a plan of its graph first")));
}

TEST_F(MetaBufferTensors, MayReuseAddressOfView) {
  Tensor* fresh = context.add("fresh", DType::kF32, {8, 6, 1, 1});
  Graph graph("g");
  Tensor* view = transpose(graph, sharded);
  sharded->buffer->clear(0);
  std::optional<Tensor> slot(*view);  // first a view and then a new tensor have this address
  Buffer::place_view(*slot);
  slot.emplace(*fresh);
  auto& buffer = *sharded->buffer;
  buffer.place(*slot, 0);
  EXPECT_NE(mesh.device->shards().find(*slot), nullptr) << "the address belonged to a view before";
  tensor_set(*slot, values.data(), 0, 192);
  EXPECT_EQ(test::read_floats(*slot), values);
  EXPECT_THAT(test::read_floats(*sharded), Each(0.0f));
  buffer.clear(0);
  EXPECT_THAT(test::read_floats(*slot), Each(0.0f));
  sharded_memory.reset();  // the buffer is destroyed before the tensor
}

TEST_F(MetaBufferTensors, CanBePlacedOneByOne) {
  Tensor* more[] = {context.add("a", DType::kF32, {5, 1, 1, 1}), context.add("b", DType::kF32, {3, 2, 1, 1})};
  auto buffer = mesh.device->buffer_type().allocate(256);
  buffer->place(*more[0], 0);
  buffer->place(*more[1], 64);
  tensor_set(*more[0], values.data(), 0, 20);
  tensor_set(*more[1], values.data() + 5, 0, 24);
  EXPECT_EQ(test::read_floats(*more[0]), std::vector<float>(values.begin(), values.begin() + 5));
  EXPECT_EQ(test::read_floats(*more[1]), std::vector<float>(values.begin() + 5, values.begin() + 11));
  EXPECT_EQ(allocated_per_rank(*buffer), (std::vector<size_t>{128, 128}));
  EXPECT_THAT([&] { buffer->place(*context.add("c", DType::kF32, {5, 1, 1, 1}), 256); },
              ThrowsMessage<InvalidArgument>(HasSubstr("do not fit")));
  EXPECT_NE(mesh.device->shards().find(*more[0]), nullptr);
  buffer.reset();
  EXPECT_EQ(mesh.device->shards().find(*more[0]), nullptr);
}

TEST_F(MetaBufferTensors, ResetDropsPlacedShards) {
  const auto free = mesh.free();
  auto buffer = mesh.device->buffer_type().allocate(256);
  Tensor tensor = *context.add("a", DType::kF32, {5, 1, 1, 1});
  buffer->place(tensor, 0);
  buffer->reset();
  EXPECT_EQ(mesh.device->shards().find(tensor), nullptr);
  EXPECT_EQ(mesh.free(), free);
  // A new tensor at the address of the old tensor gets new shards.
  tensor = *context.add("b", DType::kF32, {9, 3, 1, 1});
  buffer->place(tensor, 0);
  EXPECT_EQ(shard(tensor, 0).shape, (Shape{9, 3, 1, 1}));
  tensor_set(tensor, values.data(), 0, 108);
  EXPECT_EQ(test::read_floats(tensor), std::vector<float>(values.begin(), values.begin() + 27));
}

Device& null_device(std::string_view params) {
  return Registry::instance().find_family("NULL")->create_device(params);
}

// fill() reads the rows of a tensor that is split by rows directly into the memory of each member. fill() reads any
// other tensor once for all members.
TEST_F(MetaBufferTensors, FillReadsRowsOfEachMemberSeparately) {
  Tensor* columns = context.add("columns", DType::kF32, {8, 6, 1, 1});
  const auto meta = MetaDevice::create({mesh.members[0], mesh.members[1]},
                                       test::callback_for({{"columns", split(0, 2, "5:{0} 3:{1}")}}));
  const auto memory = allocate_tensors({&columns, 1}, meta->buffer_type(), Usage::kWeights);
  const auto reads_of = [this](Tensor& tensor) {
    std::vector<size_t> sizes;
    tensor.buffer->fill(tensor, 0, 192, [&](size_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), reinterpret_cast<const std::byte*>(values.data()) + offset, to.size());
      sizes.push_back(to.size());
    });
    EXPECT_EQ(test::read_floats(tensor), values);
    return sizes;
  };
  EXPECT_THAT(reads_of(*sharded), testing::ElementsAre(64, 32, 96)) << "rows 0 and 1, row 5, and rows 2 to 4";
  EXPECT_THAT(reads_of(*columns), testing::ElementsAre(192));
}

// A plan is made before memory is allocated. If the device adopted the shards of this plan, the plan runs unchanged.
// Otherwise create_plan plans the graph again.
TEST_F(MetaBufferTensors, PreparedPlanRunsOnAdoptedShards) {
  for (const bool adopts : {true, false}) {
    TensorContext own;
    Tensor* weight = own.add("sharded", DType::kF32, {8, 6, 1, 1});
    ShardStore store(2);
    store.declare(*weight, mesh.device->ask(*weight));
    Graph graph;
    Tensor* doubled = graph.output(add(graph, weight, weight));
    Plan plan = make_plan(graph, store, mesh.device->members());
    const uint64_t local = plan.ranks[1].graph->uid();
    if (adopts) mesh.device->adopt(*weight, store);
    const auto memory = allocate_tensors({&weight, 1}, mesh.device->buffer_type(), Usage::kWeights);
    EXPECT_EQ(&shard(*weight, 1) == store.find(*weight)->local[1], adopts);
    const auto backend = mesh.device->init();
    PlanOptions options;
    options.prepared = &plan;
    const auto made = backend->create_plan(graph, options);
    EXPECT_EQ(plan_of(*made).ranks[1].graph->uid() == local, adopts);
    tensor_set(*weight, values.data(), 0, 192);
    backend->compute_async(*made);
    backend->synchronize();
    EXPECT_EQ(test::read_floats(*doubled)[47], 2 * values[47]);
  }
}

TEST_F(MetaBufferTensors, IgnoreAdoptedShardsOfAnotherLayout) {
  TensorContext own;
  Tensor* weight = own.add("sharded", DType::kF32, {8, 6, 1, 1});
  ShardStore store(2);
  store.declare(*weight, Layout::mirrored());
  mesh.device->adopt(*weight, store);
  const auto memory = allocate_tensors({&weight, 1}, mesh.device->buffer_type(), Usage::kWeights);
  EXPECT_EQ(layout_of(*weight), layout_of(*sharded)) << "the callback determines the layout";
}

TEST(MetaBufferFailure, AllocationErrorFreesMemoryOfOtherMembers) {
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
    // place() of the large tensor also fails. The small tensor keeps its memory and can be written.
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

TEST(MetaBufferFailure, CallbackErrorLeavesNoTensorPlaced) {
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

TEST(MetaBufferLimits, AllocationsStayWithinLimitOfEachMember) {
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
  EXPECT_THAT([&] { allocate_tensors({&large, 1}, meta->buffer_type(), Usage::kWeights); },
              ThrowsMessage<DeviceError>(HasSubstr("large f32 [300] needs 1.2 KiB")));
}

/// Expert products on two ranks. One rank has no experts. This rank has an addend only if the caller reads the
/// products.
struct ProductsOfOneRank {
  ProductsOfOneRank(const char* experts, const std::string& end)
      : mesh(2, {{"experts", Layout::split(2, parse_partition(2, experts))}}),
        loaded(R"(
        input %x f32 [8, 1, 2]
        input %ids4 i32 [2, 2]
        weight %experts f32 [8, 3, 4]
        %products = mul_mat_id(%experts, %x, %ids4)
        %used = unary(%products) {kind=neg}
        %y = unary(%used) {kind=tanh}
        output %y
        )" + end,
               *mesh.device) {
    loaded.fill_inputs();
    backend->compute_async(*plan);
    backend->synchronize();
  }
  test::CpuMesh mesh;
  test::Loaded loaded;
  Tensor& products = *loaded.graph.find("products");
  std::unique_ptr<Backend> backend = mesh.device->init();
  std::unique_ptr<GraphPlan> plan = backend->create_plan(loaded.graph);
};

TEST(MetaBufferLimits, AccessToPartialTensorThatLacksAddendIsRefused) {
  for (const auto& [experts, missing] : {std::pair{"4:{0}", "rank 1"}, {"4:{1}", "rank 0"}}) {
    ProductsOfOneRank of(experts, "");
    Tensor& products = of.products;
    ASSERT_TRUE(shards_of(products).layout.is_partial()) << missing;
    const std::vector<float> values(12, 1.0f);
    std::vector<float> read(12);
    const auto refused = ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("products"), HasSubstr(missing)));
    EXPECT_THAT([&] { tensor_get(products, read.data(), 0, 48); }, refused);
    EXPECT_THAT([&] { tensor_set(products, values.data(), 0, 48); }, refused);
    EXPECT_THAT([&] { products.buffer->memset(products, 1, 0, 48); }, refused);
    EXPECT_THAT([&] { of.backend->set_async(products, values.data(), 0, 48); }, refused);
    EXPECT_THAT([&] { of.backend->get_async(products, read.data(), 0, 48); }, refused);
    EXPECT_THAT([&] { of.backend->copy_async(products, *of.backend, products); }, refused);
    of.backend->synchronize();
    products.buffer->clear(0);
  }
}

TEST(MetaBufferLimits, PartialOutputsHaveAddendsOnEveryRank) {
  for (const char* experts : {"4:{0}", "4:{1}"}) {
    ProductsOfOneRank of(experts, "output %products");
    const std::vector<float> values(12, 1.0f);
    tensor_set(of.products, values.data(), 0, 48);
    EXPECT_THAT(test::read_floats(of.products), Each(1.0f)) << experts;
    const std::vector<float> later(12, 2.0f);
    of.backend->set_async(of.products, later.data(), 0, 48);
    of.backend->synchronize();
    EXPECT_THAT(test::read_floats(of.products), Each(2.0f)) << experts;
  }
}

}  // namespace
}  // namespace shoal::meta
