#include "models/place/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/session/model_plan.h"
#include "tests/models/checks.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/environment.h"

namespace shoal::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kSharedLayers = SHOAL_REFERENCE_MODELS "/gemma4-embeddings.gguf";

std::vector<std::string> names_of(std::span<Device* const> devices) {
  std::vector<std::string> names;
  for (const Device* device : devices) names.push_back(device->name());
  return names;
}

/// The device indices of the tensors with a given suffix, one index per layer. Example: "0 0 0 1 1 1".
std::string layers_of(const Placement& placement, const Model& model, const char* suffix = "attn_q.weight") {
  std::string text;
  for (int64_t layer = 0; layer < model.hparams.layers; ++layer) {
    const Tensor* tensor = model.weights.find(fmt::format("blk.{}.{}", layer, suffix));
    text += fmt::format("{}{}", layer > 0 ? " " : "", placement.device_of(*tensor));
  }
  return text;
}

int home(const Placement& placement, const Model& model, std::string_view name) {
  return placement.device_of(*model.weights.find(name));
}

TEST(Placement, GroupOfDevicesActsAsOneDevice) {
  const auto model = open_model(tiny_model_path("f16"));
  const Placement two(*model, cpu_devices(2));
  EXPECT_THAT(names_of(two.devices()), ElementsAre("META(CPU0,CPU1)"));
  EXPECT_TRUE(two.is_meta());
  const Placement one(*model, cpu_devices(1));
  EXPECT_THAT(names_of(one.devices()), ElementsAre("CPU0"));
  EXPECT_FALSE(one.is_meta());
}

TEST(Placement, RatioDividesLayers) {
  const auto model = open_model(tiny_model_path("f16"));
  const auto placed = [&](const std::string& ratio, int devices) {
    return Placement(*model, cpu_devices(devices), {ratio, 1, SplitMode::kLayer});
  };
  EXPECT_EQ(layers_of(placed("", 2), *model), "0 0 0 1 1 1");
  EXPECT_EQ(layers_of(placed("", 3), *model), "0 0 1 1 2 2");
  EXPECT_EQ(layers_of(placed("2,1", 2), *model), "0 0 0 0 1 1");
  EXPECT_EQ(layers_of(placed("1,0,1", 3), *model), "0 0 0 1 1 1") << "devices without layers are omitted";
  EXPECT_THAT(names_of(placed("1,0,1", 3).devices()), ElementsAre("CPU0", "CPU2"));
  EXPECT_EQ(home(placed("", 2), *model, "token_embd.weight"), 0);
  EXPECT_EQ(home(placed("", 2), *model, "output.weight"), 1);
}

// The model has 7 layers. The last three layers read the caches of layers 2 and 3.
TEST(Placement, LayersWithSharedCacheAreOnOneDevice) {
  const auto model = open_model(kSharedLayers);
  const auto placed = [&](const std::string& ratio, int devices) {
    return Placement(*model, cpu_devices(devices), {ratio, 1, SplitMode::kLayer});
  };
  EXPECT_EQ(layers_of(placed("", 2), *model), "0 0 1 1 1 1 1");
  EXPECT_EQ(layers_of(placed("3,1", 2), *model), "0 0 0 0 0 0 0") << "the middle layer determines the device";
  EXPECT_EQ(layers_of(placed("", 3), *model), "0 0 1 1 1 1 1");
  EXPECT_THAT(names_of(placed("", 3).devices()), ElementsAre("CPU0", "CPU1"));
  EXPECT_EQ(home(placed("", 2), *model, "per_layer_token_embd.weight"), 0)
      << "layer 0 is the first layer that reads this tensor";
  PlacementOptions options{{}, 1};
  options.device_layers = 3;
  const Placement host(*model, cpu_devices(2), options);
  EXPECT_EQ(layers_of(host, *model), "1 1 1 1 0 0 0");
  EXPECT_EQ(home(host, *model, "per_layer_token_embd.weight"), 1);
}

TEST(Placement, FirstLayersStayOnHost) {
  const auto model = open_model(tiny_model_path("f16"));
  const auto placed = [&](int64_t layers) {
    PlacementOptions options{{}, 1};
    options.device_layers = layers;
    return Placement(*model, cpu_devices(2), options);
  };
  EXPECT_THAT(names_of(placed(2).devices()), ElementsAre("META(CPU0,CPU1)", "CPU2"));
  EXPECT_EQ(layers_of(placed(2), *model), "1 1 1 1 0 0");
  EXPECT_EQ(home(placed(2), *model, "output.weight"), 1);
  EXPECT_EQ(home(placed(6), *model, "output.weight"), 1);
  EXPECT_EQ(home(placed(7), *model, "output.weight"), 0);
  EXPECT_EQ(home(placed(7), *model, "token_embd.weight"), 1);
  EXPECT_THAT(names_of(placed(0).devices()), ElementsAre("CPU2"));
  EXPECT_THAT(names_of(placed(-1).devices()), ElementsAre("META(CPU0,CPU1)"));
}

