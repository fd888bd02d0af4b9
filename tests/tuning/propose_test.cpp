// Compares proposed split states with the hand-written split policy, for every architecture of the reference models,
// and checks the proposals for graphs that are not language models. All devices are simulated.
#include "tuning/propose/propose.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "graph/text.h"
#include "models/arch/model.h"
#include "models/place/split_policy.h"
#include "tests/models/described_machine.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using meta::SplitState;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Simulated devices G0, G1, ... and their machine. Reads of weights and caches take much longer than collectives.
struct Mesh {
  explicit Mesh(int count, size_t memory = size_t{1} << 40, double latency = 1e-7)
      : machine(models::described_machine(std::vector<double>(static_cast<size_t>(count), 1e-9), latency)) {
    for (int i = 0; i < count; ++i) {
      machine::DeviceModel& model = machine.devices[static_cast<size_t>(i)];
      model.name = fmt::format("G{}", i);
      model.attention_bandwidth = model.activation_bandwidth = 20e9;
      model.op_seconds = 1e-8;
      devices.push_back(&sim::family().provide({model.name, "simulated", DeviceType::kGpu, memory}));
    }
  }
  machine::MachineModel machine;
  std::vector<Device*> devices;
};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SHOAL_SOURCE_DIR "/tests/models/references")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The graph of one batch of a model, without plans.
struct ModelGraph {
  ModelGraph(const std::string& name, int64_t parts, int64_t tokens = 1)
      : model(models::open_model(fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, name))) {
    models::declare_cache(cache, model->hparams, {.rows = 320 * parts, .batch = 48, .parts = parts});
    graph = model->architecture->build(model->hparams, model->weights, cache, {tokens, 1});
  }
  std::unique_ptr<models::Model> model;
  models::KvCache cache;
  models::DecoderGraph graph;
};

struct Ratio {
  int devices;
  const char* text;
};

class Proposals : public testing::TestWithParam<std::string> {
 protected:
  /// `parts`: number of parts of a latent cache; 1: the cache is mirrored.
  static void compare(const Ratio& ratio, int64_t parts) {
    const ModelGraph made(GetParam(), parts);
    const models::Hparams& hparams = made.model->hparams;
    const Mesh mesh(ratio.devices);
    const ProposeOptions options{.shares = models::parse_ratio(ratio.text, ratio.devices)};
    const auto latent = parts > 1 ? models::LatentSplit::kRows : models::LatentSplit::kMirrored;
    double policy = std::numeric_limits<double>::infinity();
    for (const auto experts : {models::ExpertSplit::kInside, models::ExpertSplit::kWhole}) {
      const models::SplitPolicy states(hparams, made.model->split_tensors(), options.shares, experts, latent, parts);
      policy = std::min(policy, predict_graph(*made.graph.graph, mesh.devices, mesh.machine, states, options).seconds);
    }
    const Proposal proposal = propose_split_states(*made.graph.graph, mesh.devices, mesh.machine, options);
    EXPECT_LE(proposal.seconds, 1.03 * policy) << to_string(proposal);
    EXPECT_LT(proposal.seconds, proposal.mirrored_seconds);
    RecordProperty(fmt::format("devices_{}_parts_{}", ratio.devices, parts),
                   fmt::format("{:.4f}", proposal.seconds / policy));
  }
};

