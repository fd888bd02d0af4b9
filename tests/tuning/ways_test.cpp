// Tests the choice between two splits of routed experts, and between two splits of latent caches. Compares the chosen
// split with the predictions for both splits.
#include "tuning/choose/ways.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"

namespace shoal::tuning {
namespace {
namespace ways_test {

using namespace models;

struct Case {
  int64_t ff, experts, used;
  DType dtype;
  int devices;
  const char* ratio;
};

std::unique_ptr<Model> model_of(const Case& one) {
  HollowModel hollow(2, 512, one.ff, 8, 4, 256);
  hollow.h.experts = one.experts, hollow.h.experts_used = one.used;
  hollow.dtype = all_of(one.dtype);
  const test::TemporaryFile file("experts.gguf");
  hollow.write(file.path);
  return open_model(file.path);
}

/// The predicted seconds of one generated token or one prompt batch, and the chosen splits.
struct Outcome {
  double seconds = 0;
  Ways ways;
  int64_t collectives = 0;
};

Outcome predicted(const Case& one, const Model& model, const machine::MachineModel& machine,
                  std::optional<ExpertSplit> way, int64_t tokens) {
  const Workload work{tokens > 1 ? tokens : 0, tokens > 1 ? 0 : 1, 0};
  Asked asked = asked_of(machine, {.context = 1024, .batch = tokens}, {}, work);
  asked.way_tokens = tokens;
  Choice choice{.groups = cpu_groups({one.devices}), .experts = way};
  if (*one.ratio != 0) choice.shares = parse_ratio(one.ratio, one.devices);
  Chooser chooser(model, asked);
  Ways ways;
  chooser.options_of(choice, &ways);
  const Verdict made = chooser.judge(choice);
  const PhasePrediction& phase = tokens > 1 ? *made.prompt : *made.generation;
  return {phase.seconds, ways, phase.collective_count()};
}

TEST(ExpertWays, ExpertSplitWithFasterPredictionIsChosen) {
  int whole = 0, inside = 0;
  for (const Case& one : {Case{768, 32, 8, DType::kQ4_K, 2, ""},
                          {768, 32, 8, DType::kQ4_K, 4, ""},
                          {768, 32, 8, DType::kQ4_K, 8, ""},
                          {768, 32, 8, DType::kQ8_0, 4, ""},
                          {768, 32, 8, DType::kQ4_K, 3, "2,1,1"},
                          {1024, 8, 2, DType::kF16, 2, ""},
                          {1024, 8, 2, DType::kQ4_K, 8, ""},
                          {1024, 64, 10, DType::kQ4_K, 8, ""},
                          {768, 64, 8, DType::kQ4_K, 6, ""},
                          {1024, 64, 10, DType::kQ4_K, 8, "3,3,1,1,2,2,1,1"},
                          {1024, 4, 2, DType::kF16, 6, ""},
                          {512, 64, 4, DType::kQ4_K, 4, "3,1,1,1"}}) {
    const auto model = model_of(one);
    const machine::MachineModel machine =
        described_machine(std::vector<double>(static_cast<size_t>(one.devices), 1e-10));
    for (const int64_t tokens : {1, 64}) {
      SCOPED_TRACE(fmt::format("{} of {} experts of {} in {} on {} ({}), {} tokens", one.used, one.experts, one.ff,
                               name_of(one.dtype), one.devices, one.ratio, tokens));
      const Outcome columns = predicted(one, *model, machine, ExpertSplit::kInside, tokens);
      const Outcome experts = predicted(one, *model, machine, ExpertSplit::kWhole, tokens);
      const Outcome chosen = predicted(one, *model, machine, {}, tokens);
      EXPECT_EQ(columns.collectives, experts.collectives) << "both splits have the same collectives";
      const double fastest = std::min(columns.seconds, experts.seconds);
      // The difference between the predictions equals the difference between the estimates that the choice compares.
      EXPECT_NEAR(experts.seconds - columns.seconds, chosen.ways.whole - chosen.ways.inside, 0.02 * columns.seconds);
      EXPECT_EQ(chosen.seconds, predicted(one, *model, machine, chosen.ways.experts, tokens).seconds);
      EXPECT_LE(chosen.seconds, 1.01 * fastest);
      ++(chosen.ways.experts == ExpertSplit::kWhole ? whole : inside);
    }
  }
  EXPECT_GE(whole, 4);
  EXPECT_GE(inside, 4);
}

TEST(ExpertWays, TimeOfWholeExpertsIsAtLeastTimeOfFirstDevice) {
  // The second device is four times as slow and has a fifth of the experts.
  const Case one{768, 32, 8, DType::kQ4_K, 2, "4,1"};
  const auto model = model_of(one);
  const machine::MachineModel machine = described_machine({1e-10, 4e-10});
  const Outcome experts = predicted(one, *model, machine, ExpertSplit::kWhole, 1);
  const Outcome columns = predicted(one, *model, machine, ExpertSplit::kInside, 1);
  const double expert = 3 * 512 * 768 * 1e-10;
  EXPECT_GT(experts.seconds, columns.seconds * 0.5);
  EXPECT_GT(experts.seconds, 2 * 8 * 0.8 * expert)
      << "the first device takes at least this time for its average experts in two layers";
}

constexpr int64_t kNarrow = 768, kWide = 14336;  ///< number of columns of an expert

/// The chosen expert split for devices with default performance values.
ExpertSplit chosen(int64_t ff, DType dtype, int devices, int64_t tokens = 1) {
  // Many narrow experts as in Qwen3 30B-A3B, or few wide experts as in Mixtral 8x7B.
  const bool narrow = ff == kNarrow;
  HollowModel hollow(4, narrow ? 2048 : 4096, ff, 32, narrow ? 4 : 8, 1024);
  hollow.h.experts = narrow ? 128 : 8, hollow.h.experts_used = narrow ? 8 : 2;
  hollow.dtype = all_of(dtype);
  const test::TemporaryFile file("ways.gguf");
  hollow.write(file.path);
  const auto model = open_model(file.path);
  const std::vector<double> shares = parse_ratio("", devices);
  const std::vector<Device*> group(static_cast<size_t>(devices), cpu_devices(1).front());
  const auto ways = [&] { return faster_ways(*model, group, shares, nullptr, {.tokens = tokens}); };
  const Ways found = ways();
  EXPECT_EQ(found.experts == ExpertSplit::kWhole ? found.whole : found.inside, std::min(found.inside, found.whole));
  EXPECT_EQ(found.whole, ways().whole) << "deterministic";
  return found.experts;
}

TEST(ExpertWays, WideExpertsAreDividedByColumns) {
  for (const int devices : {2, 3, 4, 8}) {
    EXPECT_EQ(chosen(kWide, DType::kQ4_K, devices), ExpertSplit::kInside) << devices;
  }
  for (const int devices : {2, 3, 4}) {
    EXPECT_EQ(chosen(kNarrow, DType::kQ8_0, devices), ExpertSplit::kInside)
        << "24 column units, number of devices: " << devices;
  }
}

TEST(ExpertWays, NarrowExpertsStayWholeIfColumnUnitsAreFew) {
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 8), ExpertSplit::kWhole)
      << "with 3 column units, 5 of 8 devices would be idle";
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 16), ExpertSplit::kWhole);
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 2), ExpertSplit::kWhole)
      << "the busiest device has 5.05 of 8 experts or 2 of 3 column units";
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 3), ExpertSplit::kInside) << "one unit per device";
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 4), ExpertSplit::kInside)
      << "the busiest device has the work of 8 / 3 or 3.5 of 8 experts";
}

