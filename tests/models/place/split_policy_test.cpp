#include "models/place/split_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "models/arch/architecture.h"
#include "models/place/split_division.h"
#include "tests/models/checks.h"

namespace shoal::models {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Hparams tiny() {
  Hparams h;
  h.architecture = "llama";
  h.layers = 6, h.context = 512, h.embd = 256, h.ff = 768, h.heads = 8, h.kv_heads = 4;
  h.head_dim_k = h.head_dim_v = 32, h.vocab = 1024, h.norm_eps = 1e-5f, h.rope.dims = 32;
  return h;
}

/// The dimensions of a 70B model: 80 layers, and 64 heads of 128 elements in groups of 8 heads.
Hparams large() {
  Hparams h = tiny();
  h.layers = 80, h.embd = 8192, h.ff = 28672, h.heads = 64, h.kv_heads = 8;
  h.head_dim_k = h.head_dim_v = h.rope.dims = 128, h.vocab = 128256;
  return h;
}

/// The dimensions of Qwen3 30B-A3B (narrow experts), with only 4 layers.
Hparams narrow_experts() {
  Hparams h = tiny();
  h.layers = 4, h.embd = 2048, h.ff = 768, h.experts = 128, h.experts_used = 8, h.heads = 32, h.kv_heads = 4;
  h.head_dim_k = h.head_dim_v = h.rope.dims = 128, h.vocab = 1024;
  return h;
}

/// A model with few wide experts, as in Mixtral 8x7B.
Hparams wide_experts() {
  Hparams h = narrow_experts();
  h.embd = 4096, h.ff = 14336, h.experts = 8, h.experts_used = 2, h.kv_heads = 8;
  return h;
}

/// Declares the tensors of an architecture. No model file is needed. All matrices have the same dtype.
struct Declared {
  Declared(const Hparams& hparams, DType dtype, std::string_view architecture = "llama") : h(hparams) {
    for (TensorSpec& spec : find_architecture(architecture, {}).tensors(h)) {
      if (!spec.optional || spec.name == "output.weight") specs.push_back(std::move(spec));
    }
    for (const TensorSpec& spec : specs) {
      DType used = spec.shape[1] == 1 || spec.elementwise ? DType::kF32 : dtype;
      tensors.push_back({&spec, used});
      context.add(spec.name, used, spec.shape);
    }
    declare_cache(cache, h, {h.context, DType::kF16, DType::kF16});
  }
  SplitPolicy policy(std::string_view ratio, int devices, ExpertSplit experts = ExpertSplit::kInside) const {
    return SplitPolicy(h, tensors, parse_ratio(ratio, devices), experts);
  }
  std::string layout(const SplitPolicy& policy, const std::string& name) const {
    const Tensor* tensor = context.find(name);
    return meta::to_layout(policy(*tensor), *tensor, policy.devices()).to_string();
  }

