// Tests in which a meta device or a tensor on a meta device is destroyed before its users. Similar tests for all
// devices are in tests/devices/conformance/lifetime_suite.h.
#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "meta/device/meta_backend.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"
#include "tests/support/gate.h"

namespace shoal::meta {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kMlp = R"(
weight %up f32 [8, 12]
weight %down f32 [12, 8]
cache %k f32 [8, 6]
input %x f32 [8, 3]
input %ids6 i32 [3]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=relu}
%y = mul_mat(%down, %a)
%s = set_rows(%k, %y, %ids6)
%z = scale(%s) {scale=2}
output %z
)";

test::Layouts layouts() {
  return {{"up", Layout::split(1, parse_partition(2, "8:{0} 4:{1}"))},
          {"down", Layout::split(0, parse_partition(2, "8:{0} 4:{1}"))},
          {"k", Layout::split(0, Partition::even(2, 8))}};
}

struct Lifetime : testing::Test {
  void plan() {
    plan_ = backend->create_plan(model.graph);
    inputs();
  }
  void inputs() {
    model.fill_inputs();
    const int32_t ids[] = {0, 2, 4};
    tensor_set(*model.graph.find("ids6"), ids, 0, sizeof(ids));
  }
  std::vector<float> result() {
    backend->compute_async(*plan_);
    backend->synchronize();
    return test::read_floats(*model.graph.find("z"));
  }
  test::CpuMesh mesh{2, layouts()};
  test::Loaded model{kMlp, *mesh.device};
  std::unique_ptr<Backend> backend = mesh.device->init();
  std::unique_ptr<GraphPlan> plan_;
};

auto says_device_has_gone() {
  return ThrowsMessage<InvalidArgument>(
      AllOf(HasSubstr("META(CPU0,CPU1) has been destroyed"), HasSubstr("destroy the device")));
}

TEST_F(Lifetime, PlanBackendAndBufferOutliveDevice) {
  plan();
  const std::vector<float> expected = result();
  mesh.device.reset();
  // Existing objects continue to work after the device is destroyed.
  inputs();
  EXPECT_EQ(result(), expected);
  EXPECT_EQ(backend->name(), "META(CPU0,CPU1)");
  finish_queued(*backend);
  EXPECT_EQ(test::read_floats(*model.weights.find("up")).size(), 96u);
  // Calls that need the destroyed device throw InvalidArgument.
  EXPECT_THAT([&] { backend->device(); }, says_device_has_gone());
  EXPECT_THAT([&] { model.memory->type().device(); }, says_device_has_gone());
  plan_.reset();
  EXPECT_THAT([&] { backend->create_plan(model.graph); }, says_device_has_gone());
  TensorContext more;
  more.add("more", DType::kF32, {8, 8, 1, 1});
  BufferType& type = model.memory->type();
  EXPECT_THAT([&] { allocate_tensors(more.tensors(), type, Usage::kWeights); }, says_device_has_gone());
  backend.reset();
  model.memory.reset();
  EXPECT_EQ(model.weights.find("up")->buffer, nullptr);
}

TEST_F(Lifetime, DeviceMayBeDestroyedWhileStreamsAreBusy) {
  plan();
  test::Gate gate;
  ASSERT_TRUE(backend->enqueue(gate.task()));
  backend->compute_async(*plan_);
  mesh.device.reset();
  gate.open = true;
  plan_.reset();
  backend.reset();
  model.memory.reset();
}

TEST_F(Lifetime, EventsOutliveDevice) {
  const auto event = mesh.device->new_event();
  event->record(*backend);
  mesh.device.reset();
  event->synchronize();
  EXPECT_THAT([&] { event->device(); }, says_device_has_gone());
}

TEST_F(Lifetime, WeightsCanBePlacedAgainAfterBufferIsFreed) {
  plan();
  const std::vector<float> expected = result();
  for (const bool by_reset : {true, false}) {
    by_reset ? model.memory->reset() : model.memory.reset();
    EXPECT_THAT([&] { backend->compute_async(*plan_); }, ThrowsMessage<InvalidArgument>(HasSubstr("freed or reset")));
    EXPECT_THROW(layout_of(*model.weights.find("up")), InvalidArgument);
    plan_.reset();
    EXPECT_THAT([&] { backend->create_plan(model.graph); }, ThrowsMessage<InvalidArgument>(HasSubstr("place it")));
    auto memory = allocate_tensors(model.weights.tensors(), mesh.device->buffer_type(), Usage::kWeights);
    ASSERT_NE(memory, nullptr);
    model.memory = std::move(memory);
    for (Tensor* leaf : model.weights.tensors()) model.fill(*leaf);
    plan();
    EXPECT_EQ(result(), expected);
  }
}

/// The meta device still has the shards of a destroyed tensor. A new tensor at the address of the destroyed tensor must
/// not get these shards.
TEST_F(Lifetime, NewTensorDoesNotInheritShardsOfDestroyedTensor) {
  auto& type = mesh.device->buffer_type();
  alignas(Tensor) std::byte place[sizeof(Tensor)];
  const auto make = [&](int64_t rows) {
    auto* tensor = new (place) Tensor;
    tensor->name = "up";
    tensor->role = Role::kWeight;
    tensor->shape = {8, rows, 1, 1};
    tensor->strides = contiguous_strides(DType::kF32, tensor->shape);
    return tensor;
  };
  Tensor* tensor = make(12);
  auto before = allocate_tensors({&tensor, 1}, type, Usage::kWeights);
  EXPECT_EQ(shard(*tensor, 0).shape[1], 8);
  tensor->~Tensor();
  tensor = make(12);
  EXPECT_EQ(tensor->buffer, nullptr);
  const auto after = allocate_tensors({&tensor, 1}, type, Usage::kWeights);
  const std::vector<float> values(96, 3.0f);
  tensor_set(*tensor, values.data(), 0, 384);
  before->clear(1);
  before.reset();
  EXPECT_EQ(test::read_floats(*tensor), values);
  EXPECT_NE(mesh.device->shards().find(*tensor), nullptr);
  EXPECT_EQ(shard(*tensor, 1).shape[1], 4);
  tensor->~Tensor();
}

}  // namespace
}  // namespace shoal::meta
