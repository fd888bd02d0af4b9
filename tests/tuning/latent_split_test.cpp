// What the split policy chooses for latent caches against predictions of both ways, which come from plans.
#include "models/place/latent_split.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/models/described_machine.h"
#include "tests/models/tiny_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary.h"
#include "tuning/predict.h"

namespace shoal::tuning {
namespace {
namespace latent_split {

using namespace models;

constexpr int64_t kLayers = 2, kHeads = 16, kEmbd = 256, kRank = 512, kTurned = 64, kPlain = 128, kValues = 128;

/// Attention as wide as that of DeepSeek V3, with fewer heads and little else; a header and a hole.
std::unique_ptr<Model> latent_model() {
  test::GgufWriter writer;
  const std::pair<const char*, int64_t> counts[] = {{"block_count", kLayers},
                                                    {"context_length", 1 << 20},
                                                    {"embedding_length", kEmbd},
                                                    {"feed_forward_length", 256},
                                                    {"attention.head_count", kHeads},
                                                    {"attention.head_count_kv", 1},
                                                    {"attention.kv_lora_rank", kRank},
                                                    {"attention.key_length", kRank + kTurned},
                                                    {"attention.value_length", kRank},
                                                    {"attention.key_length_mla", kPlain + kTurned},
                                                    {"attention.value_length_mla", kValues},
                                                    {"rope.dimension_count", kTurned}};
  writer.add("general.architecture", "deepseek2");
  for (const auto& [name, value] : counts) writer.add(std::string("deepseek2.") + name, static_cast<uint32_t>(value));
  writer.add("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
  uint64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& dims) {
    test::GgufTensorSpec tensor{name, traits(DType::kF32).gguf_type, {}, {}, {}, end};
    tensor.dims.assign(dims.begin(), dims.end());
    int64_t elements = 1;
    for (const int64_t length : dims) elements *= length;
    writer.add_tensor(tensor);
    end += (bytes_for(DType::kF32, elements) + writer.alignment - 1) / writer.alignment * writer.alignment;
  };
  add("token_embd.weight", {kEmbd, 64});
  add("output_norm.weight", {kEmbd});
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto named = [&](const char* name) { return fmt::format("blk.{}.{}.weight", layer, name); };
    add(named("attn_norm"), {kEmbd});
    add(named("attn_q"), {kEmbd, kHeads * (kPlain + kTurned)});
    add(named("attn_kv_a_mqa"), {kEmbd, kRank + kTurned});
    add(named("attn_kv_a_norm"), {kRank});
    add(named("attn_k_b"), {kPlain, kRank, kHeads});
    add(named("attn_v_b"), {kRank, kValues, kHeads});
    add(named("attn_output"), {kHeads * kValues, kEmbd});
    add(named("ffn_norm"), {kEmbd});
    for (const char* name : {"ffn_gate", "ffn_up"}) add(named(name), {kEmbd, 256});
    add(named("ffn_down"), {256, kEmbd});
  }
  const test::TemporaryFile file("latent.gguf");
  const test::Bytes header = writer.image();
  test::write_file(file.path, header);
  std::filesystem::resize_file(file.path, header.size() + end);
  return open_model(file.path);
}

struct Outcome {
  double seconds = 0;
  LatentChoice choice;
};

/// Generation of a token behind so many others.
Outcome predicted(const Model& model, const machine::MachineModel& machine, int devices, LatentSplit split,
                  int64_t depth, DType dtype = DType::kF16) {
  models::PlacementOptions placement{"", 1};
  placement.latent = split;
  models::SessionOptions session{.context = 1 << 18, .batch = 1};
  session.dtype_k = session.dtype_v = dtype;
  const Scenario scenario{model, machine, placement, session, {}, {0, 1, depth}};
  const Candidate candidate{cpu_groups({devices}), SplitMode::kTensor, {}};
  const models::Placement there(model, candidate.groups, placement_of(candidate, scenario));
  const Prediction made = scenario.predict(candidate, there, plan_to_load(model, there, scenario.session, {}));
  return {made.generation->seconds, there.latent()};
}

machine::MachineModel machine_of(int devices) {
  machine::MachineModel machine = described_machine(std::vector<double>(static_cast<size_t>(devices), 1e-13), 1e-5);
  for (machine::DeviceModel& device : machine.devices) {
    device.attention_bandwidth = 1e12, device.attention_rate = 1e14, device.activation_bandwidth = 1e12;
  }
  return machine;
}

TEST(LatentSplit, BytesOfTheCacheCount) {
  const auto model = latent_model();
  const auto seconds = [&](DType dtype) {
    return predicted(*model, machine_of(2), 2, LatentSplit::kAuto, 1 << 17, dtype).choice.mirrored;
  };
  EXPECT_GT(seconds(DType::kF32), 1.5 * seconds(DType::kF16));
}

TEST(LatentSplit, TheFasterOfTheTwoPredictionsIsChosen) {
  const auto model = latent_model();
  for (const int devices : {2, 4, 8}) {
    const machine::MachineModel machine = machine_of(devices);
    LatentSplit latest = LatentSplit::kMirrored;
    for (int64_t depth = 64; depth < 1 << 18; depth *= 4) {
      SCOPED_TRACE(fmt::format("{} devices, {} rows", devices, depth));
      const Outcome mirrored = predicted(*model, machine, devices, LatentSplit::kMirrored, depth);
      const Outcome rows = predicted(*model, machine, devices, LatentSplit::kRows, depth);
      const Outcome chosen = predicted(*model, machine, devices, LatentSplit::kAuto, depth);
      EXPECT_EQ(rows.choice.parts, devices);
      EXPECT_FALSE(rows.choice.chosen);
      EXPECT_TRUE(chosen.choice.chosen);
      EXPECT_EQ(chosen.choice.rows, depth);
      const bool takes_rows = chosen.choice.split == LatentSplit::kRows;
      EXPECT_EQ(chosen.seconds, takes_rows ? rows.seconds : mirrored.seconds);
      EXPECT_LE(chosen.seconds, 1.05 * std::min(rows.seconds, mirrored.seconds));
      EXPECT_NEAR(rows.seconds - mirrored.seconds, chosen.choice.by_rows - chosen.choice.mirrored,
                  0.1 * std::max(rows.seconds, mirrored.seconds));
      EXPECT_TRUE(takes_rows || latest == LatentSplit::kMirrored) << "rows are better for all longer texts";
      latest = chosen.choice.split;
      EXPECT_FALSE(depth == 64 && takes_rows);
    }
    EXPECT_EQ(latest, LatentSplit::kRows);
  }
}

TEST(LatentSplit, NothingIsChosenWithoutALengthOrASecondDevice) {
  const auto model = latent_model();
  const models::Placement two(*model, cpu_groups({2}), {"", 1});
  EXPECT_EQ(two.latent().split, LatentSplit::kMirrored) << "of a text of which nothing is known";
  models::PlacementOptions on_host{"", 1};
  on_host.latent_rows = 1 << 30, on_host.cache_on_host = true;
  const models::Placement hosted(*model, cpu_groups({2}), on_host);
  EXPECT_FALSE(hosted.latent().chosen) << "the host has it";
  EXPECT_EQ(hosted.latent().parts, 1);
  models::PlacementOptions options{"0,1", 1};
  options.latent_rows = 1 << 18;
  const models::Placement one(*model, cpu_groups({2}), options);
  EXPECT_FALSE(one.latent().chosen);
  EXPECT_EQ(one.latent().parts, 1);
}

}  // namespace latent_split
}  // namespace
}  // namespace shoal::tuning
