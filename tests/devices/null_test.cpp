#include <gmock/gmock.h>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "tests/support/null/null_device.h"

namespace shoal::null {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Null : testing::Test {
  Null() {
    x = graph.input("x", DType::kF32, {4, 1, 1, 1});
    y = scale(graph, x, {2, 0}, "y");
    z = graph.output(scale(graph, y, {2, 0}, "z"));
  }
  std::unique_ptr<NullBackend> init(std::string_view params = {}) {
    auto backend = Registry::instance().device("NULL0").init(params);
    return std::unique_ptr<NullBackend>(&dynamic_cast<NullBackend&>(*backend.release()));
  }
  Graph graph;
  Tensor *x, *y, *z;
};

TEST_F(Null, RecordsCalls) {
  const auto backend = init();
  const auto plan = backend->create_plan(graph);
  const float values[] = {1, 2, 3, 4};
  float back[4] = {};
  backend->set_async(*x, values, 0, 16);
  backend->compute_async(*plan);
  backend->copy_async(*x, *backend, *z);
  backend->get_async(*z, back, 4, 8);
  backend->synchronize();
  EXPECT_THAT(backend->calls(), ElementsAre(Call{"set", "x", 16}, Call{"compute", "y", 16}, Call{"compute", "z", 16},
                                            Call{"copy", "x", 16}, Call{"synchronize", "", 0}, Call{"get", "z", 8},
                                            Call{"synchronize", "", 0}));
  EXPECT_EQ(back[0], 2.0f) << "the device stores values";
  backend->clear_calls();
  EXPECT_TRUE(backend->calls().empty());
}

TEST_F(Null, FailsAtTheNamedNode) {
  const auto backend = init("fail_node=y");
  const auto plan = backend->create_plan(graph);
  backend->compute_async(*plan);
  EXPECT_THAT(backend->calls(), ElementsAre(Call{"compute", "y", 16}));
  EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("node y failed")));
  backend->synchronize();
  EXPECT_EQ(backend->compute(*plan), Status::kFailed);
}

TEST_F(Null, StallsForTheGivenTime) {
  const auto backend = init("stall_ms=30");
  const auto begin = std::chrono::steady_clock::now();
  backend->synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
}

TEST_F(Null, FailsAllocationsBeyondItsLimits) {
  Device& device = Registry::instance().find_family("null")->create_device("max_size=1K,fail_alloc_after=2K");
  EXPECT_NE(device.name(), "NULL0");
  const auto first = device.buffer_type().allocate(1024);
  EXPECT_THROW(device.buffer_type().allocate(1025), DeviceError);
  auto second = device.buffer_type().allocate(1024);
  EXPECT_THROW(device.buffer_type().allocate(1), DeviceError);
  second.reset();
  device.buffer_type().allocate(1);
}

}  // namespace
}  // namespace shoal::null
