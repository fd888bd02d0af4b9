// Compares every architecture with Hugging Face transformers. The build runs scripts/reference, which creates tiny
// random models. The logits of these models must match the files in tests/models/references. The prompts have 1, 7 and
// 300 tokens. Each prompt is evaluated as a whole, and again with single tokens at the end. The models run on 1 to 8
// devices, with even and uneven shares. A mutated model changes one element of the formula and must give different
// logits.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "models/session/model_plan.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

// Errors of f32 arithmetic are below kClose. A mutation causes an error of 1e-5 or more (make_references.py).
constexpr double kClose = 1e-9, kOther = 1e-6;

std::string model_path(const std::string& name) {
  return fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, name);
}

/// Expected logits at some positions of a prompt.
struct Answer {
  std::vector<int32_t> ids, rows;
  std::vector<float> logits;
};

struct ReferenceCase {
  explicit ReferenceCase(const std::string& name)
      : file(SHOAL_SOURCE_DIR "/tests/models/references/" + name + ".gguf") {
    for (const int length : {1, 7, 300}) {
      answers.push_back({values<int32_t>(fmt::format("ids.{}", length)),
                         values<int32_t>(fmt::format("rows.{}", length)),
                         values<float>(fmt::format("logits.{}", length))});
    }
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const GgufTensor& tensor = file.tensor(name);
    std::vector<T> out(tensor.bytes / sizeof(T));
    file.read(tensor, 0, std::as_writable_bytes(std::span(out)));
    return out;
  }

  GgufFile file;
  std::vector<Answer> answers;
};

std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> cases() {
  return names(SHOAL_SOURCE_DIR "/tests/models/references");
}

/// Accumulates the error of logits relative to the reference.
class Distance {
 public:
  void add(std::span<const float> found, std::span<const float> expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = static_cast<double>(found[i]) - expected[i];
      difference_ += difference * difference;
      expected_ += static_cast<double>(expected[i]) * expected[i];
    }
  }
  /// Normalised mean square error.
  double nmse() const { return difference_ / expected_; }

 private:
  double difference_ = 0, expected_ = 0;
};

struct DevicesAndShares {
  int devices;
  const char* ratio;
};

SessionOptions session_options(int64_t context, int64_t batch) {
  SessionOptions options;
  options.context = context;
  options.batch = batch;
  options.dtype_k = options.dtype_v = DType::kF32;
  return options;
}

/// Error of the logits of a prompt. The prompt is evaluated in batches that end at positions with reference logits. The
/// last `singles` tokens are evaluated one by one.
double error_of(Session& session, const Answer& answer, int singles) {
  Distance error;
  const size_t vocab = answer.logits.size() / answer.rows.size(), end = answer.ids.size();
  session.rewind(0);
  size_t at = 0;
  for (size_t r = 0; r < answer.rows.size(); ++r) {
    const size_t next = static_cast<size_t>(answer.rows[r]) + 1;
    while (at < next) {
      const size_t length = at + static_cast<size_t>(singles) >= end ? 1 : next - at;
      session.evaluate(std::span(answer.ids).subspan(at, length));
      at += length;
    }
    error.add(session.logits(), std::span(answer.logits).subspan(r * vocab, vocab));
  }
  return error.nmse();
}

double error_of_last(Session& session, const Answer& answer) {
  Distance error;
  const size_t vocab = answer.logits.size() / answer.rows.size();
  session.rewind(0);
  session.evaluate(answer.ids);
  error.add(session.logits(), std::span(answer.logits).last(vocab));
  return error.nmse();
}

class References : public ::testing::TestWithParam<std::tuple<std::string, DevicesAndShares>> {};

