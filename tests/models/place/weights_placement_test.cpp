#include "models/place/weights_placement.h"

#include <gtest/gtest.h>

#include "models/session/model_plan.h"
#include "tests/models/checks.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"
#include "tests/sched/proxy.h"

namespace shoal::models {
namespace {

class WeightsPlacements : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_cpu(*cpu_devices(1).front())) GTEST_SKIP() << "plug-ins have their own layouts of weights";
    model = open_model(tiny_model_path("q8_0"));
  }
  static bool is_cpu(const Device& device) { return device.reg().name() == "CPU"; }

  WeightsPlacement home(Device& device, const LoadOptions& options = {}) const {
    return place_weights(*model, device, model->weights.tensors(), {}, options);
  }
  /// Bytes of all weights after repacking.
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

void expect_home(const WeightsPlacement& home, BufferType& type, bool mapped, bool repacked) {
  EXPECT_EQ(home.type, &type) << home.type->name();
  EXPECT_EQ(home.mapped, mapped);
  EXPECT_EQ(home.repacked, repacked);
}

TEST_F(WeightsPlacements, WeightsAreRepackedIfDeviceHasRepackedType) {
  Device& device = *cpu_devices(1).front();
  ASSERT_TRUE(can_use_mapping(*model, device));
  expect_home(home(device), device.weights_type(), false, true);
  expect_home(home(device, {.use_mapping = false}), device.weights_type(), false, true);
  const Placement two(*model, cpu_devices(2));
  expect_home(home(two.device()), two.device().weights_type(), false, true);
  EXPECT_NE(&two.device().weights_type(), &two.device().buffer_type());
  Device& null = Registry::instance().device("NULL0");
  EXPECT_FALSE(home(null).repacked) << "this device has no separate layout for weights";
  EXPECT_EQ(home(null).type, &null.buffer_type());
}

TEST_F(WeightsPlacements, OptionsDisableRepacking) {
  Device& device = *cpu_devices(1).front();
  expect_home(home(device, {.repack = false}), device.buffer_type(), true, false);
  expect_home(home(device, {.use_mapping = false, .repack = false}), device.buffer_type(), false, false);
  expect_home(home(device, {.prefer_mapping = true}), device.buffer_type(), true, false);
  expect_home(home(device, {.use_mapping = false, .prefer_mapping = true}), device.weights_type(), false, true);
  const Placement two(*model, cpu_devices(2));
  expect_home(home(two.device(), {.repack = false}), two.device().buffer_type(), false, false);
  expect_home(home(two.device(), {.prefer_mapping = true}), two.device().weights_type(), false, true);
}

/// The device can use the file mapping instead of a repacked copy. So weights are repacked only if at least a tenth of
/// the free memory remains free.
TEST_F(WeightsPlacements, WeightsAreMappedIfMemoryIsShort) {
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
    EXPECT_TRUE(home(device, {.use_mapping = false}).repacked) << "a repacked copy fits";
  });
  at(needed - 1,
     [&](Device& device) { expect_home(home(device, {.use_mapping = false}), device.buffer_type(), false, false); });
}

TEST_F(WeightsPlacements, WeightsAreNotRepackedIfAllocationLimitIsSmall) {
  const LimitedCpuDevices limited("max_size=100K");
  Device& device = *cpu_devices(1).front();
  EXPECT_FALSE(home(device).repacked);
  EXPECT_TRUE(home(device).mapped);
}

/// Stores two values per device: its WeightsPlacement, and whether the prompt schedule streams weights of this device
/// to another device.
struct Placed {
  Placed(const Model& model, const Placement& placement, bool op_offload) : homes(placement.devices().size()) {
    const LoadOptions plain{.repack = false}, options{.op_offload = op_offload};
    const SessionOptions session{.context = 64, .batch = 16, .op_offload = op_offload};
    const ModelPlan plan(model, placement, session, plain);
    brought.resize(homes.size());
    const PlannedGraph& prompt = plan.prompts.front();
    for (const Tensor* node : prompt.graph.graph->nodes()) {
      if (prompt.schedule.nodes[static_cast<size_t>(node->id)].reason != sched::Reason::kOffload) continue;
      brought[static_cast<size_t>(placement.device_of(*node->src[0]))] = true;
    }
    for (size_t d = 0; d < homes.size(); ++d) {
      std::vector<Tensor*> weights;
      for (Tensor* tensor : model.weights.tensors()) {
        if (placement.device_of(*tensor) == static_cast<int>(d)) weights.push_back(tensor);
      }
      homes[d] = place_weights(model, *placement.devices()[d], weights, placement.devices().first(d), options);
    }
  }
  std::vector<WeightsPlacement> homes;
  std::vector<bool> brought;
};

PlacementOptions with_override(const std::string& pattern, const std::string& device, int64_t offload_batch) {
  PlacementOptions options{{}, 1};
  options.overrides = {{pattern, device}};
  options.offload_batch = offload_batch;
  return options;
}

/// Only host weights that a schedule streams to another device keep the layout of the file.
TEST_F(WeightsPlacements, StreamedHostWeightsAreNotRepacked) {
  for (const int64_t batch : {0, 4}) {
    const Placement placement(*model, cpu_groups({2}), with_override("ffn", "CPU", batch));
    ASSERT_EQ(placement.devices().size(), 2u);
    Device& host = *placement.devices()[1];
    for (const bool op_offload : {false, true}) {
      const Placed placed(*model, placement, op_offload);
      const bool brought = batch > 0 && op_offload;
      EXPECT_EQ(placed.brought, (std::vector{false, brought})) << batch << op_offload;
      EXPECT_TRUE(placed.homes[0].repacked) << "a meta device has no host memory";
      expect_home(placed.homes[1], brought ? host.buffer_type() : host.weights_type(), brought, !brought);
    }
  }
}

