// Runs the small model over several processes. One session leads, and the other sessions follow. The processes are
// threads with separate process groups. tests/hosts uses real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>

#include "models/engine/engine.h"
#include "models/session/orders.h"
#include "models/session/sampler.h"
#include "models/session/session_state.h"
#include "processes/remote_device.h"
#include "tests/models/tiny_model.h"
#include "tests/support/thread_processes.h"

namespace shoal::models {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

constexpr std::array<int32_t, 12> kShortIds{1, 5, 9, 33, 17, 8, 21, 60, 2, 44, 71, 13};

/// The processes of a test. `devices` is the number of devices of each process. With a layer split, the devices of each
/// process form a group.
struct Processes {
  std::vector<int> devices;
  std::vector<std::string> hosts;
  SplitMode mode = SplitMode::kTensor;
  std::string ratio = {};
  int64_t candidates = 0;
  std::string model = tiny_model_path("q8_0");
  LatentSplit latent = LatentSplit::kMirrored;
};

/// Calls body(group, groups) in each process, with the devices of all processes in groups.
std::vector<test::ProcessEnd> in_each(const Processes& where,
                                      const std::function<void(ProcessGroup&, const DeviceGroups&)>& body) {
  if (test::plugin_is_named()) return {};
  cpu_devices(8);
  return test::in_processes(where.hosts, [&](ProcessGroup& group) {
    int first = 0;
    for (int process = 0; process < group.own(); ++process) first += where.devices[static_cast<size_t>(process)];
    const std::vector<Device*> eight = cpu_devices(8);
    const auto own = std::span(eight).subspan(static_cast<size_t>(first),
                                              static_cast<size_t>(where.devices[static_cast<size_t>(group.own())]));
    const std::vector<Device*> all = gather_devices(group, own);
    DeviceGroups groups;
    auto next = all.begin();
    for (const int count : where.devices) groups.emplace_back(next, next + count), next += count;
    std::erase_if(groups, [](const auto& one) { return one.empty(); });
    body(group, groups);
  });
}

PlacementOptions placement_options(const Processes& where, ProcessGroup& group) {
  return {.ratio = where.ratio, .threads = 1, .mode = where.mode, .latent = where.latent, .processes = &group};
}

/// Runs `lead` with the session of process 0 while the runners of the other processes follow. Returns how each process
/// ended.
std::vector<test::ProcessEnd> run(const Processes& where, const std::function<void(Session&)>& lead) {
  return in_each(where, [&](ProcessGroup& group, const DeviceGroups& groups) {
    LoadedModel loaded(where.model, groups, placement_options(where, group),
                       {.context = 128, .batch = 16, .candidates = where.candidates});
    if (group.own() > 0) return follow(loaded.session->runner(), group);
    loaded.session->runner().lead(group);
    try {
      lead(*loaded.session);
    } catch (const Error& error) {
      group.fail(error.what());
    }
  });
}

int32_t best(Session& session) {
  return session.selects() ? session.candidates()[0].id : top_logits(session.logits(), 1)[0].id;
}

std::vector<int32_t> generate(Session& session, size_t count) {
  std::vector<int32_t> tokens;
  session.evaluate(kPrompt);
  for (;;) {
    tokens.push_back(best(session));
    if (tokens.size() == count) return tokens;
    session.evaluate({&tokens.back(), 1});
  }
}

std::vector<int32_t> expected(size_t count) {
  LoadedModel alone(tiny_model_path("q8_0"), 1, {}, {.context = 128, .batch = 16});
  return generate(*alone.session, count);
}

void expect_ended(const std::vector<test::ProcessEnd>& ends) {
  for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
}

class SessionOverProcesses : public testing::TestWithParam<Processes> {
 protected:
  void SetUp() override {
    if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  }
};

TEST_P(SessionOverProcesses, GeneratesSameTokensAsOneDevice) {
  std::vector<int32_t> tokens;
  expect_ended(run(GetParam(), [&](Session& session) { tokens = generate(session, 12); }));
  EXPECT_THAT(tokens, ElementsAreArray(expected(12)));
}

TEST_P(SessionOverProcesses, RewindsAndRestoresStates) {
  std::vector<int32_t> first, again, restored;
  expect_ended(run(GetParam(), [&](Session& session) {
    first = generate(session, 6);
    session.rewind(0);
    again = generate(session, 3);
    const std::vector<std::byte> state = save_state(session);
    session.evaluate({&again.back(), 1});
    std::vector<std::byte> damaged = state;
    damaged.back() ^= std::byte{1};
    EXPECT_THROW(restore_state(session, damaged), InvalidArgument);
    restore_state(session, state);
    for (int32_t token = again.back(); restored.size() < 3; restored.push_back(token)) {
      session.evaluate({&token, 1});
      token = best(session);
    }
  }));
  EXPECT_THAT(first, ElementsAreArray(expected(6)));
  EXPECT_THAT(again, ElementsAreArray(std::span(first).first(3)));
  EXPECT_THAT(restored, ElementsAreArray(std::span(first).subspan(3)));
}

INSTANTIATE_TEST_SUITE_P(Meshes, SessionOverProcesses,
                         testing::Values(Processes{{1, 1}, {"a", "a"}}, Processes{{1, 1}, {"a", "b"}},
                                         Processes{{2, 1, 3}, {"a", "b", "b"}, SplitMode::kTensor, "1,2,3,0,1,1"},
                                         Processes{{1, 1}, {"a", "b"}, SplitMode::kTensor, {}, 4},
                                         Processes{{1, 1}, {"a", "a"}, SplitMode::kLayer},
                                         Processes{{1, 1}, {"a", "b"}, SplitMode::kLayer, {}, 4},
                                         Processes{{2, 1, 2}, {"a", "b", "c"}, SplitMode::kLayer, "1,1,2"},
                                         Processes{{2, 0, 1}, {"a", "b", "c"}, SplitMode::kTensor, "1,3,2"}),
                         [](const auto& info) { return std::to_string(info.index); });

/// Generates tokens twice after a prompt. Each time, the session first rewinds to a checkpoint at token 4.
void rewind(Session& session, std::vector<int32_t>& first, std::vector<int32_t>& again) {
  const std::span<const int32_t> prompt = kShortIds;
  session.evaluate(prompt.first(4));
  session.checkpoint();
  for (std::vector<int32_t>* tokens : {&first, &again}) {
    session.rewind(4);
    session.evaluate(prompt.subspan(4));
    for (int i = 0; i < 40; ++i) {
      tokens->push_back(best(session));
      session.evaluate({&tokens->back(), 1});
    }
  }
}

// A checkpoint of the leader lets all processes rewind.
TEST(SessionOverProcessesModels, RecurrentAndWindowedModelsRewind) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  for (const char* name : {"gemma3", "qwen35", "lfm2"}) {
    for (const Processes& mesh : {Processes{{1, 1}, {"a", "a"}}, Processes{{2, 1}, {"a", "b"}},
                                  Processes{{1, 1}, {"a", "b"}, SplitMode::kLayer}}) {
      SCOPED_TRACE(fmt::format("{} {}", name, mesh.devices.front()));
      Processes where = mesh;
      where.model = fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, name);
      std::vector<int32_t> first, again, expected, expected_again;
      expect_ended(run(where, [&](Session& session) { rewind(session, first, again); }));
      LoadedModel alone(where.model, 1, {}, {.context = 128, .batch = 16});
      rewind(*alone.session, expected, expected_again);
      EXPECT_EQ(expected, expected_again);
      EXPECT_THAT(first, ElementsAreArray(expected));
      EXPECT_THAT(again, ElementsAreArray(expected));
    }
  }
}

