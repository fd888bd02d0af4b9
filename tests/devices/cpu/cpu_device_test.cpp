#include "devices/cpu/cpu_device.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/cpu_plan.h"
#include "devices/cpu/topology.h"
#include "graph/ops/ops.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal::cpu {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::span<Device* const> cpus() {
  return Registry::instance().find_family("CPU")->devices();
}

TEST(CpuDevices, DefaultIsOneDevicePerNode) {
  const test::CpuConfiguration configuration("");
  if (std::getenv("SHOAL_CPU_DEVICES") != nullptr) GTEST_SKIP() << "SHOAL_CPU_DEVICES is set";
  ASSERT_EQ(cpus().size(), machine_nodes().size());
  EXPECT_EQ(cpus()[0]->name(), "CPU0");
  int threads = 0;
  for (const Device* device : cpus()) threads += default_threads(*device);
  EXPECT_LE(threads, std::max<int>(usable_cores(), static_cast<int>(cpus().size())));
  EXPECT_GE(threads, usable_cores() - static_cast<int>(cpus().size()));
  EXPECT_THAT(cpus()[0]->description(), HasSubstr(cpu_model()));
  EXPECT_THAT(cpus()[0]->description(), HasSubstr("core"));
  EXPECT_EQ(cpus()[0]->type(), DeviceType::kCpu);
}

TEST(CpuDevices, NumberOfDevicesIsConfigurable) {
  const test::CpuConfiguration configuration("devices=5,threads=3");
  ASSERT_EQ(cpus().size(), 5U);
  EXPECT_EQ(cpus()[4]->name(), "CPU4");
  EXPECT_EQ(default_threads(*cpus()[4]), 3);
  EXPECT_EQ(cpus()[0]->props().caps.peers, (std::vector<std::string>{"CPU1", "CPU2", "CPU3", "CPU4"}));
  const auto backend = cpus()[1]->init();
  EXPECT_EQ(dynamic_cast<CpuBackend&>(*backend).threads(), 3);
}

TEST(CpuDevices, NumberOfDevicesComesFromEnvironment) {
  const char* before = std::getenv("SHOAL_CPU_DEVICES");
  const std::string saved = before != nullptr ? before : "";
  setenv("SHOAL_CPU_DEVICES", "7", 1);
  configure({});
  EXPECT_EQ(cpus().size(), 7U);
  configure("devices=2");
  EXPECT_EQ(cpus().size(), 2U) << "configure() overrides the environment";
  setenv("SHOAL_CPU_DEVICES", "0", 1);
  configure({});
  EXPECT_EQ(cpus().size(), machine_nodes().size()) << "0 means off";
  setenv("SHOAL_CPU_DEVICES", "many", 1);
  EXPECT_THAT([] { configure({}); }, ThrowsMessage<InvalidArgument>(HasSubstr("SHOAL_CPU_DEVICES")));
  before != nullptr ? setenv("SHOAL_CPU_DEVICES", saved.c_str(), 1) : unsetenv("SHOAL_CPU_DEVICES");
  configure({});
}

TEST(CpuDevices, InvalidParametersAreRejected) {
  EXPECT_THAT([] { configure("device=2"); }, ThrowsMessage<InvalidArgument>(HasSubstr("devices, threads")));
  EXPECT_THROW(configure("devices=-1"), InvalidArgument);
  EXPECT_THROW(configure("devices=many"), InvalidArgument);
  const auto backend = cpus()[0]->init();
  EXPECT_THAT([] { configure("devices=2"); }, ThrowsMessage<InvalidArgument>(HasSubstr("1 backends and buffers")));
}

TEST(CpuDevices, BuffersPreventReconfiguration) {
  {
    const auto buffer = cpus()[0]->buffer_type().allocate(64);
    EXPECT_THROW(configure("devices=2"), InvalidArgument);
  }
  const test::CpuConfiguration configuration("devices=2");
  EXPECT_EQ(cpus().size(), 2U);
}

TEST(CpuDevices, EnforceMemoryLimits) {
  const test::CpuConfiguration configuration("devices=2,memory=1M,max_size=600K");
  Device& device = *cpus()[1];
  EXPECT_EQ(device.memory().total, size_t{1} << 20);
  EXPECT_EQ(device.buffer_type().max_size(), size_t{600} << 10);
  EXPECT_THAT(
      [&] { device.buffer_type().allocate(700 << 10); },
      ThrowsMessage<DeviceError>(
          HasSubstr("[CPU1] an allocation is limited to 600.0 KiB, but 700.0 KiB were requested")));
  auto first = device.buffer_type().allocate(600 << 10);
  EXPECT_EQ(device.memory().free, size_t{424} << 10);
  EXPECT_THAT([&] { device.buffer_type().allocate(500 << 10); },
              ThrowsMessage<DeviceError>(
                  HasSubstr("[CPU1] out of memory: 500.0 KiB requested, 424.0 KiB free: use more devices")));
  const auto other = cpus()[0]->buffer_type().allocate(500 << 10);  // each device has its own limit
  first.reset();
  EXPECT_EQ(device.memory().free, size_t{1} << 20);
  const auto second = device.buffer_type().allocate(500 << 10);
}

