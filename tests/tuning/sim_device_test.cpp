#include "tuning/sim_device.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal::sim {
namespace {

using testing::ThrowsMessage;

Device& make(const std::string& name, size_t memory, DeviceType type = DeviceType::kGpu) {
  return family().provide({name, "simulated", type, memory});
}

TEST(SimDevice, AnswersQueriesThatPlanningNeeds) {
  Device& device = make("G.0", 1 << 20);
  EXPECT_EQ(device.name(), "G.0");
  EXPECT_EQ(device.type(), DeviceType::kGpu);
  EXPECT_EQ(device.memory().free, size_t{1} << 20);
  EXPECT_EQ(device.props().memory.total, size_t{1} << 20);
  EXPECT_EQ(device.buffer_type().alignment(), 256u);
  EXPECT_EQ(make("C.0", 100, DeviceType::kCpu).buffer_type().alignment(), 64u);
  EXPECT_FALSE(device.buffer_type().is_host());
  Graph graph;
  Tensor* x = graph.input("x", DType::kQ4_K, {256, 3, 1, 1});
  EXPECT_TRUE(device.supports_op(*mul_mat(graph, x, graph.input("y", DType::kF32, {256, 2, 1, 1}))));
}

// Like CUDA devices, simulated GPUs stream weights from host memory. So predictions include these copies.
TEST(SimDevice, GpusStreamHostWeightsForManyColumns) {
  Device& gpu = make("G.3", 1 << 20);
  Device& cpu = make("C.1", 1 << 20, DeviceType::kCpu);
  EXPECT_TRUE(cpu.buffer_type().is_host());
  Graph graph;
  const auto input = [&](DType dtype, Shape shape) {
    return graph.input(std::to_string(graph.inputs().size()), dtype, shape);
  };
  const auto product = [&](int64_t tokens) {
    return mul_mat(graph, input(DType::kQ4_0, {64, 8, 1, 1}), input(DType::kF32, {64, tokens, 1, 1}));
  };
  const auto experts = [&](int64_t tokens) {  // each token uses 2 of 16 experts
    return mul_mat_id(graph, input(DType::kQ4_0, {64, 8, 16, 1}), input(DType::kF32, {64, 1, tokens, 1}),
                      input(DType::kI32, {2, tokens, 1, 1}));
  };
  EXPECT_FALSE(gpu.offload_op(*product(31)));
  EXPECT_TRUE(gpu.offload_op(*product(32)));
  EXPECT_FALSE(gpu.offload_op(*experts(255)));
  EXPECT_TRUE(gpu.offload_op(*experts(256)));
  EXPECT_FALSE(cpu.offload_op(*product(512))) << "the CPU already has the weights in its memory";
  EXPECT_FALSE(gpu.offload_op(*unary(graph, input(DType::kF32, {64, 512, 1, 1}), UnaryKind::kSilu)));
}

TEST(SimDevice, RefusesToRunOrAllocate) {
  Device& device = make("G.1", 1 << 20);
  EXPECT_THAT([&] { device.init(); },
              ThrowsMessage<DeviceError>("G.1 is simulated and cannot run anything; use shoal simulate"));
  EXPECT_THAT([&] { device.buffer_type().allocate(16); },
              ThrowsMessage<DeviceError>("G.1 is simulated and has no memory to read or write; use shoal simulate"));
}

TEST(SimDevice, IsNotListedButIsFoundByName) {
  Device& device = make("G.3", 1 << 20);
  Registry& registry = Registry::instance();
  for (const Device* listed : registry.devices()) EXPECT_NE(listed, &device);
  EXPECT_EQ(registry.find_device("g.3"), &device);
  Device& shadow = make("CPU0", 1 << 20);
  EXPECT_NE(registry.find_device("CPU0"), &shadow) << "the real device takes precedence";
}

TEST(SimDevice, EqualSpecsGiveSameDevice) {
  Device& device = make("G.4", 1 << 20);
  EXPECT_EQ(&make("G.4", 1 << 20), &device);
  Device& larger = make("G.4", 1 << 21);
  EXPECT_NE(&larger, &device);
  EXPECT_EQ(Registry::instance().find_device("G.4"), &larger);
  EXPECT_EQ(device.memory().total, size_t{1} << 20) << "plans may still use the earlier device";
}

}  // namespace
}  // namespace shoal::sim