TEST(ExpertWays, LargeBatchesKeepNarrowExpertsWhole) {
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 4, 512), ExpertSplit::kWhole);
  EXPECT_EQ(chosen(kNarrow, DType::kQ4_K, 8, 512), ExpertSplit::kWhole);
  EXPECT_EQ(chosen(kWide, DType::kQ4_K, 8, 512), ExpertSplit::kInside);
}

constexpr int64_t kLayers = 2, kHeads = 16, kEmbd = 256, kRank = 512, kTurned = 64, kPlain = 128, kValues = 128;

/// A model with the head dimensions of DeepSeek V3, but with fewer heads and few other tensors. The file has a header
/// and a sparse hole instead of tensor data.
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

/// The prediction for one token after `depth` cached tokens.
Outcome predicted(const Model& model, const machine::MachineModel& machine, int devices,
                  std::optional<LatentSplit> split, int64_t depth, DType dtype = DType::kF16) {
  models::SessionOptions session{.context = 1 << 18, .batch = 1};
  session.dtype_k = session.dtype_v = dtype;
  Asked asked = asked_of(machine, session, {}, {0, 1, depth});
  asked.way_rows = depth;
  const Choice choice{.groups = cpu_groups({devices}), .latent = split};
  Chooser chooser(model, asked);
  Ways ways;
  chooser.options_of(choice, &ways);
  return {chooser.judge(choice).generation->seconds, ways};
}

