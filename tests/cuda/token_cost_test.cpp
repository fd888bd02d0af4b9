// What a token of generation costs the host once graphs are recorded: a session of the small model, the calls of CUDA's
// runtime counted.
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

/// Calls of one token behind these, by name.
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

// On each rank: a copy for each of the four inputs, one graph, the logits in one copy; an event for the memory of the
// inputs, which has been read long since when the host waits for it.
TEST_P(TokenCost, WithLogits) {
  EXPECT_THAT(cost(0), ElementsAre(Pair("cudaEventRecord", ranks()), Pair("cudaEventSynchronize", ranks()),
                                   Pair("cudaGraphLaunch", ranks()), Pair("cudaMemcpyAsync", 5 * ranks()),
                                   Pair("cudaStreamSynchronize", ranks())));
}
TEST_P(TokenCost, WithCandidates) {
  const std::map<std::string, int> calls = cost(40);
  EXPECT_EQ(calls.at("cudaGraphLaunch"), ranks());
  EXPECT_EQ(calls.at("cudaMemcpyAsync"), 4 * ranks() + 2) << "tokens and their logits, both of one rank";
  EXPECT_EQ(calls.at("cudaStreamSynchronize"), ranks());
}

/// Kernels of a token, which the first run of a plan launches one by one, of all devices together.
int kernels_of_a_token(const test::LoadedModel& model) {
  return calls_of_a_token(model, {1}).at("cudaLaunchKernel");
}

/// Norm; q, k and v; rope and writes to the cache; attention; output and residual; norm; gate and up; down and
/// residual. Besides the embedding, the rows of the last token, the last norm and the head.
TEST(TokenKernels, EightOfALayer) {
  for (const char* file : {"tiny-kjv-5m-q8_0.gguf", "tiny-kjv-5m-q4_k_m.gguf"}) {
    const test::LoadedModel model(test::model_file(file), 1);
    EXPECT_EQ(kernels_of_a_token(model), 8 * model.layers() + 4) << file;
  }
}

/// Of several devices each has q, k and v; rope and writes; attention; output with all_reduce, residual and norm; gate
/// and up; down with the same. Besides the embedding and the first norm, and in the last layer down, all_reduce, the
/// rows of the last token of sum and residual, and the norm apart; and the head.
TEST(TokenKernels, SixOfALayerOnEachOfSeveralDevices) {
  for (const int ranks : {2, 3}) {
    const test::LoadedModel model(kModel, ranks);
    EXPECT_EQ(kernels_of_a_token(model), ranks * (6 * model.layers() + 7)) << ranks;
  }
}

/// Norm; q, k and v; rope and writes; attention; output and residual; norm; the router's product; router; gate and up;
/// down with the weighted sum. The sum with the residual is that of the next norm, but for the last layer. On two
/// devices the output's product, whose rows are too short to stream, converts its column first, and the two norms are
/// part of collectives.
TEST(TokenKernels, TenOfALayerWithExperts) {
  models::SyntheticModel synthetic;
  synthetic.h.vocab = 600, synthetic.h.embd = synthetic.h.ff = 512;
  synthetic.h.experts = 8, synthetic.h.experts_used = 2;
  synthetic.dtype = DType::kQ8_0;
  const std::string path = synthetic.write();
  const test::LoadedModel one(path, 1), two(path, 2);
  EXPECT_EQ(kernels_of_a_token(one), 10 * one.layers() + 5);
  EXPECT_EQ(kernels_of_a_token(two), 2 * (11 * two.layers() + 6));
}

/// What a session fetches is the same in memory that is not pinned.
TEST(SessionResults, AreInOrdinaryMemoryWhereNoneCanBePinned) {
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
