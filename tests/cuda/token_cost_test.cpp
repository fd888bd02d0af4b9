// Host cost of a generated token, after CUDA graphs are recorded. The tests count the runtime calls of a session of the
// small model.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/loaded_model.h"
#include "tests/models/synthetic_model.h"
#include "tests/support/model_files.h"

namespace shoal::cuda {
namespace {

using testing::ElementsAre;
using testing::Pair;

const std::string kModel = test::model_file("tiny-kjv-5m-q8_0.gguf");

/// Evaluates the tokens `before` and then one more token. Returns the number of calls of each CUDA function for the
/// last token.
std::map<std::string, int> calls_of_a_token(const test::LoadedModel& model, std::initializer_list<int32_t> before,
                                            int64_t candidates = 0) {
  models::Session session = model.session(candidates);
  const auto take_token = [&](int32_t token) {
    session.evaluate(std::array{token});
    candidates > 0 ? void(session.candidates()) : void(session.logits());
  };
  for (const int32_t token : before) take_token(token);
  emulator::record_calls();
  take_token(340);
  std::map<std::string, int> calls;
  for (const std::string& call : emulator::take_calls()) ++calls[call];
  return calls;
}

class TokenCost : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::map<std::string, int> cost(int64_t candidates) const {
    return calls_of_a_token(test::LoadedModel(kModel, ranks()), {1, 527, 261, 345}, candidates);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, TokenCost, testing::Values(1, 2, 3), testing::PrintToStringParamName());

// Each rank copies six inputs (token, position, sequence, output, page table and cache row), launches one graph and
// fetches its logits in one copy. Before a rank overwrites the host memory of the inputs, the rank waits for one event.
// The GPU has read the inputs long before this wait.
TEST_P(TokenCost, LogitsTakeOneCopyPerRank) {
  EXPECT_THAT(cost(0), ElementsAre(Pair("cudaEventRecord", ranks()), Pair("cudaEventSynchronize", ranks()),
                                   Pair("cudaGraphLaunch", ranks()), Pair("cudaMemcpyAsync", 7 * ranks()),
                                   Pair("cudaStreamSynchronize", ranks())));
}
TEST_P(TokenCost, CandidatesTakeTwoCopies) {
  const std::map<std::string, int> calls = cost(40);
  EXPECT_EQ(calls.at("cudaGraphLaunch"), ranks());
  EXPECT_EQ(calls.at("cudaMemcpyAsync"), 6 * ranks() + 2) << "one rank copies token ids and their logits";
  EXPECT_EQ(calls.at("cudaStreamSynchronize"), ranks());
}

/// Number of kernels per token on all devices together. The first run of a plan launches its kernels one by one.
int kernels_of_a_token(const test::LoadedModel& model) {
  return calls_of_a_token(model, {1}).at("cudaLaunchKernel");
}

/// Kernels of a layer: norm; q, k and v; rope and cache writes; attention; output and residual; norm; gate and up; down
/// and residual. Four more kernels: the embedding, the rows of the last token, the last norm and the head.
TEST(TokenKernels, LayerTakesEightKernels) {
  for (const char* file : {"tiny-kjv-5m-q8_0.gguf", "tiny-kjv-5m-q4_k_m.gguf"}) {
    const test::LoadedModel model(test::model_file(file), 1);
    EXPECT_EQ(kernels_of_a_token(model), 8 * model.layers() + 4) << file;
  }
}

/// Kernels of a layer on each device: q, k and v; rope and cache writes; attention; output with all_reduce, residual
/// and norm; gate and up; down with all_reduce, residual and norm. Seven more kernels: the embedding, the first norm,
/// the head, and four kernels of the last layer. These four kernels compute the all_reduce, the last token's row of the
/// sum, the last token's row of the residual, and the norm.
TEST(TokenKernels, ShardedLayerTakesSixKernelsPerDevice) {
  for (const int ranks : {2, 3}) {
    const test::LoadedModel model(kModel, ranks);
    EXPECT_EQ(kernels_of_a_token(model), ranks * (6 * model.layers() + 7)) << ranks;
  }
}

/// Kernels of a layer with experts: norm; q, k and v; rope and cache writes; attention; output and residual; norm; the
/// router's product; router; gate and up; down with the weighted sum. The next norm adds the residual, except in the
/// last layer. On two devices, the rows of the output weight are too short to stream, so the output product first
/// converts its column. On two devices, the kernels of the collectives also compute both norms.
TEST(TokenKernels, ExpertLayerTakesTenKernels) {
  models::SyntheticModel synthetic;
  synthetic.h.vocab = 600, synthetic.h.embd = synthetic.h.ff = 512;
  synthetic.h.experts = 8, synthetic.h.experts_used = 2;
  synthetic.dtype = DType::kQ8_0;
  const std::string path = synthetic.write();
  const test::LoadedModel one(path, 1), two(path, 2);
  EXPECT_EQ(kernels_of_a_token(one), 10 * one.layers() + 5);
  EXPECT_EQ(kernels_of_a_token(two), 2 * (11 * two.layers() + 6));
}

/// If memory cannot be pinned, a session fetches the same results into pageable memory.
TEST(SessionResults, UsePageableMemoryIfPinningFails) {
  const test::LoadedModel model(kModel, 1);
  const auto logits = [&](bool can_pin) {
    models::Session session = model.session();
    session.evaluate(std::array{1, 527, 261});
    if (!can_pin) emulator::fail_call("cudaHostAlloc", 1, cudaErrorMemoryAllocation, 1000);
    emulator::record_calls();
    const auto found = session.logits();
    const auto calls = emulator::take_calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "cudaHostAlloc"), 1);
    emulator::clear_faults();
    return std::vector<float>(found.begin(), found.end());
  };
  EXPECT_EQ(logits(false), logits(true));
}

}  // namespace
}  // namespace shoal::cuda