/// Generates tokens after a prompt. Then generates tokens again from the same saved state.
void go_on(Session& session, std::vector<int32_t>& first, std::vector<int32_t>& again) {
  session.evaluate(kShortIds);
  const int32_t next = best(session);
  const std::vector<std::byte> state = save_state(session);
  for (std::vector<int32_t>* tokens : {&first, &again}) {
    int32_t token = next;
    for (int i = 0; i < 20; ++i, token = best(session)) {
      tokens->push_back(token);
      session.evaluate({&token, 1});
    }
    restore_state(session, state);
  }
}

TEST(SessionOverProcessesModels, RestoreStatesOfDividedLatentCaches) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  const std::string model = SHOAL_REFERENCE_MODELS "/deepseek2.gguf";
  std::vector<int32_t> expected, expected_again;
  LoadedModel alone(model, 1, {}, {.context = 128, .batch = 16});
  go_on(*alone.session, expected, expected_again);
  EXPECT_EQ(expected, expected_again);
  for (const Processes& mesh : {Processes{{1, 1}, {"a", "a"}}, Processes{{2, 1}, {"a", "b"}}}) {
    Processes where = mesh;
    where.model = model, where.latent = LatentSplit::kRows;
    std::vector<int32_t> first, again;
    expect_ended(run(where, [&](Session& session) {
      EXPECT_GT(session.cache().parts, 1);
      go_on(session, first, again);
    }));
    EXPECT_THAT(first, ElementsAreArray(expected));
    EXPECT_THAT(again, ElementsAreArray(expected));
  }
}

