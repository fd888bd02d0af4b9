// Tests of init() and of the properties that a device reports.
#pragma once

#include "tests/devices/conformance/case.h"

namespace shoal::test {

class DeviceSuite : public DeviceFixture {};

TEST_P(DeviceSuite, ReportsConsistentProperties) {
  const DeviceProps props = device().props();
  EXPECT_EQ(props.name, device().name());
  EXPECT_EQ(props.description, device().description());
  EXPECT_EQ(props.type, device().type());
  EXPECT_FALSE(props.name.empty());
  EXPECT_FALSE(props.description.empty());
  EXPECT_FALSE(name_of(props.type).empty());
  EXPECT_GT(props.memory.total, 0U);
  EXPECT_LE(props.memory.free, props.memory.total);
}

TEST_P(DeviceSuite, CapabilitiesMatchBehaviour) {
  const DeviceCaps caps = device().props().caps;
  EXPECT_EQ(caps.events, device().new_event() != nullptr);
  EXPECT_EQ(caps.host_buffer, device().host_buffer_type() != nullptr);
  alignas(64) std::byte memory[64] = {};
  EXPECT_EQ(caps.buffer_from_host_ptr, device().buffer_from_host_ptr(memory, 64) != nullptr);
}

TEST_P(DeviceSuite, WrapsHostMemoryWithoutACopy) {
  alignas(64) float memory[64] = {};
  const auto buffer = device().buffer_from_host_ptr(memory, sizeof(memory));
  if (buffer == nullptr) GTEST_SKIP() << "not supported by this device";
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {16, 1, 1, 1});
  buffer->place(*x, 64);
  set_floats(*x, ramp(16));
  EXPECT_EQ(memory[16 + 5], 5.0f);
  EXPECT_EQ(memory[15], 0.0f);
  EXPECT_TRUE(device().supports_buffer_type(buffer->type()));
  Graph graph;
  Tensor* y = graph.output(scale(graph, x, {3.0f, 0.0f}));
  const auto backend = new_backend();
  const auto plan = backend->create_plan(graph);
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  EXPECT_EQ(get_floats(*y), ramp(16, 3.0f));
}

TEST_P(DeviceSuite, SupportsItsOwnBufferType) {
  EXPECT_EQ(&device().buffer_type().device(), &device());
  EXPECT_FALSE(device().buffer_type().name().empty());
  EXPECT_TRUE(device().supports_buffer_type(device().buffer_type()));
  const size_t alignment = device().buffer_type().alignment();
  EXPECT_EQ(alignment & (alignment - 1), 0U);
}

TEST_P(DeviceSuite, SupportsViews) {
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 4, 1, 1});
  EXPECT_TRUE(device().supports_op(*transpose(graph, x)));
  EXPECT_TRUE(device().supports_op(*reshape(graph, x, {16, 1, 1, 1})));
}

TEST_P(DeviceSuite, RefusesUnknownParameters) {
  try {
    device().init("nonsense=1");
    FAIL() << "an unknown parameter was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("nonsense"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("known"), std::string::npos) << error.what();
  }
  EXPECT_THROW(device().init("threads"), InvalidArgument);
}

TEST_P(DeviceSuite, CreatesSeveralStreams) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int i = 0; i < 8; ++i) backends.push_back(new_backend());
  for (const auto& backend : backends) backend->synchronize();
}

TEST_P(DeviceSuite, CountsLiveObjectsAsUsesOfTheFamily) {
  const BackendReg& family = device().reg();
  const int before = family.uses();
  {
    const auto backend = new_backend();
    EXPECT_GE(family.uses(), before + 1) << "a backend";
    const int with_backend = family.uses();
    const auto buffer = device().buffer_type().allocate(64);
    EXPECT_GE(family.uses(), with_backend + 1) << "a buffer";
    const int with_buffer = family.uses();
    const auto event = device().new_event();
    EXPECT_GE(family.uses(), with_buffer + (event != nullptr ? 1 : 0)) << "an event";
  }
  EXPECT_EQ(family.uses(), before);
}

}  // namespace shoal::test