TEST_F(WeightsPlacements, WeightsAreRepackedUnlessEarlierDeviceStreamsThem) {
  PlacementOptions options = with_override("ffn", "CPU0", 4);
  options.mode = SplitMode::kLayer;
  for (const auto& [groups, host] : {std::pair{std::vector{1, 2}, 0}, std::pair{std::vector{2, 1}, 1}}) {
    options.overrides.front().device = host == 0 ? "CPU0" : "CPU2";
    const Placement placement(*model, cpu_groups(groups), options);
    ASSERT_EQ(placement.devices().size(), 2u);
    ASSERT_EQ(placement.policy_of(host), nullptr);
    const Placed placed(*model, placement, true);
    EXPECT_EQ(placed.brought, (std::vector{false, host == 1})) << host;
    EXPECT_EQ(placed.homes[static_cast<size_t>(host)].repacked, host == 0);
    EXPECT_TRUE(placed.homes[static_cast<size_t>(1 - host)].repacked);
  }
}

TEST_F(WeightsPlacements, StreamedExpertsAreNotRepacked) {
  SyntheticModel synthetic;
  synthetic.h.experts = 8;
  synthetic.h.experts_used = 2;
  model = open_model(synthetic.write());
  for (const int64_t batch : {0, 4}) {
    const Placement placement(*model, cpu_groups({2}), with_override("_exps", "CPU", batch));
    const Placed placed(*model, placement, true);
    EXPECT_EQ(placed.brought, (std::vector{false, batch > 0}));
    EXPECT_EQ(placed.homes[1].repacked, batch == 0);
  }
}

/// A second device requests the products of large batches (Device::offload_op). If the second device supports no
/// product with the weights, the weights on the first device are repacked anyway.
TEST_F(WeightsPlacements, WeightsAreRepackedIfOtherDeviceCannotRunProducts) {
  Device& device = *cpu_devices(1).front();
  test::ProxyDevice other(*cpu_devices(2).back());
  Device* const before[] = {&other};
  const auto repacked = [&] { return place_weights(*model, device, model->weights.tensors(), before, {}).repacked; };
  EXPECT_TRUE(repacked()) << "the other device wants no weights";
  other.wants = [](const Tensor& node) { return node.shape[1] >= 100'000; };
  EXPECT_FALSE(repacked());
  other.refuses = [](const Tensor& node) { return node.shape[1] >= 100'000; };
  EXPECT_FALSE(repacked()) << "smaller batches may still be supported";
  other.refuses = [](const Tensor& node) { return node.src[0]->dtype == DType::kQ8_0; };
  EXPECT_TRUE(repacked());
  other.refuses = nullptr;
  other.wants = [](const Tensor& node) { return node.op != Op::kMulMat; };
  EXPECT_TRUE(repacked());
}

TEST_F(WeightsPlacements, MemoryLimitsAndOptionsDetermineMappingAndRepacking) {
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
    load_weights(*model, Placement(*model, cpu_devices(1)), {}, one.options);
    const auto [bytes, size] = std::pair(model->file.tensor_span().data(), model->file.tensor_span().size());
    for (const Tensor* tensor : model->weights.tensors()) {
      EXPECT_EQ(tensor->data >= bytes && tensor->data < bytes + size, one.mapped) << tensor->name;
      EXPECT_EQ(&tensor->buffer->type() == &device.weights_type(), one.repacked) << tensor->name;
    }
    expect_loaded();
    unload_weights(*model);
  }
}

/// Largest difference between the logits of file weights and the logits of repacked weights. Evaluates a full batch,
/// then single tokens.
double difference_of_repacking(const std::string& path, int devices) {
  const std::vector<int32_t> prompt{1, 27, 61, 45, 40, 90, 61, 43}, next{59, 67, 70};
  const auto model = open_model(path);
  std::vector<std::vector<float>> results;
  for (const bool repack : {false, true}) {
    const Placement placement(*model, cpu_devices(devices), {{}, 1});
    load_weights(*model, placement, {}, {.repack = repack});
    {
      Session session(*model, placement, placement.init(),
                      {.context = 64, .batch = 8, .dtype_k = DType::kF32, .dtype_v = DType::kF32});
      std::vector<float>& all = results.emplace_back();
      const auto evaluate = [&](std::span<const int32_t> tokens) {
        session.evaluate(tokens);
        const std::span<const float> logits = session.logits();
        all.insert(all.end(), logits.begin(), logits.end());
      };
      evaluate(prompt);
      for (const int32_t& token : next) evaluate({&token, 1});
    }
    unload_weights(*model);
  }
  return worst(results[0], results[1]);
}

TEST_F(WeightsPlacements, RepackingChangesLogitsOnlyByRounding) {
  const std::string f32 = SyntheticModel().write();
  for (const int devices : {1, 3}) {
    EXPECT_LT(difference_of_repacking(f32, devices), 1e-5) << devices;
    EXPECT_LT(difference_of_repacking(tiny_model_path("f16"), devices), 1e-4) << devices;
    // Logits are at most 20. Repacking changes the order of additions and the rounding of input columns (to 16 bits for
    // single tokens).
    EXPECT_LT(difference_of_repacking(tiny_model_path("q8_0"), devices), 1e-2) << devices;
  }
}

}  // namespace
}  // namespace shoal::models