TEST(CpuDevices, TensorsUseSeveralAllocationsIfNeeded) {
  const test::CpuConfiguration configuration("max_size=64K");
  TensorContext context;
  for (const char* name : {"a", "b", "c"}) context.add(name, DType::kF32, {12000, 1, 1, 1});
  const auto buffer = allocate_tensors(context.tensors(), cpus()[0]->buffer_type(), Usage::kWeights);
  EXPECT_EQ(buffer->parts().size(), 3U);
}

TEST(CpuDevices, DevicesReportTheirShareOfNodeMemory) {
  size_t one = 0;
  {
    const test::CpuConfiguration configuration("devices=1");
    one = cpus()[0]->memory().total;
  }
  const test::CpuConfiguration configuration("devices=4");
  if (machine_nodes().size() != 1) GTEST_SKIP() << "this machine has several nodes";
  EXPECT_EQ(cpus()[0]->memory().total, one / 4);
}

TEST(CpuDevices, DevicesKeepWorkingAfterReconfiguration) {
  Device* before = cpus()[0];
  const test::CpuConfiguration configuration("devices=2");
  EXPECT_NE(cpus()[0], before);
  before->init()->synchronize();
}

TEST(CpuDevices, ReadEachOthersMemory) {
  const test::CpuConfiguration configuration("devices=2");
  EXPECT_TRUE(cpus()[0]->supports_buffer_type(cpus()[1]->buffer_type()));
  Device& null = Registry::instance().device("NULL0");
  EXPECT_FALSE(cpus()[0]->supports_buffer_type(null.buffer_type()));
  // create_plan() must report weights in memory that the device cannot read.
  TensorContext context;
  Tensor* weight = context.add("far", DType::kF32, {4, 1, 1, 1});
  const auto memory = allocate_tensors({&weight, 1}, null.buffer_type(), Usage::kWeights);
  Graph graph;
  graph.output(scale(graph, weight, {2, 0}));
  const auto backend = cpus()[0]->init();
  EXPECT_THAT([&] { backend->create_plan(graph); },
              ThrowsMessage<DeviceError>(HasSubstr("[CPU0] cannot read far of '%scale_0 = scale(%far)")));
}

TEST(CpuDevices, ErrorNamesUnsupportedNode) {
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* node = graph.output(rms_norm(graph, x, {}, "norm"));
  node->dtype = DType::kF16;  // no kernel writes this dtype
  EXPECT_FALSE(cpus()[0]->supports_op(*node));
  const auto backend = cpus()[0]->init();
  EXPECT_THAT([&] { backend->create_plan(graph); },
              ThrowsMessage<DeviceError>(HasSubstr("[CPU0] cannot run '%norm = rms_norm(%x)")));
  EXPECT_EQ(x->buffer, nullptr);
}

TEST(CpuDevices, WorkspacesSufficeForTheLargestTeam) {
  const test::CpuConfiguration configuration("devices=1,threads=1");
  Graph graph;
  Tensor* q = graph.input("q", DType::kF32, {64, 8, 4, 1});
  Tensor* k = graph.input("k", DType::kF16, {64, 32, 4, 1});
  Tensor* node = attention(graph, q, k, k, nullptr, nullptr, nullptr, {});
  const OpKernel& kernel = kernel_for(Op::kAttention);
  ASSERT_NE(kernel.workspace, nullptr);
  EXPECT_EQ(cpus()[0]->workspace_size(*node), kernel.workspace(*node, 1));
  cpus()[0]->init("threads=6");
  EXPECT_EQ(cpus()[0]->workspace_size(*node), kernel.workspace(*node, 6));
  cpus()[0]->init("threads=2");
  EXPECT_EQ(cpus()[0]->workspace_size(*node), kernel.workspace(*node, 6));
}

TEST(CpuDevices, HostMemoryNeedsOnlySmallAlignment) {
  alignas(64) std::byte memory[128] = {};
  const auto buffer = cpus()[0]->buffer_from_host_ptr(memory + 8, 120);
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {4, 1, 1, 1});
  buffer->place(*x, 32);
  EXPECT_EQ(x->data, memory + 40);
  EXPECT_THROW(cpus()[0]->buffer_from_host_ptr(nullptr, 8), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cpu