TEST_P(References, LogitsMatchReferenceLogits) {
  const auto& [name, mesh] = GetParam();
  const ReferenceCase reference(name);
  const auto context = reference.file.get<uint32_t>("reference.context");
  LoadedModel loaded(model_path(name), mesh.devices, mesh.ratio, session_options(context, 48));
  for (const Answer& answer : reference.answers) {
    EXPECT_LE(error_of_last(*loaded.session, answer), kClose) << answer.ids.size() << " tokens at once";
    const int singles = answer.ids.size() > 7 ? 20 : 7;
    EXPECT_LE(error_of(*loaded.session, answer, singles), kClose) << answer.ids.size() << " tokens in pieces";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, References,
    ::testing::Combine(::testing::ValuesIn(cases()),
                       ::testing::Values(DevicesAndShares{1, ""}, DevicesAndShares{2, ""}, DevicesAndShares{2, "1,3"},
                                         DevicesAndShares{3, ""}, DevicesAndShares{3, "5,0,2"}, DevicesAndShares{4, ""},
                                         DevicesAndShares{5, ""}, DevicesAndShares{5, "1,4,2,2,3"},
                                         DevicesAndShares{6, ""}, DevicesAndShares{7, ""}, DevicesAndShares{8, ""})),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      std::replace(name.begin(), name.end(), '-', '_');
      const DevicesAndShares& mesh = std::get<1>(info.param);
      return fmt::format("{}_{}{}", name, mesh.devices, *mesh.ratio != 0 ? "_uneven" : "");
    });

/// Runs every model that has experts. Each device stores whole experts.
class WholeExperts : public ::testing::TestWithParam<DevicesAndShares> {};

TEST_P(WholeExperts, LogitsMatchReferenceLogits) {
  const DevicesAndShares& mesh = GetParam();
  PlacementOptions options{mesh.ratio, 1};
  options.experts = ExpertSplit::kWhole;
  int models = 0;
  for (const std::string& name : cases()) {
    if (open_model(model_path(name))->hparams.experts_used == 0) continue;
    SCOPED_TRACE(name);
    ++models;
    const ReferenceCase reference(name);
    const auto context = reference.file.get<uint32_t>("reference.context");
    LoadedModel loaded(model_path(name), cpu_groups({mesh.devices}), options, session_options(context, 48));
    EXPECT_EQ(loaded.placement.policy().experts(), ExpertSplit::kWhole);
    for (const Answer& answer : reference.answers) {
      EXPECT_LE(error_of_last(*loaded.session, answer), kClose) << answer.ids.size() << " tokens at once";
      EXPECT_LE(error_of(*loaded.session, answer, 7), kClose) << answer.ids.size() << " tokens in pieces";
    }
  }
  EXPECT_GE(models, 8);
}

INSTANTIATE_TEST_SUITE_P(All, WholeExperts,
                         ::testing::Values(DevicesAndShares{2, ""}, DevicesAndShares{2, "1,3"},
                                           DevicesAndShares{3, "5,0,2"}, DevicesAndShares{4, ""},
                                           DevicesAndShares{5, "1,4,2,2,3"}, DevicesAndShares{8, ""}),
                         [](const auto& info) {
                           const bool even = *info.param.ratio == 0;
                           return fmt::format("{}{}", info.param.devices, even ? "" : "_uneven");
                         });

/// Runs every model that has latent caches. The rows of the caches are divided among devices.
class LatentRows : public ::testing::TestWithParam<DevicesAndShares> {};

TEST_P(LatentRows, LogitsMatchReferenceLogits) {
  const DevicesAndShares& mesh = GetParam();
  PlacementOptions options{mesh.ratio, 1};
  options.latent = LatentSplit::kRows;
  int models = 0;
  for (const std::string& name : cases()) {
    if (!has_latent_cache(open_model(model_path(name))->hparams)) continue;
    SCOPED_TRACE(name);
    ++models;
    const ReferenceCase reference(name);
    const auto context = reference.file.get<uint32_t>("reference.context");
    LoadedModel loaded(model_path(name), cpu_groups({mesh.devices}), options, session_options(context, 48));
    EXPECT_GE(loaded.placement.latent_parts(), 2);
    for (const Answer& answer : reference.answers) {
      EXPECT_LE(error_of_last(*loaded.session, answer), kClose) << answer.ids.size() << " tokens at once";
      EXPECT_LE(error_of(*loaded.session, answer, 20), kClose) << answer.ids.size() << " tokens in pieces";
    }
  }
  EXPECT_GE(models, 2);
}

