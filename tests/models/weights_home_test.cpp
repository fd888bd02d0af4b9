#include "models/weights_home.h"

#include <gtest/gtest.h>

#include "tests/models/checks.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

class WeightsHomes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_cpu(*cpu_devices(1).front())) GTEST_SKIP() << "a plug-in says itself how its weights lie";
    model = open_model(tiny_model_path("q8_0"));
  }
  static bool is_cpu(const Device& device) { return device.reg().name() == "CPU"; }

  WeightsHome home(Device& device, const LoadOptions& options = {}) const {
    return weights_home(*model, device, model->weights.tensors(), {}, options);
  }
  /// Bytes of the whole model, repacked.
  size_t repacked_bytes() const {
    size_t bytes = 0;
    for (const Tensor* tensor : model->weights.tensors()) {
      bytes += cpu_devices(1).front()->weights_type().alloc_size(*tensor);
    }
    return bytes;
  }
  void expect_loaded() const {
    for (const Tensor* tensor : model->weights.tensors()) {
      std::vector<std::byte> bytes(tensor->bytes());
      tensor_get(*tensor, bytes.data(), 0, bytes.size());
      const std::byte* from = model->file.tensor(tensor->name).data;
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), from)) << tensor->name;
    }
  }

  std::unique_ptr<Model> model;
};

void expect_home(const WeightsHome& home, BufferType& type, bool mapped, bool repacked) {
  EXPECT_EQ(home.type, &type) << home.type->name();
  EXPECT_EQ(home.mapped, mapped);
  EXPECT_EQ(home.repacked, repacked);
}

TEST_F(WeightsHomes, RepackedWhereTheDeviceHasATypeForThat) {
  Device& device = *cpu_devices(1).front();
  ASSERT_TRUE(can_use_mapping(*model, device));
  expect_home(home(device), device.weights_type(), false, true);
  expect_home(home(device, {.use_mapping = false}), device.weights_type(), false, true);
  const Placement two(*model, cpu_devices(2));
  expect_home(home(two.device()), two.device().weights_type(), false, true);
  EXPECT_NE(&two.device().weights_type(), &two.device().buffer_type());
  Device& null = Registry::instance().device("NULL0");
  EXPECT_FALSE(home(null).repacked) << "its weights lie as anything else";
  EXPECT_EQ(home(null).type, &null.buffer_type());
}

TEST_F(WeightsHomes, AsTheyAreWhereThatIsAskedFor) {
  Device& device = *cpu_devices(1).front();
  expect_home(home(device, {.repack = false}), device.buffer_type(), true, false);
  expect_home(home(device, {.use_mapping = false, .repack = false}), device.buffer_type(), false, false);
  expect_home(home(device, {.prefer_mapping = true}), device.buffer_type(), true, false);
  expect_home(home(device, {.use_mapping = false, .prefer_mapping = true}), device.weights_type(), false, true);
  const Placement two(*model, cpu_devices(2));
  expect_home(home(two.device(), {.repack = false}), two.device().buffer_type(), false, false);
  expect_home(home(two.device(), {.prefer_mapping = true}), two.device().weights_type(), false, true);
}

/// A tenth of what is free stays free, where there is a choice.
TEST_F(WeightsHomes, MappedWhereMemoryIsShort) {
  const size_t needed = repacked_bytes();
  const auto at = [&](size_t free, auto&& check) {
    const LimitedCpuDevices limited("memory=" + std::to_string(free));
    Device& device = *cpu_devices(1).front();
    ASSERT_EQ(device.memory().free, free);
    check(device);
  };
  at(needed * 10 / 9 + 10, [&](Device& device) { EXPECT_TRUE(home(device).repacked); });
  at(needed * 10 / 9 - 10, [&](Device& device) {
    expect_home(home(device), device.buffer_type(), true, false);
    EXPECT_TRUE(home(device, {.use_mapping = false}).repacked) << "it fits";
  });
  at(needed - 1,
     [&](Device& device) { expect_home(home(device, {.use_mapping = false}), device.buffer_type(), false, false); });
}