machine::MachineModel machine_of(int devices) {
  machine::MachineModel machine = described_machine(std::vector<double>(static_cast<size_t>(devices), 1e-13), 1e-5);
  for (machine::DeviceModel& device : machine.devices) {
    device.attention_bandwidth = 1e12, device.attention_rate = 1e14, device.activation_bandwidth = 1e12;
  }
  return machine;
}

TEST(LatentWays, WiderCacheTypesTakeLonger) {
  const auto model = latent_model();
  const auto seconds = [&](DType dtype) {
    return predicted(*model, machine_of(2), 2, {}, 1 << 17, dtype).ways.mirrored;
  };
  EXPECT_GT(seconds(DType::kF32), 1.5 * seconds(DType::kF16));
}

TEST(LatentWays, LatentSplitWithFasterPredictionIsChosen) {
  const auto model = latent_model();
  for (const int devices : {2, 4, 8}) {
    const machine::MachineModel machine = machine_of(devices);
    LatentSplit latest = LatentSplit::kMirrored;
    for (int64_t depth = 64; depth < 1 << 18; depth *= 4) {
      SCOPED_TRACE(fmt::format("{} devices, {} rows", devices, depth));
      const Outcome mirrored = predicted(*model, machine, devices, LatentSplit::kMirrored, depth);
      const Outcome rows = predicted(*model, machine, devices, LatentSplit::kRows, depth);
      const Outcome chosen = predicted(*model, machine, devices, {}, depth);
      EXPECT_EQ(rows.ways.latent, LatentSplit::kRows);
      EXPECT_EQ(rows.ways.by_rows, 0) << "no splits are compared if a flag gives the split";
      EXPECT_EQ(chosen.ways.rows, depth);
      const bool takes_rows = chosen.ways.latent == LatentSplit::kRows;
      EXPECT_EQ(chosen.seconds, takes_rows ? rows.seconds : mirrored.seconds);
      EXPECT_LE(chosen.seconds, 1.05 * std::min(rows.seconds, mirrored.seconds));
      EXPECT_NEAR(rows.seconds - mirrored.seconds, chosen.ways.by_rows - chosen.ways.mirrored,
                  0.1 * std::max(rows.seconds, mirrored.seconds));
      EXPECT_TRUE(takes_rows || latest == LatentSplit::kMirrored)
          << "if rows are chosen for a context, rows are chosen for every longer context";
      latest = chosen.ways.latent;
      EXPECT_FALSE(depth == 64 && takes_rows);
    }
    EXPECT_EQ(latest, LatentSplit::kRows);
  }
}

TEST(LatentWays, CacheIsDividedOnlyForKnownLengthOnSeveralDevices) {
  const auto model = latent_model();
  const auto machine = std::make_shared<machine::MachineModel>(machine_of(2));
  const auto ways = [&](const char* ratio, int64_t rows, bool on_host) {
    models::PlacementOptions options{ratio, 1};
    options.cache_on_host = on_host, options.machine = machine;
    const Ways found = take_faster_ways(*model, cpu_groups({2}), {.rows = rows}, options);
    EXPECT_EQ(options.latent, found.latent);
    return found;
  };
  EXPECT_EQ(ways("", 1 << 30, false).latent, LatentSplit::kRows);
  for (const Ways& one : {ways("", 0, false), ways("", 1 << 30, true), ways("0,1", 1 << 30, false)}) {
    EXPECT_EQ(one.latent, LatentSplit::kMirrored);
    EXPECT_EQ(one.mirrored, 0);
  }
}

TEST(Ways, FirstGroupWithSeveralDevicesDeterminesLatentSplit) {
  const auto model = latent_model();
  models::PlacementOptions options{"", 1};
  options.mode = SplitMode::kLayer;
  const AskedWays asked{.rows = 1 << 18};
  EXPECT_EQ(take_faster_ways(*model, cpu_groups({1, 1}), asked, options).by_rows, 0);
  const Ways later = take_faster_ways(*model, cpu_groups({1, 4, 2}), asked, options);
  EXPECT_GT(later.by_rows, 0);
  EXPECT_EQ(later.by_rows, take_faster_ways(*model, cpu_groups({4}), asked, options).by_rows);
}

}  // namespace ways_test
}  // namespace
}  // namespace shoal::tuning