INSTANTIATE_TEST_SUITE_P(All, LatentRows,
                         ::testing::Values(DevicesAndShares{2, ""}, DevicesAndShares{2, "1,3"},
                                           DevicesAndShares{3, "5,0,2"}, DevicesAndShares{3, ""},
                                           DevicesAndShares{4, ""}, DevicesAndShares{5, "1,4,2,2,3"},
                                           DevicesAndShares{7, ""}, DevicesAndShares{8, ""}),
                         [](const auto& info) {
                           const bool even = *info.param.ratio == 0;
                           return fmt::format("{}{}", info.param.devices, even ? "" : "_uneven");
                         });

class Mutations : public ::testing::TestWithParam<std::string> {};

TEST_P(Mutations, ChangeLogits) {
  const std::string& name = GetParam();
  const ReferenceCase reference(name);
  const auto context = reference.file.get<uint32_t>("reference.context");
  const auto mutations = reference.file.get_array<std::string>("reference.mutations");
  ASSERT_FALSE(mutations.empty());
  for (const std::string& mutation : mutations) {
    LoadedModel loaded(model_path(name + "." + mutation), 1, "", session_options(context, 512));
    double most = 0;
    for (const Answer& answer : reference.answers) most = std::max(most, error_of_last(*loaded.session, answer));
    EXPECT_GE(most, kOther) << mutation;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mutations, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// Largest logit error of the file NAME.VARIANT.gguf over all prompts of the reference `name`.
double error_of_other_file(const std::string& name, const std::string& variant) {
  const ReferenceCase reference(name);
  const auto context = reference.file.get<uint32_t>("reference.context");
  LoadedModel loaded(model_path(name + "." + variant), 1, "", session_options(context, 512));
  double most = 0;
  for (const Answer& answer : reference.answers) most = std::max(most, error_of_last(*loaded.session, answer));
  return most;
}

/// Adds `key` and a second key to the bytes of a GGUF file. The second key keeps the tensor data aligned.
template <class T>
std::string with_key(const std::string& text, const std::string& key, T value) {
  constexpr GgufType kType = std::is_same_v<T, bool> ? GgufType::kBool : GgufType::kU32;
  static_assert(std::is_same_v<T, bool> || sizeof value == sizeof(uint32_t));
  constexpr size_t kAlignment = 32, kKeys = 16, kHeader = 24;
  const auto bytes = [](const auto& of) { return std::string(reinterpret_cast<const char*>(&of), sizeof of); };
  const auto entry = [&](const std::string& name) {
    return bytes(uint64_t{name.size()}) + name + bytes(static_cast<uint32_t>(kType)) + bytes(value);
  };
  uint64_t keys = 0;
  std::memcpy(&keys, text.data() + kKeys, sizeof keys);
  const size_t both = entry(key).size() + entry("").size();
  return text.substr(0, kKeys) + bytes(keys + 2) + entry(key) +
         entry(std::string(kAlignment - both % kAlignment, 'x')) + text.substr(kHeader);
}

class ModelKeys : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelKeys, AreAllRead) {
  for (const char* variant : {"", ".saved"}) {
    EXPECT_THAT(open_model(model_path(GetParam() + variant))->hparams.unread_keys, ::testing::IsEmpty()) << variant;
  }
}

TEST_P(ModelKeys, UnreadKeysAreReported) {
  const std::string text = test::text_of(model_path(GetParam()));
  const auto architecture = open_model(model_path(GetParam()))->architecture->name;
  const test::TemporaryFile changed(GetParam() + "-more-keys.gguf");
  for (const char* group : {"attention", "rope", "rope.scaling", "expert_new", "ssm"}) {
    const std::string key = fmt::format("{}.{}.new", architecture, group);
    std::ofstream(changed.path, std::ios::binary) << with_key(text, key, 7);
    EXPECT_THAT(open_model(changed.path)->hparams.unread_keys, ::testing::ElementsAre(key));
  }
}

TEST_P(ModelKeys, KeysOfLlamaCppSaverDoNotChangeLogits) {
  EXPECT_LE(error_of_other_file(GetParam(), "saved"), kClose);
}

INSTANTIATE_TEST_SUITE_P(All, ModelKeys, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Lfm2, AppliesSlidingWindow) {
  const std::string text = test::text_of(model_path("lfm2"));
  const test::TemporaryFile changed("lfm2-window.gguf", with_key(text, "lfm2.attention.sliding_window", 29));
  const ReferenceCase reference("lfm2");
  LoadedModel loaded(changed.path, 1, "", session_options(320, 512));
  EXPECT_LE(error_of_last(*loaded.session, reference.answers[1]), kClose);  // a prompt of 7 tokens
  EXPECT_GE(error_of_last(*loaded.session, reference.answers[2]), kOther);  // a prompt of 300 tokens
}

TEST(OllamaFiles, LogitsMatchReference) {
  for (const char* name : {"gpt-oss", "gemma3", "lfm2", "qwen35", "qwen35-draft", "qwen35moe", "qwen3next"}) {
    EXPECT_LE(error_of_other_file(name, "ollama"), kClose) << name;
    EXPECT_THAT(open_model(model_path(fmt::format("{}.ollama", name)))->hparams.unread_keys, ::testing::IsEmpty());
  }
}

TEST(OllamaFiles, RefusesUnexpectedOrderOfValueHeads) {
  const test::TemporaryFile changed("value-heads.gguf");
  for (const auto& [name, reordered] : {std::pair("qwen35", true), {"qwen3next", false}}) {
    const std::string key = fmt::format("{}.ssm.v_head_reordered", name), text = test::text_of(model_path(name));
    std::ofstream(changed.path, std::ios::binary) << with_key(text, key, reordered);
    EXPECT_THAT(open_model(changed.path)->hparams.unread_keys, ::testing::IsEmpty()) << name;
    std::ofstream(changed.path, std::ios::binary) << with_key(text, key, !reordered);
    EXPECT_THROW(open_model(changed.path), InvalidArgument) << name;
  }
}

TEST(OllamaFiles, ImageAndAudioTensorsAreIgnored) {
  EXPECT_THAT(open_model(model_path("qwen35.ollama"))->ignored_prefixes,
              ::testing::ElementsAre("a.", "mm.", "mtp.", "v."));
  EXPECT_THAT(open_model(model_path("gpt-oss.ollama"))->ignored_prefixes, ::testing::IsEmpty());
}

/// Number of all-reduces per layer. `rows` counts all-reduces of activations. `small` counts all-reduces of two sums of
/// squares.
struct Reductions {
  int64_t rows = 0, small = 0;
};

/// A layer usually has one all-reduce after attention and one after the feed-forward block. If both blocks run in
/// parallel, the layer has only one all-reduce. If experts and a dense block are normalised separately, the layer has
/// three. If q and k are normalised over all heads, the layer also has a small all-reduce.
Reductions reductions_of(const Model& model) {
  const std::string_view architecture = model.architecture->name;
  if (architecture == "command-r" || architecture == "cohere2") return {1, 0};
  if (architecture == "gemma4" && model.hparams.experts > 0) return {3, 0};
  return {2, architecture == "olmo2" || architecture == "minimax-m2" ? 1 : 0};
}

class ModelLayers : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelLayers, UseExpectedNumberOfAllReduces) {
  const auto model = open_model(model_path(GetParam()));
  const Reductions each = reductions_of(*model);
  const auto check = [&](const DevicesAndShares& mesh, ExpertSplit experts) {
    PlacementOptions options{mesh.ratio, 1};
    options.experts = experts;
    const Placement placement(*model, cpu_devices(mesh.devices), options);
    const ModelPlan plan(*model, placement, session_options(320, 48));
    std::vector<const meta::Plan*> plans{&plan.step.on()};
    for (const PlannedGraph& prompt : plan.prompts) plans.push_back(&prompt.on());
    for (const meta::Plan* of : plans) {
      const auto is_collective = [](const meta::Step& step) { return step.kind == meta::StepKind::kCollective; };
      const int reductions = of->count(Collective::kAllReduce);
      EXPECT_EQ(std::count_if(of->steps.begin(), of->steps.end(), is_collective), reductions);
      EXPECT_LE(reductions, (each.rows + each.small) * model->hparams.layers) << mesh.devices;
      EXPECT_GE(reductions, each.rows * model->hparams.layers)
          << mesh.devices;  // no small all-reduce if one device has all heads
    }
    const int64_t least = model->hparams.layers * each.rows * model->hparams.embd;
    const int64_t floats = plan.step.on().collective_bytes() / static_cast<int64_t>(sizeof(float));
    EXPECT_GE(floats, least) << mesh.devices;
    EXPECT_LE(floats, least + model->hparams.layers * 2 * each.small) << mesh.devices;
  };
  for (const DevicesAndShares& mesh : {DevicesAndShares{2, ""}, {3, ""}, {2, "3,1"}}) {
    check(mesh, ExpertSplit::kInside);
    if (model->hparams.experts_used == 0) continue;
    check(mesh, ExpertSplit::kWhole);
  }
}

