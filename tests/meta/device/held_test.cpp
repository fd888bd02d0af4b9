// Tests of calls that wait for a meta backend while the work of the backend is held (Backend::hold). Such a call must
// first release the work of all members. Otherwise one member waits in a collective for another member until the
// timeout.
#include <gtest/gtest.h>

#include "meta/device/meta_backend.h"
#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using std::chrono_literals::operator""s;

constexpr const char* kTwoProducts = R"(
weight %up f32 [8, 12]
weight %down f32 [12, 8]
input %x f32 [8, 3]
%h = mul_mat(%up, %x)
%a = unary(%h) {kind=relu}
%y = mul_mat(%down, %a)
%z = unary(%y) {kind=relu}
output %z
)";

struct HeldRun {
  HeldRun() : backend(mesh.device->init()), plan(backend->create_plan(model.graph)) { model.fill_inputs(); }
  test::CpuMesh mesh{2,
                     {{"up", Layout::split(1, parse_partition(2, "8:{0} 4:{1}"))},
                      {"down", Layout::split(0, parse_partition(2, "8:{0} 4:{1}"))}},
                     {.comm_timeout = 10s}};
  test::Loaded model{kTwoProducts, *mesh.device};
  std::unique_ptr<Backend> backend;
  std::unique_ptr<GraphPlan> plan;
  std::unique_ptr<Event> event = mesh.device->new_event();
  Graph other{"other"};
};

struct WayToWait {
  const char* name;
  void (*wait)(HeldRun&);
};

// All calls that wait for the backend, except the destructor of the backend. A separate test covers the destructor.
const WayToWait kWays[] = {
    {"Synchronize", [](HeldRun& held) { held.backend->synchronize(); }},
    {"FinishQueued", [](HeldRun& held) { finish_queued(*held.backend); }},
    {"DestroyPlan", [](HeldRun& held) { held.plan.reset(); }},
    {"UpdatePlan",
     [](HeldRun& held) {
       parse_graph(kTwoProducts, held.other, held.model.weights);
       EXPECT_TRUE(held.backend->update_plan(*held.plan, held.other));
     }},
    {"SetAbortCallback", [](HeldRun& held) { held.backend->set_abort_callback([] { return false; }); }},
    {"SetTracer", [](HeldRun& held) { held.backend->set_tracer(nullptr); }},
    {"Event",
     [](HeldRun& held) {
       held.event->record(*held.backend);
       held.event->synchronize();
     }},
    {"GetAsync",
     [](HeldRun& held) {
       float value = 0;
       held.backend->get_async(*held.model.weights.find("up"), &value, 0, sizeof(value));
       held.backend->synchronize();
     }},
    {"CopyAsync",
     [](HeldRun& held) {
       TensorContext copies;
       Tensor* copy = copies.add("copy", DType::kF32, {8, 12, 1, 1});
       const auto memory = allocate_tensors(copies.tensors(), held.mesh.other().buffer_type(), Usage::kAny);
       const auto reader = held.mesh.other().init();
       held.backend->copy_async(*held.model.weights.find("up"), *reader, *copy);
       reader->synchronize();
     }},
};

class HeldMeta : public testing::TestWithParam<WayToWait> {};

TEST_P(HeldMeta, ReleasesHeldWorkOfAllMembersBeforeWaiting) {
  for (const int holds : {1, 2}) {
    HeldRun held;
    for (int i = 0; i < holds; ++i) held.backend->hold();
    held.backend->compute_async(*held.plan);
    GetParam().wait(held);
    for (int i = 0; i < holds; ++i) held.backend->release();
    EXPECT_NO_THROW(held.backend->synchronize()) << "no member waited for the timeout";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, HeldMeta, testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HeldMeta, BackendWithHeldWorkIsDestroyedWithoutTimeout) {
  HeldRun held;
  held.backend->hold();
  held.backend->compute_async(*held.plan);
  const auto start = std::chrono::steady_clock::now();
  held.backend.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

}  // namespace
}  // namespace shoal::meta