TEST_F(WeightsHomes, NotRepackedWhereAnAllocationCannotHaveATensor) {
  const LimitedCpuDevices limited("max_size=100K");
  Device& device = *cpu_devices(1).front();
  EXPECT_FALSE(home(device).repacked);
  EXPECT_TRUE(home(device).mapped);
}

/// Weights that others would have brought to them lie in host memory as they are; a meta device's own do not.
TEST_F(WeightsHomes, AsTheyAreOnTheHostBesideADeviceThatHasThemBrought) {
  PlacementOptions options{{}, 1};
  options.overrides = {{"ffn", "CPU"}};
  for (const int64_t batch : {0, 4}) {
    options.offload_batch = batch;
    const Placement placement(*model, cpu_groups({2}), options);
    ASSERT_EQ(placement.devices().size(), 2u);
    std::vector<std::vector<Tensor*>> weights(2);
    for (Tensor* tensor : model->weights.tensors()) {
      weights[static_cast<size_t>(placement.device_of(*tensor))].push_back(tensor);
    }
    const auto home_of = [&](size_t i) {
      return weights_home(*model, *placement.devices()[i], weights[i], placement.devices(), {});
    };
    Device& host = *placement.devices()[1];
    ASSERT_FALSE(weights[1].empty());
    EXPECT_TRUE(home_of(0).repacked) << batch;
    if (batch == 0) {
      expect_home(home_of(1), host.weights_type(), false, true);
    } else {
      expect_home(home_of(1), host.buffer_type(), true, false);
    }
  }
}

TEST_F(WeightsHomes, LoadingDoesWhatItSays) {
  struct Case {
    std::string limit;
    LoadOptions options;
    bool mapped, repacked;
  };
  const Case cases[] = {
      {"memory=64M", {}, false, true},
      {"memory=64M", {.repack = false}, true, false},
      {"memory=64M", {.use_mapping = false, .repack = false}, false, false},
      {"memory=" + std::to_string(repacked_bytes() * 21 / 20), {}, true, false},
      {"max_size=1M", {.use_mapping = false}, false, true},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.limit);
    const LimitedCpuDevices limited(one.limit);
    Device& device = *cpu_devices(1).front();
    load_weights(*model, device, {}, one.options);
    const auto [bytes, size] = std::pair(model->file.tensor_span().data(), model->file.tensor_span().size());
    for (const Tensor* tensor : model->weights.tensors()) {
      EXPECT_EQ(tensor->data >= bytes && tensor->data < bytes + size, one.mapped) << tensor->name;
      EXPECT_EQ(&tensor->buffer->type() == &device.weights_type(), one.repacked) << tensor->name;
    }
    expect_loaded();
    unload_weights(*model);
  }
}

/// The same model, wherever its weights lie, on one device and on several.
TEST_F(WeightsHomes, LogitsAreTheSame) {
  const std::vector<int32_t> prompt{1, 527, 261, 345, 340, 290, 261, 743, 959, 967, 270}, next{261};
  for (const int devices : {1, 3}) {
    std::vector<float> expected;
    for (const bool repack : {false, true}) {
      const Placement placement(*model, cpu_devices(devices), {{}, 1});
      load_weights(*model, placement, {}, {.repack = repack});
      {
        Session session(*model, placement, placement.init(), {.context = 128, .batch = 8});
        session.evaluate(prompt);
        session.evaluate(next);
        const std::span<const float> logits = session.logits();
        const std::vector<float> got(logits.begin(), logits.end());
        if (repack) {
          EXPECT_LT(worst(expected, got), 1e-4) << devices;
        }
        expected = got;
      }
      unload_weights(*model);
    }
  }
}

}  // namespace
}  // namespace shoal::models