TEST_P(ModelLayers, EveryGroupOfSplitTensorsHasUnits) {
  const auto model = open_model(model_path(GetParam()));
  const auto units = split_units(model->hparams, model->split_tensors());
  EXPECT_TRUE(units.contains(CutGroup::kFeedForward));
  for (const auto& [group, count] : units) EXPECT_GE(count, 1) << static_cast<int>(group);
}

// If the nodes are adjacent, devices can fuse RoPE and the cache write into one launch.
TEST_P(ModelLayers, RopeDirectlyPrecedesCacheWrites) {
  const auto model = open_model(model_path(GetParam()));
  const Placement placement(*model, cpu_devices(1), {"", 1});
  const ModelPlan plan(*model, placement, session_options(320, 48));
  const auto nodes = plan.step.graph.graph->nodes();
  const bool tempered = plan.step.graph.temperature != nullptr;  // queries are multiplied by factors after RoPE
  const auto& layers = model->hparams.per_layer;
  const bool shared = std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.kv_layer >= 0; });
  int turned = 0;
  for (size_t i = 0; i + 1 < nodes.size(); ++i) {
    if (nodes[i]->op != Op::kRope) continue;
    size_t next = i + 1;
    while (is_view(nodes[next]->op)) ++next;
    const Op op = nodes[next]->op;
    EXPECT_TRUE(op == Op::kRope || op == Op::kSetRows || (tempered && op == Op::kMul) ||
                (shared && op == Op::kAttention))
        << nodes[i]->name;
    ++turned;
  }
  EXPECT_GT(turned, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ModelLayers, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ReferenceCases, CoverEveryArchitecture) {
  std::set<std::string_view> covered;
  for (const std::string& name : cases()) {
    covered.insert(open_model(model_path(name))->architecture->name);
  }
  for (const Architecture& architecture : architectures()) {
    EXPECT_TRUE(covered.contains(architecture.name)) << architecture.name << " has no file in tests/models/references";
  }
}

}  // namespace
}  // namespace shoal::models
