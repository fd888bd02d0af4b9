// Compares proposed split states (tuning/propose/propose.h) with the split policy of language models, by prediction:
//
//   example_propose MODEL.gguf MACHINE [SHARES [ROWS [PARTS [TOKENS]]]]
//   example_propose 70b-q4_k_m.gguf H200x8
//   example_propose deepseek-v3-q4_k.gguf H200x8 "" 32768 8
//
// SHARES are like 3,1; an empty text gives even shares. The cache has ROWS rows (4096) in PARTS parts (1). A batch has
// TOKENS tokens (1).
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <span>
#include <vector>

#include "base/text.h"
#include "machine/catalogue.h"
#include "models/arch/model.h"
#include "models/place/split_policy.h"
#include "tuning/propose/propose.h"
#include "tuning/sim_device.h"

using namespace shoal;

static void compare(std::span<char*> arguments) {
  const auto number = [&](size_t i, int64_t other) {
    return i < arguments.size() ? parse_integer("the argument", arguments[i], 1, INT64_MAX) : other;
  };
  const int64_t rows = number(3, 4096), parts = number(4, 1), tokens = number(5, 1);
  const machine::MachineModel machine = machine::make_machine(arguments[1]);
  std::vector<Device*> devices;
  for (const machine::DeviceModel& device : machine.devices) {
    devices.push_back(&sim::family().provide({device.name, "simulated", device.type, device.memory}));
  }
  const auto model = models::open_model(arguments[0]);
  models::KvCache cache;
  models::declare_cache(cache, model->hparams, {.rows = rows, .batch = tokens, .parts = parts});
  const models::DecoderGraph made = model->architecture->build(model->hparams, model->weights, cache, {tokens, 1});
  const int count = static_cast<int>(devices.size());
  const tuning::ProposeOptions options{.shares = models::parse_ratio(arguments.size() > 2 ? arguments[2] : "", count)};

  // The policy divides experts in the faster of two ways.
  double policy = 0;
  for (const auto experts : {models::ExpertSplit::kInside, models::ExpertSplit::kWhole}) {
    const models::SplitPolicy states(model->hparams, model->split_tensors(), options.shares, experts,
                                     parts > 1 ? models::LatentSplit::kRows : models::LatentSplit::kMirrored, parts);
    const double seconds = tuning::predict_graph(*made.graph, devices, machine, states, options).seconds;
    policy = policy == 0 ? seconds : std::min(policy, seconds);
  }
  const std::clock_t begin = std::clock();
  const tuning::Proposal proposal = tuning::propose_split_states(*made.graph, devices, machine, options);
  fmt::print("CPU time of the search: {:.1f} s\n", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  fmt::print("mirrored {:.3f} ms, policy {:.3f} ms, proposal {:.3f} ms, proposal / policy {:.3f}\n",
             proposal.mirrored_seconds * 1e3, policy * 1e3, proposal.seconds * 1e3, proposal.seconds / policy);
}

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 7) {
    fmt::print(stderr, "usage: {} MODEL.gguf MACHINE [SHARES [ROWS [PARTS [TOKENS]]]]\n", argv[0]);
    return 2;
  }
  compare({argv + 1, argv + argc});
} catch (const std::exception& error) {
  fmt::print(stderr, "propose: {}\n", error.what());
  return 1;
}