/// The answers of an engine to four prompts that share a beginning. The cache is too small for all of them.
std::map<RequestId, std::vector<int32_t>> answers(Engine& engine) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 50; ++i) prompt.push_back(3 + i * 7 % 160);
  for (int i = 0; i < 4; ++i) {
    prompt.back() = 3 + i;
    engine.submit(prompt, {.sampling = {.temp = 0}, .most_tokens = 20});
  }
  std::map<RequestId, std::vector<int32_t>> tokens;
  while (engine.step()) {
    for (const Output& output : engine.take_outputs()) {
      if (output.token >= 0) tokens[output.request].push_back(output.token);
    }
  }
  return tokens;
}

TEST(EngineOverProcesses, GivesTheTokensOfOneProcess) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  const SessionOptions options = engine_options({.context = 160, .batch = 32, .sequences = 3});
  for (const char* name : {"gemma3", "qwen35", "deepseek2"}) {
    SCOPED_TRACE(name);
    Processes where{{2, 1}, {"a", "b"}, SplitMode::kTensor, "1,2,1"};
    where.model = fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, name);
    std::map<RequestId, std::vector<int32_t>> found, expected;
    expect_ended(in_each(where, [&](ProcessGroup& group, const DeviceGroups& groups) {
      const LoadedModel loaded(where.model, groups, placement_options(where, group), {.context = 32});
      if (group.own() > 0) {
        Runner runner(*loaded.model, loaded.placement, loaded.placement.init(), options, nullptr);
        return follow(runner, group);
      }
      Engine engine(*loaded.model, loaded.placement, loaded.placement.init(), options);
      engine.runner().lead(group);
      found = answers(engine);
      EXPECT_GT(engine.stats().cached_tokens, 0);
    }));
    const LoadedModel alone(where.model, 1);
    Engine engine(*alone.model, alone.placement, alone.placement.init(), options);
    expected = answers(engine);
    EXPECT_EQ(expected.size(), 4U);
    EXPECT_EQ(found, expected);
  }
}

TEST(SessionFollowers, PlacementRefusesEveryHostOption) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  const auto model = open_model(tiny_model_path("q8_0"));
  for (const PlacementOptions& chosen : std::vector<PlacementOptions>{{.ratio = {}, .device_layers = 2},
                                                                      {.ratio = {}, .expert_layers = 1},
                                                                      {.ratio = {}, .cache_on_host = true},
                                                                      {.ratio = {}, .overrides = {{"ffn", "CPU"}}}}) {
    const auto ends = test::in_processes({"a", "b"}, [&](ProcessGroup& group) {
      PlacementOptions options = chosen;
      options.processes = &group;
      Placement(*model, cpu_devices(1), options);
    });
    for (const test::ProcessEnd& end : ends) {
      EXPECT_THAT(end.what(), HasSubstr("options cannot keep parts of the model on the host; instead add"));
    }
  }
}

TEST(SessionFollowers, FailWithErrorOfLeader) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  const auto ends = run({{1, 1, 1}, {"a", "a", "b"}}, [](Session& session) {
    session.evaluate(kPrompt);
    session.evaluate(std::array{int32_t{1 << 30}});  // the vocabulary has no token with this id
  });
  for (const test::ProcessEnd& end : ends) {
    EXPECT_THAT(end.what(), HasSubstr("process 0 (a): token 1073741824 is not in a vocabulary of 1024 tokens"));
  }
}

TEST(WeightsOverProcesses, ProcessesStoreOnlyWeightsOfOwnRanks) {
  if (test::plugin_is_named()) GTEST_SKIP() << "processes are tested with CPU devices";
  cpu_devices(2);
  std::vector<size_t> held(2);
  expect_ended(test::in_processes({"a", "b"}, [&](ProcessGroup& group) {
    Device* own[] = {cpu_devices(2)[static_cast<size_t>(group.own())]};
    LoadedModel loaded(tiny_model_path("q8_0"), {gather_devices(group, own)},
                       {.ratio = {}, .threads = 1, .processes = &group}, {.context = 128, .batch = 16});
    group.gather("", "weights");
    const std::vector<size_t> bytes = meta::allocated_per_rank(*loaded.model->buffers.front());
    held[static_cast<size_t>(group.own())] = bytes[static_cast<size_t>(group.own())];
    group.gather("", "weights");
  }));
  const size_t whole = open_model(tiny_model_path("q8_0"))->file.tensor_bytes();
  EXPECT_LT(held[0], whole);
  EXPECT_GT(held[0] + held[1], whole * 9 / 10);
}

}  // namespace
}  // namespace shoal::models
