// Tests of meta devices over several processes. The processes are threads here. All processes take part in each read of
// a tensor.
#include <gmock/gmock.h>

#include <numeric>

#include "base/error.h"
#include "processes/remote_device.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"
#include "tests/support/thread_processes.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kRows = 6;

/// A meta device with members in processes 0 and 1, and two tensors of kRows rows. `divided` is split between the two
/// processes. Each of the two processes has all of `whole`. Process 2 has no member of the device.
struct World {
  explicit World(ProcessGroup& group) {
    std::vector<Device*> own;
    if (group.own() < 2) own.push_back(&Registry::instance().device("CPU" + std::to_string(group.own())));
    device = MetaDevice::create(gather_devices(group, own), test::callback_for({{"w", split(1, 2, "2:{0} 4:{1}")}}),
                                {.processes = &group});
    divided = context.add("w", DType::kF32, {8, kRows, 1, 1});
    whole = context.add("whole", DType::kF32, {8, kRows, 1, 1});
    memory = allocate_tensors(context.tensors(), device->buffer_type(), Usage::kWeights);
    std::iota(values.begin(), values.end(), 1.0F);
    for (Tensor* tensor : {divided, whole}) tensor_set(*tensor, values.data(), 0, values.size() * sizeof(float));
    backend = device->init();
  }
  std::vector<float> values = std::vector<float>(8 * kRows);
  std::unique_ptr<MetaDevice> device;
  TensorContext context;
  Tensor *divided, *whole;
  std::unique_ptr<Buffer> memory;
  std::unique_ptr<Backend> backend;
};

void in_three_processes(const std::function<void(ProcessGroup& group)>& function) {
  const test::CpuConfiguration configuration("devices=3,threads=1,memory=256M");
  const auto ends = test::in_processes({"a", "b", "c"}, function);
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
}

TEST(MetaOverProcesses, ReadsTensorsDividedBetweenProcesses) {
  in_three_processes([](ProcessGroup& group) {
    World world(group);
    for (const Tensor* tensor : {world.whole, world.divided}) {
      std::vector<float> seen(8 * kRows), row(8);
      world.backend->get_async(*tensor, seen.data(), 0, seen.size() * sizeof(float));
      world.backend->get_async(*tensor, row.data(), 3 * 8 * sizeof(float), row.size() * sizeof(float));
      world.backend->synchronize();
      EXPECT_EQ(seen, world.values) << tensor->name;
      EXPECT_EQ(row, std::vector<float>(world.values.begin() + 24, world.values.begin() + 32)) << tensor->name;
    }
  });
}

TEST(MetaOverProcesses, RefusesToSendToASimpleDevice) {
  in_three_processes([](ProcessGroup& group) {
    World world(group);
    const auto simple = Registry::instance().device("CPU2").init();
    float value = 0;
    EXPECT_THAT([&] { world.backend->get_async_for(*simple, *world.whole, &value, 0, sizeof(value)); },
                ThrowsMessage<InvalidArgument>(HasSubstr("cannot be sent to CPU2, which is not a meta device")));
  });
}

}  // namespace
}  // namespace shoal::meta