  Hparams h;
  std::vector<TensorSpec> specs;
  std::vector<ModelTensor> tensors;
  TensorContext context;
  KvCache cache;
};

TEST(ParseRatio, NormalisesRatioAndDefaultsToEvenShares) {
  EXPECT_THAT(parse_ratio("3,1", 2), ElementsAre(0.75, 0.25));
  EXPECT_THAT(parse_ratio(" 30 : 10 ", 2), ElementsAre(0.75, 0.25));
  EXPECT_THAT(parse_ratio("", 4), ElementsAre(0.25, 0.25, 0.25, 0.25));
  EXPECT_THAT(parse_ratio("5,0,2", 3), ElementsAre(5.0 / 7, 0.0, 2.0 / 7));
}

TEST(ParseRatio, ErrorsNameTheReason) {
  EXPECT_THAT(message_of([] { parse_ratio("3,x", 2); }), HasSubstr("bad ratio '3,x': 'x' is not a number >= 0"));
  EXPECT_THAT(message_of([] { parse_ratio("3,", 2); }), HasSubstr("'' is not a number"));
  EXPECT_THAT(message_of([] { parse_ratio("3,-1", 2); }), HasSubstr("'-1'"));
  EXPECT_THAT(message_of([] { parse_ratio("inf,1", 2); }), HasSubstr("'inf'"));
  EXPECT_THAT(message_of([] { parse_ratio("nan,1", 2); }), HasSubstr("'nan'"));
  EXPECT_THAT(message_of([] { parse_ratio("0,0", 2); }), HasSubstr("at least one must be above 0"));
  EXPECT_THAT(message_of([] { parse_ratio("3,1", 3); }), HasSubstr("2 numbers for 3 devices"));
}

TEST(DivideUnits, UnitsGoToDeviceWithLargestDeficit) {
  ShareLedger even(std::vector{0.5, 0.5});
  EXPECT_THAT(divide_units(even, {384, 384}, 768, 256), ElementsAre(512, 256));
  EXPECT_THAT(divide_units(even, {-300, 1068}, 768, 256), ElementsAre(0, 768));
  // The last unit has 4 instead of 32 elements.
  EXPECT_THAT(divide_units(even, {50, 50}, 100, 32), ElementsAre(64, 36));
  ShareLedger idle(std::vector{0.7, 0.0, 0.3});
  EXPECT_THAT(divide_units(idle, {7, 0, 3}, 10, 1), ElementsAre(7, 0, 3));
  EXPECT_THAT(divide_units(idle, {-7, 100, -9}, 2, 1), ElementsAre(2, 0, 0));
}

TEST(DivideGroups, DeviceGetsWholeGroupsOrPartOfOneGroup) {
  ShareLedger five(std::vector<double>(5, 0.2));
  EXPECT_THAT(divide_groups(five, std::vector(5, 1.6), 8, 2, 1), ElementsAre(1, 1, 2, 2, 2));
  ShareLedger eight(std::vector<double>(8, 0.125));
  EXPECT_THAT(divide_groups(eight, std::vector(8, 1.0), 8, 2, 1), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  // Two groups of 4 heads are divided among three devices in units of 2 heads. A division into 3 + 3 + 2 heads would
  // cut units.
  ShareLedger three(std::vector<double>(3, 1.0 / 3));
  EXPECT_THAT(divide_groups(three, {8.0 / 3, 8.0 / 3, 8.0 / 3}, 8, 4, 2), ElementsAre(2, 2, 4));
}

TEST(SplitPolicy, DividesHeadsColumnsAndVocabularyRows) {
  Declared model(tiny(), DType::kF16);
  SplitPolicy policy = model.policy("3,1", 2);
  EXPECT_EQ(policy.partition(0, CutGroup::kQueryHeads).to_string(), "6:{0} 2:{1}");
  EXPECT_EQ(policy.partition(0, CutGroup::kKvHeads).to_string(), "3:{0} 1:{1}");
  EXPECT_EQ(policy.partition(0, CutGroup::kFeedForward).to_string(), "576:{0} 192:{1}");
  EXPECT_EQ(policy.partition(-1, CutGroup::kVocabulary).to_string(), "768:{0} 256:{1}");
  auto layout = [&](const std::string& name) {
    const Tensor* tensor = model.context.find(name);
    return meta::to_layout(policy(*tensor), *tensor, 2).to_string();
  };
  EXPECT_EQ(layout("blk.0.attn_q.weight"), "split 1 [192:{0} 64:{1}]");
  EXPECT_EQ(layout("blk.0.attn_k.weight"), "split 1 [96:{0} 32:{1}]");
  EXPECT_EQ(layout("blk.0.attn_output.weight"), "split 0 [192:{0} 64:{1}]");
  EXPECT_EQ(layout("blk.5.ffn_down.weight"), "split 0 [576:{0} 192:{1}]");
  EXPECT_EQ(layout("token_embd.weight"), "mirrored");
  EXPECT_EQ(layout("blk.3.attn_norm.weight"), "mirrored");
  EXPECT_EQ(meta::to_layout(policy(*model.cache.layers[2].k), *model.cache.layers[2].k, 2).to_string(),
            "split 2 [3:{0} 1:{1}]");
}

TEST(SplitPolicy, DevicesShareKvHeadsIfHeadsAreFew) {
  Declared model(tiny(), DType::kQ8_0);
  SplitPolicy policy = model.policy("", 8);
  EXPECT_EQ(policy.partition(0, CutGroup::kQueryHeads), meta::Partition::even(8, 8));
  EXPECT_EQ(policy.partition(0, CutGroup::kKvHeads).to_string(), "1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}");
}

TEST(SplitPolicy, SingleAttentionUnitAlternatesBetweenDevices) {
  Declared model(tiny(), DType::kQ4_K);
  SplitPolicy policy = model.policy("", 3);
  std::vector<int> owners;
  for (int layer = 0; layer < 6; ++layer) {
    const meta::Partition& heads = policy.partition(layer, CutGroup::kQueryHeads);
    ASSERT_EQ(heads.runs().size(), 1u);
    owners.push_back(heads.runs()[0].owners[0]);
    for (const meta::Run& run : policy.partition(layer, CutGroup::kFeedForward).runs()) EXPECT_EQ(run.length % 256, 0);
  }
  EXPECT_THAT(owners, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(SplitPolicy, AttentionAndFeedForwardAreBalancedSeparately) {
  // The 4 KV heads do not divide evenly among 3 devices. The 768 columns divide evenly in every layer.
  Declared model(tiny(), DType::kQ8_0);
  SplitPolicy policy = model.policy("", 3);
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(policy.partition(layer, CutGroup::kKvHeads).local_length(layer % 3), 2) << layer;
    EXPECT_EQ(policy.partition(layer, CutGroup::kFeedForward), meta::Partition::even(3, 768)) << layer;
  }
  // The columns form 3 units. From layer to layer, each of the 2 devices alternately gets 2 units and 1 unit.
  Declared blocks(tiny(), DType::kQ4_K);
  SplitPolicy halves = blocks.policy("", 2);
  EXPECT_EQ(halves.partition(0, CutGroup::kFeedForward).to_string(), "512:{0} 256:{1}");
  EXPECT_EQ(halves.partition(1, CutGroup::kFeedForward).to_string(), "256:{0} 512:{1}");
  EXPECT_EQ(halves.partition(2, CutGroup::kFeedForward).to_string(), "512:{0} 256:{1}");
}

// Layers 3 to 5 read the cache of layer 2. The quantisation blocks of attn_output in layer 4 are longer than the blocks
// of all other tensors.
TEST(SplitPolicy, LayersWithSharedCacheHaveEqualPartitions) {
  Hparams h = tiny();
  h.head_dim_k = h.head_dim_v = h.rope.dims = 64;
  h.per_layer.assign(6, h);
  for (size_t layer = 3; layer < 6; ++layer) h.per_layer[layer].kv_layer = 2;
  Declared model(h, DType::kQ8_0, "gemma4");
  EXPECT_EQ(model.context.find("blk.4.attn_k.weight"), nullptr);
  EXPECT_EQ(model.cache.layers[4].k, model.cache.layers[2].k);
  for (ModelTensor& tensor : model.tensors) {
    if (tensor.spec->name == "blk.4.attn_output.weight") tensor.dtype = DType::kQ6_K;  // a block spans 4 of the 8 heads
  }
  EXPECT_EQ(split_units(h, model.tensors).at(CutGroup::kQueryHeads), 2);
  for (const auto& [ratio, devices] : {std::pair{"", 2}, {"3,1", 2}, {"", 3}, {"5,0,2", 3}, {"", 8}}) {
    const SplitPolicy policy = model.policy(ratio, devices);
    for (int layer = 2; layer < 6; ++layer) {
      const meta::Partition& heads = policy.partition(layer, CutGroup::kQueryHeads);
      EXPECT_EQ(heads, policy.partition(2, CutGroup::kQueryHeads)) << layer << " " << ratio;
      EXPECT_EQ(heads.group(2), policy.partition(layer, CutGroup::kKvHeads)) << layer << " " << ratio;
      for (const meta::Run& run : heads.runs()) EXPECT_EQ(run.length % 4, 0) << layer << " " << ratio;
    }
    EXPECT_EQ(policy.partition(1, CutGroup::kQueryHeads).length(), 8);
  }
  EXPECT_EQ(model.policy("3,1", 2).partition(2, CutGroup::kQueryHeads).to_string(), "8:{0}")
      << "6 and 2 heads are rounded to units of 4 heads";
  EXPECT_EQ(model.policy("", 2).partition(2, CutGroup::kQueryHeads).to_string(), "4:{0} 4:{1}");
}

TEST(SplitPolicy, RefusesUnknownTensors) {
  Declared model(tiny(), DType::kF16);
  SplitPolicy policy = model.policy("", 2);
  TensorContext other;
  EXPECT_THAT(message_of([&] { policy(*other.add("foo", DType::kF32, {4, 1, 1, 1})); }), HasSubstr("foo"));
}

/// Bytes of one attention unit of one layer. A unit is the smallest number of heads that the policy can assign to a
/// device (split_policy.h). Over the whole model, the bytes of a device may differ from the requested bytes by at most
/// one unit.
double unit_bytes(const Declared& model, DType dtype) {
  double head_unit = std::lcm(traits(dtype).block_elems, model.h.head_dim_v) / model.h.head_dim_v;
  double heads = std::max<double>(head_unit, static_cast<double>(model.h.group()));
  double row = static_cast<double>(bytes_for(dtype, model.h.embd));
  return row * heads * static_cast<double>(model.h.head_dim_k) * (2.0 + 2.0 / static_cast<double>(model.h.group()));
}

TEST(SplitPolicy, AchievesRatioOverWholeModel) {
  struct Case {
    const char* ratio;
    int devices;
  };
  for (const Case& c : {Case{"3,1", 2}, {"0.9:0.1", 2}, {"5,0,2", 3}, {"30,25", 2}, {"", 3}, {"", 7}, {"7,1,1", 3}}) {
    for (DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_K}) {
      Declared model(large(), dtype);
      SplitPolicy policy = model.policy(c.ratio, c.devices);
      std::vector<double> asked = parse_ratio(c.ratio, c.devices);
      double total = std::accumulate(policy.bytes().begin(), policy.bytes().end(), 0.0);
      for (int d = 0; d < c.devices; ++d) {
        EXPECT_NEAR(policy.bytes()[d], asked[d] * total, unit_bytes(model, dtype))
            << c.ratio << " " << name_of(dtype) << " device " << d;
      }
      // The output head can be divided in small steps, so the final error is tiny.
      for (int d = 0; d < c.devices; ++d) EXPECT_NEAR(policy.bytes()[d] / total, asked[d], 1e-4);
    }
  }
}

constexpr ExpertSplit kWholeExperts = ExpertSplit::kWhole, kInsideExperts = ExpertSplit::kInside;

TEST(SplitPolicy, ExpertsAreWholeOrDividedByColumns) {
  Declared model(narrow_experts(), DType::kQ4_K);
  const SplitPolicy whole = model.policy("3,1,0", 3, kWholeExperts);
  EXPECT_EQ(whole.partition(1, CutGroup::kExperts).to_string(), "96:{0} 32:{1}");
  for (const char* name : {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"}) {
    EXPECT_EQ(model.layout(whole, name), "split 2 [96:{0} 32:{1}]") << name;
  }
  EXPECT_EQ(model.layout(whole, "blk.1.ffn_gate_inp.weight"), "mirrored");
  const SplitPolicy inside = model.policy("2,1,0", 3, kInsideExperts);
  EXPECT_EQ(model.layout(inside, "blk.1.ffn_gate_exps.weight"), "split 1 [512:{0} 256:{1}]");
  EXPECT_EQ(model.layout(inside, "blk.1.ffn_down_exps.weight"), "split 0 [512:{0} 256:{1}]");
  EXPECT_THAT(message_of([&] { inside.partition(1, CutGroup::kExperts); }), HasSubstr("no tensors in this split"));
  EXPECT_EQ(inside.experts(), ExpertSplit::kInside);
  // If there is only one device, or if the model has no experts, the policy divides no experts among devices.
  EXPECT_EQ(model.policy("", 1, kWholeExperts).experts(), ExpertSplit::kInside);
  EXPECT_EQ(Declared(tiny(), DType::kF16).policy("", 2, kWholeExperts).experts(), ExpertSplit::kInside);
}

// The division of the shared expert does not compensate for the rounding of the routed experts.
TEST(SplitPolicy, SharedExpertDoesNotCompensateForRoundedExperts) {
  Hparams h = narrow_experts();  // with the widths of Gemma 4 26B-A4B
  h.ff = 704, h.shared_ff = 2112;
  const Declared model(h, DType::kQ8_0, "gemma4");
  const SplitPolicy policy = model.policy("", 4, kInsideExperts);
  EXPECT_EQ(policy.partition(0, CutGroup::kFeedForward).to_string(), "192:{0} 192:{1} 160:{2} 160:{3}");
  EXPECT_EQ(policy.partition(0, CutGroup::kSharedExpert).to_string(), "544:{0} 544:{1} 512:{2} 512:{3}");
  EXPECT_EQ(policy.partition(1, CutGroup::kSharedExpert).to_string(), "512:{0} 512:{1} 544:{2} 544:{3}");
}

TEST(SplitPolicy, DevicesWithoutExpertColumnsGetSharedExpert) {
  Hparams h = narrow_experts();
  h.shared_ff = 768;
  const Declared model(h, DType::kQ4_K, "qwen2moe");
  const SplitPolicy policy = model.policy("", 6, kInsideExperts);
  EXPECT_EQ(policy.partition(0, CutGroup::kFeedForward).to_string(), "256:{0} 256:{1} 256:{2}");
  EXPECT_EQ(policy.partition(0, CutGroup::kSharedExpert).to_string(), "256:{3} 256:{4} 256:{5}");
  EXPECT_EQ(policy.partition(1, CutGroup::kFeedForward).to_string(), "256:{3} 256:{4} 256:{5}");
  EXPECT_EQ(policy.partition(1, CutGroup::kSharedExpert).to_string(), "256:{0} 256:{1} 256:{2}");
}

TEST(SplitPolicy, RemaindersOfExpertsAlternateBetweenDevices) {
  Declared model(narrow_experts(), DType::kQ4_K);
  const SplitPolicy policy = model.policy("", 3, kWholeExperts);
  EXPECT_EQ(policy.partition(0, CutGroup::kExperts).to_string(), "43:{0} 43:{1} 42:{2}");
  EXPECT_EQ(policy.partition(1, CutGroup::kExperts).to_string(), "43:{0} 42:{1} 43:{2}");
  const double all = std::accumulate(policy.bytes().begin(), policy.bytes().end(), 0.0);
  const double expert = 3 * static_cast<double>(bytes_for(DType::kQ4_K, 2048 * 768));
  for (int d = 0; d < 3; ++d) EXPECT_NEAR(policy.bytes()[d], all / 3, expert);
  // There are more devices than experts.
  Hparams few = wide_experts();
  few.layers = 1, few.ff = 64;
  const SplitPolicy sparse = Declared(few, DType::kF16).policy("", 10, kWholeExperts);
  EXPECT_EQ(sparse.partition(0, CutGroup::kExperts).to_string(), "1:{0} 1:{1} 1:{2} 1:{3} 1:{4} 1:{5} 1:{6} 1:{7}");
}

TEST(SplitPolicy, UpBiasesAreDividedLikeExpertsAndDownBiasesAreMirrored) {
  Hparams h = narrow_experts();
  h.ff = 2880, h.experts = 32, h.experts_used = 4;
  Declared model(h, DType::kMXFP4, "gpt-oss");
  const SplitPolicy whole = model.policy("", 4, kWholeExperts), inside = model.policy("", 4, kInsideExperts);
  EXPECT_EQ(model.layout(whole, "blk.0.ffn_up_exps.bias"), "split 1 [8:{0} 8:{1} 8:{2} 8:{3}]");
  EXPECT_EQ(model.layout(whole, "blk.0.ffn_down_exps.bias"), "mirrored") << "the bias is added once to the sum";
  EXPECT_EQ(model.layout(inside, "blk.0.ffn_up_exps.bias"), "split 0 [736:{0} 736:{1} 704:{2} 704:{3}]");
}

/// For random models and ratios, checks three properties. Every split state is valid. Devices without a share get no
/// elements. Query heads match KV heads.
TEST(SplitPolicy, SplitStatesAreValidForRandomModels) {
  std::mt19937 random(7);
  auto pick = [&](auto... values) {
    std::array options{values...};
    return options[std::uniform_int_distribution<size_t>(0, options.size() - 1)(random)];
  };
  for (int round = 0; round < 200; ++round) {
    Hparams h = tiny();
    h.layers = 3;
    h.kv_heads = pick(1, 2, 3, 8);
    h.heads = h.kv_heads * pick(1, 2, 4, 5, 8);
    h.head_dim_k = h.head_dim_v = h.rope.dims = pick(32, 64, 128);
    DType dtype = pick(DType::kF16, DType::kQ8_0, DType::kQ5_1);
    if (h.heads * h.head_dim_v % 256 == 0) dtype = pick(dtype, DType::kQ6_K);
    h.ff = 256 * pick(1, 2, 3, 7);
    h.vocab = pick(100, 1000, 32001);
    int devices = pick(1, 2, 3, 5, 8, 16);
    std::string ratio;
    for (int d = 0; d < devices; ++d) ratio += fmt::format("{}{}", d ? "," : "", d == devices / 2 ? 1 : pick(0, 1, 3));
    SCOPED_TRACE(fmt::format("round {}: {} heads in groups of {}, {}, ratio {}", round, h.heads, h.group(),
                             name_of(dtype), ratio));
    Declared model(h, dtype);
    SplitPolicy policy = model.policy(ratio, devices);
    std::vector<double> shares = parse_ratio(ratio, devices);
    for (const Tensor* tensor : model.context.tensors()) {
      meta::Layout layout = meta::to_layout(policy(*tensor), *tensor, devices);
      if (!layout.is_split()) continue;
      for (int d = 0; d < devices; ++d) {
        if (shares[d] == 0.0) {
          EXPECT_EQ(layout.partition.local_length(d), 0) << tensor->name;
        }
      }
    }
    for (int layer = 0; layer < h.layers; ++layer) {
      const meta::Partition& heads = policy.partition(layer, CutGroup::kQueryHeads);
      EXPECT_TRUE(heads.is_disjoint());
      EXPECT_EQ(heads.length(), h.heads);
      EXPECT_EQ(heads.group(h.group()), policy.partition(layer, CutGroup::kKvHeads));
    }
  }
}

}  // namespace
}  // namespace shoal::models
