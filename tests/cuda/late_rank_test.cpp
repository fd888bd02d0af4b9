// In these tests, a stuck launcher thread delays a rank of a meta device before a collective or after the last
// collective. The program must get a message that names this rank.
#include <gmock/gmock.h>

#include "base/error.h"
#include "collectives/cuda/cuda_communicator.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"
#include "tests/support/time_outs.h"

namespace shoal::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Stuck {
  const char* name;
  int rank;
  bool behind = false;  ///< true: the rank is stuck after the graph; false: before the graph
};

class LateRank : public testing::TestWithParam<Stuck> {};

TEST_P(LateRank, StuckRankIsNamedBeforeItContinues) {
  test::CudaMesh gpu(1, 2);
  meta::MetaOptions options;
  options.comm_timeout = std::chrono::seconds(2);
  options.communicator = collectives::cuda::make_cuda_communicator;
  const auto device =
      meta::MetaDevice::create(gpu.devices(), test::callback_for(test::llama_layouts({3, 1})), std::move(options));
  test::Loaded loaded(test::llama_graph(1), *device);
  const auto backend = device->init();
  const auto plan = backend->create_plan(loaded.graph);
  loaded.fill_inputs();
  test::Gate gate;
  const test::TimeOuts time_outs([&] { gate.open = true; });
  Backend& stuck = *backend->members()[static_cast<size_t>(GetParam().rank)];
  if (!GetParam().behind) stuck.enqueue(gate.task());
  backend->compute_async(*plan);
  if (GetParam().behind) stuck.enqueue(gate.task());
  bool failed = false;
  try {
    backend->synchronize();
  } catch (const CommError&) {
    failed = true;
  }
  EXPECT_EQ(failed, !GetParam().behind) << "a run that finally ends is correct";
  const std::string rank = "rank " + std::to_string(GetParam().rank);
  const std::string named = rank + (GetParam().behind ? " of 2 did not finish" : " (");
  EXPECT_THAT(time_outs.messages(), ElementsAre(HasSubstr(named)));
  EXPECT_EQ(open_timeouts(), 0) << "no time-out may remain open";
}

INSTANTIATE_TEST_SUITE_P(Ranks, LateRank,
                         testing::Values(Stuck{"first", 0}, Stuck{"last", 1}, Stuck{"first_behind", 0, true},
                                         Stuck{"last_behind", 1, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shoal::cuda
