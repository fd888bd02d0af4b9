// Tests of experts that are streamed from host memory. The experts that the ids select must arrive on a simple device
// and on meta devices. This must also hold if a rank owns no experts.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "sched/scheduler.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"
#include "tests/support/poison.h"

namespace shoal::sched {
namespace {

using test::Rig;
using test::World;

/// A graph that selects experts, and the backend of each node. Backend 0 streams the experts from backend 1.
struct Choice {
  const char* name;
  std::string graph;
  std::map<std::string, int> nodes;
};

// If a rank owns no experts, none of its nodes needs the ids.
constexpr const char* kIdsElsewhere = R"(
weight %here.t f32 [8, 2, 4]
weight %experts f32 [8, 4, 2]
input %r f32 [2, 4]
input %x f32 [8, 1, 4]
%ids = top_k(%r) {k=1}
%q = get_rows(%here.t, %ids)
%s = scale(%x) {scale=2}
%y = mul_mat_id(%experts, %s, %ids)
output %y
output %q
)";

// Between the computation of the ids and the use of the experts, the device runs another split.
constexpr const char* kIdsHere = R"(
weight %here.t f32 [2, 2, 64]
weight %experts f32 [8, 3, 2]
weight %there.p f32 [8, 8]
input %r f32 [2, 64]
input %x f32 [8, 64]
%ids = top_k(%r) {k=1}
%q = get_rows(%here.t, %ids)
%q2 = scale(%q) {scale=2}
%a = scale(%x) {scale=2}
%p = mul_mat(%there.p, %a)
%b = scale(%p) {scale=3}
%c = mul_mat(%there.p, %b)
%d = reshape(%c) {shape=[8,1,64,1]}
%y = mul_mat_id(%experts, %d, %ids)
output %y
output %q2
output %b
)";

constexpr const char* kRanges = R"(
weight %experts f32 [8, 4, 3]
input %ids6.i i32 [2, 4]
input %x f32 [8, 1, 4]
%y = mul_mat_id(%experts, %x, %ids6.i) {ranges=[3:2,0:1]}
output %y
)";

constexpr const char* kUnlikeNumbers = R"(
weight %experts f32 [8, 4, 2]
weight %experts.more f32 [8, 4, 5]
weight %experts.part f32 [8, 4, 2]
input %ids5.i i32 [1, 6]
input %x f32 [8, 1, 6]
%y = mul_mat_id(%experts, %x, %ids5.i)
%z = mul_mat_id(%experts.more, %x, %ids5.i)
%w = mul_mat_id(%experts.part, %x, %ids5.i) {ranges=[3:2]}
output %y
output %z
output %w
)";

const Choice kChoices[] = {
    {"IdsFromOtherBackend", kIdsElsewhere, {{"ids", 1}, {"s", 1}, {"q", 0}, {"y", 0}}},
    {"IdsBeforeOtherSplits",
     kIdsHere,
     {{"ids", 0}, {"q", 0}, {"q2", 0}, {"a", 0}, {"p", 1}, {"b", 0}, {"c", 1}, {"y", 0}}},
    {"RangesOfExperts", kRanges, {{"y", 0}}},
    {"DifferentNumbersOfExperts", kUnlikeNumbers, {{"y", 0}, {"z", 0}, {"w", 0}}},
};

/// A layout of `experts` experts. All experts are on rank `owner`. If `owner` is negative, rank (i mod ranks) owns
/// expert i.
meta::Layout experts_on(int ranks, int owner, int64_t experts) {
  std::vector<meta::Run> runs;
  for (int64_t i = 0; i < experts; ++i) runs.push_back({1, {owner < 0 ? static_cast<int>(i) % ranks : owner}});
  return meta::Layout::split(2, meta::Partition(ranks, std::move(runs)));
}

class StreamedExperts : public testing::TestWithParam<Choice> {
 protected:
  void check(Device& device, const std::string& what) {
    SCOPED_TRACE(what);
    World world({{"here*", &device}, {"*", &Rig::cpu(4)}});
    Graph& graph = world.add(GetParam().graph);
    const auto backend = device.init(), host = Rig::cpu(4).init();
    Scheduler scheduler({backend.get(), host.get()});
    for (const auto& [name, place] : GetParam().nodes) {
      scheduler.set_backend(*graph.find(name), place == 0 ? backend.get() : host.get());
    }
    scheduler.allocate(graph);
    for (const Copy& copy : scheduler.schedule().splits.back().copies) {
      if (copy.tensor->name.starts_with("experts")) {
        EXPECT_NE(copy.ids, nullptr) << "all experts are copied";
      }
    }
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      test::poison(graph, *scheduler.scheduled().plan(0));
      world.seed = seed;
      for (Tensor* weight : world.weights.tensors()) world.fill(*weight);
      world.fill_inputs(graph);
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(GetParam().graph, Rig::cpu(4), seed), 1e-12);
    }
  }
  Rig rig{5};
};

TEST_P(StreamedExperts, CopyingOnlySelectedExpertsGivesSameResultsAsOneDevice) {
  test::ProxyDevice own(Rig::cpu(0), "OWN");
  check(own, "one device with memory of its own");
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int owner = -1; owner < ranks; ++owner) {
      std::vector<Device*> members;
      for (int i = 0; i < ranks; ++i) members.push_back(&Rig::cpu(i));
      const auto mesh = meta::MetaDevice::create(members, [&](const Tensor& tensor) {
        if (!tensor.name.starts_with("experts")) return meta::SplitState::mirrored();
        return meta::SplitState::split(2, experts_on(ranks, owner, tensor.shape[2]).partition);
      });
      check(*mesh, fmt::format("{} ranks, {}", ranks, owner < 0 ? "each has some" : fmt::format("all on {}", owner)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ids, StreamedExperts, testing::ValuesIn(kChoices),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::sched