TEST(Placement, HostOptionSelectsHostDevice) {
  const auto model = open_model(tiny_model_path("f16"));
  PlacementOptions options{{}, 1};
  options.device_layers = 2;
  const std::vector<Device*> devices = cpu_devices(4);
  options.host = devices[3];
  const Placement placement(*model, std::vector<Device*>{devices[0], devices[1]}, options);
  EXPECT_THAT(names_of(placement.devices()), ElementsAre("META(CPU0,CPU1)", "CPU3"));
}

TEST(Placement, ModelsWithoutExpertsRefuseHostExperts) {
  const auto model = open_model(tiny_model_path("f16"));
  EXPECT_EQ(layers_with_experts(*model), 0);
  PlacementOptions options{{}, 1};
  options.expert_layers = 1;
  EXPECT_THAT([&] { Placement(*model, cpu_devices(2), options); },
              ::testing::ThrowsMessage<InvalidArgument>(::testing::HasSubstr("has no experts")));
}

TEST(Placement, CachesAreOnDeviceOfLayerUnlessOptionSelectsHost) {
  const auto model = open_model(tiny_model_path("f16"));
  KvCache cache;
  declare_cache(cache, model->hparams, {16});
  PlacementOptions options{{}, 1, SplitMode::kLayer};
  EXPECT_EQ(Placement(*model, cpu_devices(2), options).device_of(*cache.layers[5].k), 1);
  options.cache_on_host = true;
  const Placement host(*model, cpu_devices(2), options);
  EXPECT_EQ(host.device_of(*cache.layers[0].k), 2);
  EXPECT_EQ(host.device_of(*cache.layers[5].v), 2);
}

TEST(Placement, LastMatchingOverrideDeterminesDevice) {
  const auto model = open_model(tiny_model_path("f16"));
  PlacementOptions options{{}, 1};
  options.overrides = {{"ffn_down", "CPU"}, {"blk\\.0\\.ffn_down", "META(CPU0,CPU1)"}};
  const Placement placement(*model, cpu_devices(2), options);
  EXPECT_EQ(layers_of(placement, *model, "ffn_down.weight"), "0 1 1 1 1 1") << "the last matching override applies";
  EXPECT_EQ(layers_of(placement, *model, "ffn_up.weight"), "0 0 0 0 0 0");
}

TEST(Placement, ErrorsNameInvalidOptions) {
  const auto model = open_model(tiny_model_path("f16"));
  const auto with = [&](const TensorOverride& entry) {
    PlacementOptions options{{}, 1};
    options.overrides = {entry};
    return message_of([&] { Placement(*model, cpu_devices(2), options); });
  };
  EXPECT_THAT(with({"(", "CPU"}), HasSubstr("'(' is not a regular expression"));
  EXPECT_THAT(with({"nothing_like_it", "CPU"}), HasSubstr("matches 'nothing_like_it'"));
  EXPECT_THAT(with({"ffn", "CPU7"}), HasSubstr("cannot be placed on CPU7; use one of META(CPU0,CPU1), CPU2"));
  EXPECT_THAT(message_of([&] { Placement(*model, DeviceGroups{}); }), HasSubstr("name at least one"));
  EXPECT_THAT(message_of([&] {
                Placement(*model, DeviceGroups{{cpu_devices(1)[0]}, {cpu_devices(1)[0]}});
              }),
              HasSubstr("listed twice"));
  EXPECT_THAT(message_of([&] {
                Placement(*model, cpu_devices(3), {"1,2", 1, SplitMode::kLayer});
              }),
              HasSubstr("2 numbers for 3 devices"));
}

/// Returns the bytes of used memory by device name.
std::map<std::string, size_t> used_by(std::span<Device* const> members) {
  std::map<std::string, size_t> used;
  for (const Device* member : members) used[member->name()] = member->memory().total - member->memory().free;
  return used;
}

TEST(PlacementMemory, PlannedMemoryMatchesAllocations) {
  const LimitedCpuDevices limited("memory=64M");
  const auto check = [](const std::vector<int>& groups, const PlacementOptions& where) {
    auto model = open_model(tiny_model_path("q8_0"));
    const Placement placement(*model, cpu_groups(groups), where);
    const SessionOptions options{.context = 128, .batch = 16};
    const LoadOptions load{.use_mapping = false};
    auto backends = placement.init();
    const ModelPlan plan(*model, placement, options, load);
    const auto before = used_by(placement.members());
    load_weights(*model, placement, {}, load);
    {
      Session session(*model, placement, std::move(backends), options);
      for (int64_t tokens : {16, 8, 4, 2, 1}) session.evaluate(std::vector<int32_t>(tokens, 5));
      session.logits();
      EXPECT_EQ(session.scheduler().host_bytes(), plan.host_bytes);
      const auto after = used_by(placement.members());
      for (const DeviceUse& use : plan.memory) {
        EXPECT_EQ(after.at(use.device) - before.at(use.device), use.use.weights + use.use.cache + use.use.compute)
            << use.device;
      }
    }
    unload_weights(*model);
  };
  check({1}, {{}, 1});
  check({2}, {"3,1", 1});
  check({1, 1, 1}, {{}, 1, SplitMode::kLayer});
  check({2, 2}, {{}, 1, SplitMode::kLayer});
  PlacementOptions host{{}, 1};
  host.device_layers = 3;
  check({2}, host);
  host.cache_on_host = true;
  host.overrides = {{"ffn_up", "CPU"}};
  check({3}, host);
}