// The policy divides experts in the faster of two ways. Latent caches are mirrored, or divided into parts.
TEST_P(Proposals, AreAtMostThreePercentSlowerThanPolicy) {
  const auto model = models::open_model(fmt::format("{}/{}.gguf", SHOAL_REFERENCE_MODELS, GetParam()));
  for (const Ratio& ratio : {Ratio{3, "5,0,2"}, Ratio{4, ""}}) {
    SCOPED_TRACE(fmt::format("{} devices {}", ratio.devices, ratio.text));
    compare(ratio, 1);
    if (models::has_latent_cache(model->hparams)) compare(ratio, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Proposals, testing::ValuesIn(model_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// A graph from text, and the proposal for it.
struct TextGraph {
  explicit TextGraph(const std::string& text) { parse_graph(text, graph, weights); }
  /// The states as text, one "name state" for each split tensor.
  std::vector<std::string> proposed(const Mesh& mesh, const ProposeOptions& options = {}) {
    std::vector<std::string> out;
    for (const auto& [name, state] : propose_split_states(graph, mesh.devices, mesh.machine, options).states) {
      out.push_back(name + " " + state.to_string());
    }
    return out;
  }
  Graph graph;
  TensorContext weights;
};

const char* const kMlp = R"(
input %x f32 [512]
weight %norm f32 [512]
weight %up f32 [512, 2048]
weight %bias f32 [2048]
weight %down f32 [2048, 512]
%n = rms_norm(%x)
%m = mul(%n, %norm)
%u = mul_mat(%up, %m)
%b = add(%u, %bias)
%a = unary(%b) {kind=gelu}
%d = mul_mat(%down, %a)
%y = add(%x, %d)
%z = rms_norm(%y)
output %z
)";

TEST(Propose, SplitsMlpByHiddenColumns) {
  EXPECT_THAT(TextGraph(kMlp).proposed(Mesh(2)),
              testing::ElementsAre("bias axis 0 [1024:{0} 1024:{1}]", "down axis 0 [1024:{0} 1024:{1}]",
                                   "up axis 1 [1024:{0} 1024:{1}]"));
}

TEST(Propose, FollowsSharesAndLeavesZeroSharesEmpty) {
  EXPECT_THAT(TextGraph(kMlp).proposed(Mesh(3), {.shares = {3, 0, 1}}),
              testing::ElementsAre("bias axis 0 [1536:{0} 512:{2}]", "down axis 0 [1536:{0} 512:{2}]",
                                   "up axis 1 [1536:{0} 512:{2}]"));
}

TEST(Propose, RefusesInvalidShares) {
  for (const std::vector<double>& shares :
       {std::vector<double>{1e308, 1e308}, {INFINITY, 1}, {NAN, 1}, {-1, 2}, {0, 0}}) {
    EXPECT_THAT([&] { TextGraph(kMlp).proposed(Mesh(2), {.shares = shares}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("must be >= 0 and have a finite sum above 0")));
  }
}

TEST(Propose, MirrorsIfCollectivesAreSlowerThanProducts) {
  const Mesh mesh(2, size_t{1} << 40, 1);
  TextGraph made(kMlp);
  const Proposal proposal = propose_split_states(made.graph, mesh.devices, mesh.machine);
  EXPECT_TRUE(proposal.states.empty());
  EXPECT_EQ(proposal.seconds, proposal.mirrored_seconds);
  EXPECT_THAT(proposal.reason, HasSubstr("mirrored tensors are the fastest"));
}

// A device has 6 MB, but the two matrices have 8 MB.
TEST(Propose, SplitsSlowlyIfMemoryRequiresIt) {
  const Mesh mesh(2, 6000000, 1);
  TextGraph made(kMlp);
  const Proposal proposal = propose_split_states(made.graph, mesh.devices, mesh.machine);
  EXPECT_EQ(proposal.states.size(), 3u);
  EXPECT_GT(proposal.seconds, proposal.mirrored_seconds);
  for (const meta::MemoryUse& use : proposal.memory) EXPECT_LE(use.total(), 6000000u);
}

TEST(Propose, NamesDeviceAndMissingBytes) {
  const Mesh mesh(2, 1000000);
  TextGraph made(kMlp);
  EXPECT_THAT([&] { propose_split_states(made.graph, mesh.devices, mesh.machine); },
              ThrowsMessage<DeviceError>(HasSubstr("are missing: add devices")));
}

// Each branch has 4 blocks for 8 devices. In every layer, the branches run at the same time on different devices.
TEST(Propose, DividesDevicesBetweenBranchesOfEveryLayer) {
  constexpr int kLayers = 5;
  std::string text = "input %x0 f32 [512]\n";
  for (int i = 0; i < kLayers; ++i) {
    for (const char branch : {'a', 'b'}) {
      text += fmt::format("weight %up_{0}{1} f32 [512, 1024]\nweight %down_{0}{1} q4_k [1024, 512]\n", branch, i);
    }
    text += fmt::format(
        "%p{0} = mul_mat(%up_a{0}, %x{0})\n%q{0} = unary(%p{0}) {{kind=gelu}}\n%r{0} = mul_mat(%down_a{0}, %q{0})\n"
        "%s{0} = mul_mat(%up_b{0}, %x{0})\n%t{0} = mul(%s{0}, %s{0})\n%u{0} = mul_mat(%down_b{0}, %t{0})\n"
        "%v{0} = add(%r{0}, %u{0})\n%x{1} = rms_norm(%v{0})\n",
        i, i + 1);
  }
  TextGraph made(text + fmt::format("output %x{}\n", kLayers));
  const Mesh mesh(8);
  const Proposal proposal = propose_split_states(made.graph, mesh.devices, mesh.machine);
  for (int i = 0; i < kLayers; ++i) {
    for (int device = 0; device < 8; ++device) {
      const auto has_part = [&](const char* name) {
        return proposal.states.at(fmt::format("{}{}", name, i)).to_string().find(fmt::format("{{{}}}", device)) !=
               std::string::npos;
      };
      EXPECT_NE(has_part("down_a"), has_part("down_b")) << "layer " << i << '\n' << to_string(proposal);
    }
  }
}

TEST(Propose, SplitsFusedGateAndUpInSegments) {
  TextGraph made(R"(
input %x f32 [512]
weight %gate_up f32 [512, 4096]
weight %down f32 [2048, 512]
%u = mul_mat(%gate_up, %x)
%a = glu(%u, _)
%d = mul_mat(%down, %a)
output %d
)");
  EXPECT_THAT(made.proposed(Mesh(2)), testing::ElementsAre("down axis 0 [1024:{0} 1024:{1}]",
                                                           "gate_up axis 1 [1024:{0} 1024:{1} 1024:{0} 1024:{1}]"));
}

// 8 query heads and 4 KV heads of 64 elements. Q, K and V are one weight.
TEST(Propose, SplitsFusedAttentionByHeads) {
  TextGraph made(R"(
input %x f32 [512, 4]
input %rows i32 [4]
weight %qkv f32 [512, 1024]
weight %out f32 [512, 512]
cache %keys f16 [64, 32, 4]
cache %values f16 [64, 32, 4]
%f = mul_mat(%qkv, %x)
%q0 = slice(%f) {axis=0, begin=0, length=512}
%k0 = slice(%f) {axis=0, begin=512, length=256}
%v0 = slice(%f) {axis=0, begin=768, length=256}
%qc = contiguous(%q0)
%q1 = reshape(%qc) {shape=[64,8,4,1]}
%kc = contiguous(%k0)
%k1 = reshape(%kc) {shape=[64,4,4,1]}
%vc = contiguous(%v0)
%v1 = reshape(%vc) {shape=[64,4,4,1]}
%q = permute(%q1) {axes=[0,2,1,3]}
%k2 = permute(%k1) {axes=[0,2,1,3]}
%v2 = permute(%v1) {axes=[0,2,1,3]}
%k = set_rows(%keys, %k2, %rows)
%v = set_rows(%values, %v2, %rows)
%heads = attention(%q, %k, %v, %rows, _, _) {scale=0.125}
%merged = reshape(%heads) {shape=[512,4,1,1]}
%y = mul_mat(%out, %merged)
%n = rms_norm(%y)
output %n
)");
  EXPECT_THAT(made.proposed(Mesh(2)),
              testing::ElementsAre("keys axis 2 [2:{0} 2:{1}]", "out axis 0 [256:{0} 256:{1}]",
                                   "qkv axis 1 [256:{0} 256:{1} 128:{0} 128:{1} 128:{0} 128:{1}]",
                                   "values axis 2 [2:{0} 2:{1}]"));
  // Each KV head is on two devices. A collective takes a millisecond, so a division with two all-reduces is slower.
  EXPECT_THAT(made.proposed(Mesh(8, size_t{1} << 40, 1e-3)),
              testing::Contains("keys axis 2 [1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}]"));
}

// Scores, softmax and the weighted sum are separate ops.
TEST(Propose, SplitsWrittenOutAttentionByHeads) {
  TextGraph made(R"(
input %x f32 [512, 16]
weight %wq f32 [512, 512]
weight %wk f32 [512, 512]
weight %wv f32 [512, 512]
weight %wo f32 [512, 512]
%q0 = mul_mat(%wq, %x)
%k0 = mul_mat(%wk, %x)
%v0 = mul_mat(%wv, %x)
%q1 = reshape(%q0) {shape=[64,8,16,1]}
%k1 = reshape(%k0) {shape=[64,8,16,1]}
%v1 = reshape(%v0) {shape=[64,8,16,1]}
%q = permute(%q1) {axes=[0,2,1,3]}
%k = permute(%k1) {axes=[0,2,1,3]}
%v2 = permute(%v1) {axes=[2,0,1,3]}
%v = contiguous(%v2)
%s = mul_mat(%k, %q)
%p = soft_max(%s, _, _) {scale=0.125}
%o = mul_mat(%v, %p)
%o1 = permute(%o) {axes=[0,2,1,3]}
%o2 = contiguous(%o1)
%o3 = reshape(%o2) {shape=[512,16,1,1]}
%y = mul_mat(%wo, %o3)
output %y
)");
  EXPECT_THAT(made.proposed(Mesh(4)), testing::ElementsAre("wk axis 1 [128:{0} 128:{1} 128:{2} 128:{3}]",
                                                           "wo axis 0 [128:{0} 128:{1} 128:{2} 128:{3}]",
                                                           "wq axis 1 [128:{0} 128:{1} 128:{2} 128:{3}]",
                                                           "wv axis 1 [128:{0} 128:{1} 128:{2} 128:{3}]"));
}

TEST(Propose, SplitsConvolutionsByOutputThenInputChannels) {
  TextGraph made(R"(
input %x f32 [16, 16, 3, 1]
weight %w1 f32 [3, 3, 3, 64]
weight %w2 f32 [3, 3, 64, 64]
weight %w3 f32 [3, 3, 64, 128]
weight %w4 f32 [3, 3, 128, 64]
%c1 = conv_2d(%w1, %x) {pads=[1,1,1,1]}
%r1 = unary(%c1) {kind=relu}
%c2 = conv_2d(%w2, %r1) {pads=[1,1,1,1]}
%r2 = unary(%c2) {kind=relu}
%c3 = conv_2d(%w3, %r2) {pads=[1,1,1,1]}
%r3 = unary(%c3) {kind=relu}
%c4 = conv_2d(%w4, %r3) {pads=[1,1,1,1]}
%r4 = unary(%c4) {kind=relu}
output %r4
)");
  EXPECT_THAT(made.proposed(Mesh(2)), testing::ElementsAre("w1 axis 3 [32:{0} 32:{1}]", "w2 axis 2 [32:{0} 32:{1}]",
                                                           "w3 axis 3 [64:{0} 64:{1}]", "w4 axis 2 [64:{0} 64:{1}]"));
}

}  // namespace
}  // namespace shoal::tuning
