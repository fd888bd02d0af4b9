// If a plan splits an attention node over the KV rows, the node still needs only one kernel launch. Several devices
// share one GPU, and their CUDA graphs repeat this launch concurrently. The kernel counts the blocks of a launch, so it
// must reset its counters in each run.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/meta/mesh.h"

namespace shoal::cuda {
namespace {

const char* const kStep =
    "input %q f32 [64, 8, 1]\ncache %k f16 [64, 700, 2]\ncache %v f16 [64, 700, 2]\ninput %pos8.p i32 [1]\n"
    "%qt = permute(%q) {axes=[0,2,1,3]}\n%out = attention(%qt, %k, %v, %pos8.p, _, _) {scale=0.125, causal=true}\n"
    "%e = unary(%out) {kind=silu}\noutput %e\n";  // a second node, because a plan with one node uses no CUDA graph

/// The decoding step of one device.
struct Step {
  Step(Device& device, Backend& backend)
      : loaded(kStep, device), backend(backend), plan(backend.create_plan(loaded.graph)) {
    loaded.fill_inputs();
  }
  void start(int32_t position) {
    backend.synchronize();
    tensor_set(*loaded.graph.inputs()[1], &position, 0, sizeof position);
    backend.compute_async(*plan);
  }
  std::vector<float> values() {
    backend.synchronize();
    return test::read_floats(*loaded.graph.nodes().back());
  }
  test::Loaded loaded;
  Backend& backend;
  std::unique_ptr<GraphPlan> plan;
};

TEST(CudaAttentionLaunch, SplitAttentionIsOneLaunchWithRepeatableResults) {
  constexpr int kDevices = 3;
  const int positions[] = {650, 20, 650, 300, 64, 650, 127, 300};
  test::CudaMesh mesh(1, kDevices);
  std::vector<std::unique_ptr<Step>> steps;
  emulator::record_calls();
  for (int i = 0; i < kDevices; ++i) {
    steps.push_back(std::make_unique<Step>(*mesh.devices()[static_cast<size_t>(i)], mesh.backend(i)));
  }
  std::map<int, std::vector<float>> seen;
  for (const int position : positions) {
    for (auto& step : steps) step->start(position);
    for (auto& step : steps) {
      const auto [first, is_new] = seen.emplace(position, step->values());
      EXPECT_TRUE(is_new || step->values() == first->second) << position;
    }
    if (seen.size() > 1) continue;
    const auto calls = emulator::take_calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "cudaLaunchKernel"), 2 * kDevices)
        << "including the launches of unary";
  }
  EXPECT_NE(seen[650], seen[300]);
}

}  // namespace
}  // namespace shoal::cuda