TEST(PlacementSchedule, GenerationAndPromptsAlternateWithoutReplanning) {
  PlacementOptions where{{}, 1, SplitMode::kLayer};
  where.cache_on_host = true;
  LoadedModel loaded(tiny_model_path("q8_0"), cpu_groups({2, 1}), where, {.context = 128, .batch = 16});
  Session& session = *loaded.session;
  const auto round = [&] {
    session.rewind(0);
    session.evaluate(kPrompt);
    for (int32_t token : {5, 6, 7}) session.evaluate({&token, 1});
    session.logits();
  };
  round();
  const uint64_t before = session.scheduler().plans_made();
  for (int i = 0; i < 10; ++i) round();
  EXPECT_EQ(session.scheduler().plans_made(), before);
}

/// The experts are on the host. All other weights are on a meta device.
class HostExperts : public ::testing::Test {
 protected:
  static std::string path() {
    SyntheticModel model;
    model.h.experts = 8;
    model.h.experts_used = 2;
    return model.write();
  }
};

TEST_F(HostExperts, LogitsMatchLogitsOfOneDeviceWithAndWithoutStreaming) {
  const std::string file = path();
  const std::vector<int32_t> prompt{1, 5, 9, 13, 2, 40, 41, 42};
  const auto logits_of = [&](LoadedModel& loaded) {
    loaded.session->evaluate(prompt);
    const std::span<const float> logits = loaded.session->logits();
    return std::vector<float>(logits.begin(), logits.end());
  };
  LoadedModel one(file, 1, {}, {.batch = 8});
  const std::vector<float> expected = logits_of(one);
  PlacementOptions options{{}, 1};
  options.overrides = {{"_exps", "CPU"}};
  {
    LoadedModel host(file, cpu_groups({2}), options, {.batch = 8});
    EXPECT_LT(worst(expected, logits_of(host)), 1e-4);
    EXPECT_EQ(host.session->scheduler().splits(), 5) << "to the host and back in each of two layers";
  }
  options.overrides.clear();
  for (const int64_t layers : {1, 2, 99}) {
    options.expert_layers = layers;
    LoadedModel some(file, cpu_groups({2}), options, {.batch = 8});
    EXPECT_LT(worst(expected, logits_of(some)), 1e-4);
    EXPECT_EQ(some.session->scheduler().splits(), layers == 1 ? 3 : 5) << layers;
  }
  options.offload_batch = 4;
  LoadedModel brought(file, cpu_groups({2}), options, {.batch = 8});
  EXPECT_LT(worst(expected, logits_of(brought)), 1e-4);
  const sched::Schedule& schedule = brought.session->scheduler().schedule();
  for (const sched::Split& split : schedule.splits) EXPECT_EQ(split.backend, 0);
  int experts = 0;
  for (const sched::Split& split : schedule.splits) {
    for (const sched::Copy& copy : split.copies) experts += copy.ids != nullptr;
  }
  EXPECT_EQ(experts, 6) << "experts of gate, up and down in two layers";
  const int32_t next = 7;
  one.session->evaluate({&next, 1});
  brought.session->evaluate({&next, 1});
  const std::span<const float> a = one.session->logits(), b = brought.session->logits();
  EXPECT_LT(worst({a.begin(), a.end()}, {b.begin(), b.end()}), 1e-4) << "single tokens run on the host";
  EXPECT_EQ(brought.session->scheduler().splits(), 5);
}

TEST(Placement, CommOptionOverridesEnvironmentVariable) {
  const test::Environment variable("SHOAL_COMM", "nccl");
  const auto load = [](const std::string& comm) {
    PlacementOptions options{{}, 1};
    options.comm = comm;
    LoadedModel loaded(tiny_model_path("f16"), cpu_groups({2}), options, {.context = 8, .batch = 1});
    const int32_t token = 7;
    loaded.session->evaluate({&token, 1});
    loaded.session->logits();
  };
  const auto refuses = [](const std::string& name) {
    return ThrowsMessage<InvalidArgument>(HasSubstr(fmt::format("collectives by '{}' are for CUDA devices", name)));
  };
  EXPECT_THAT([&] { load("p2p"); }, refuses("p2p"));
  EXPECT_THAT([&] { load(""); }, refuses("nccl")) << "the variable applies if the option is empty";
  EXPECT_NO_THROW(load("host"));
}

}  // namespace
}  // namespace shoal::models
