// Tests calls of the library's entry points with invalid values. Each call must throw an InvalidArgument with a
// one-line message.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "collectives/factory.h"
#include "sched/scheduler.h"
#include "tests/meta/mesh.h"

namespace shoal {
namespace {

using meta::Layout;
using meta::MetaDevice;
using meta::MetaOptions;
using meta::Partition;
using meta::ShardStore;
using meta::SplitState;
using testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

/// A call of an entry point with an invalid value. The message of the error must contain `says`.
struct Misuse {
  std::string name;
  std::function<void()> call;
  std::string says;
};

class InvalidValues : public testing::TestWithParam<Misuse> {};

TEST_P(InvalidValues, AreRefusedWithOneLineMessage) {
  try {
    GetParam().call();
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().says));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
  }
}

std::string name_of(const testing::TestParamInfo<Misuse>& info) {
  return info.param.name;
}

// --- partitions ---------------------------------------------------------------------------------------------------

Misuse by_ratio(std::string name, int64_t length, int64_t unit, std::vector<double> ratio, std::string says) {
  return {std::move(name), [=] { Partition::by_ratio(length, unit, ratio); }, std::move(says)};
}

std::vector<Misuse> partitions() {
  const Partition one(2, {{4, {0}}, {4, {1}}});
  const Partition large(1, {{kMost, {0}}});
  return {
      by_ratio("UnitZero", 8, 0, {1, 1}, "units of 0"),
      by_ratio("NegativeUnit", 8, -2, {1, 1}, "units of -2"),
      by_ratio("NegativeLength", -8, 1, {1, 1}, "-8 elements"),
      by_ratio("EmptyRatio", 8, 1, {}, "not all 0"),
      by_ratio("RatioOfZeros", 8, 1, {0, 0}, "ratio 0:0"),
      by_ratio("NegativeShare", 8, 1, {3, -1}, "ratio 3:-1"),
      by_ratio("ShareNaN", 8, 1, {1, NAN}, "ratio 1:nan"),
      by_ratio("InfiniteShare", 8, 1, {1, INFINITY}, "ratio 1:inf"),
      {"OverflowingRuns", [=] { Partition(2, {{kMost, {0}}, {kMost, {1}}, {2, {0}}}); }, "2^63"},
      {"OverflowingEqualRuns", [=] { Partition(1, {{kMost, {0}}, {1, {0}}}); }, "2^63"},
      {"NegativeRun", [=] { Partition(2, {{-1, {0}}}); }, "length -1"},
      {"RunWithoutOwners", [=] { Partition(2, {{1, {}}}); }, "without owners"},
      {"UnknownOwner", [=] { Partition(2, {{1, {2}}}); }, "device 2"},
      {"NegativeDevices", [=] { Partition(-1, {}); }, "-1 devices"},
      {"EvenOverNoDevices", [=] { Partition::even(0, 8); }, "0 devices"},
      {"EvenOfNegativeLength", [=] { Partition::even(2, -1); }, "-1 elements"},
      {"OverflowingShares", [=] { Partition::from_shares(std::vector<int64_t>{kMost, 1}); }, "2^63"},
      {"OverflowingTile", [=] { one.tile(kMost); }, "2^63"},
      {"TileWithTooManyRuns", [=] { one.tile(int64_t{1} << 40); }, "runs; the limit is"},
      {"OverflowingTileOfOneRun", [=] { large.tile(2); }, "2^63"},
      {"OverflowingScale", [=] { one.scale_up(kMost); }, "2^63"},
      {"OverflowingConcat", [=] { Partition::concat(std::vector{large, large}); }, "2^63"},
      {"EmptyConcat", [=] { Partition::concat({}); }, "at least one partition"},
      {"OverflowingSlice", [=] { one.slice(1, kMost); }, "length 8"},
      {"UntileByZero", [=] { one.untile(0); }, "by 0"},
      {"ScaleDownByZero", [=] { one.scale_down(0); }, "1/0"},
      {"GroupsOfZero", [=] { one.group(0); }, "by 0"},
  };
}

// --- graphs -------------------------------------------------------------------------------------------------------

constexpr auto kNoDType = static_cast<DType>(200);

/// Calls `act` with a graph, an f32 input of shape [4, 4], and a cache of the same dtype and shape.
Misuse with_graph(std::string name, const std::function<void(Graph&, Tensor* x, Tensor* cache)>& act,
                  std::string says) {
  return {std::move(name),
          [act] {
            Graph graph("g");
            TensorContext leaves;
            Tensor* cache = leaves.add("cache", DType::kF32, {4, 4, 1, 1}, Role::kCache);
            act(graph, graph.input("x", DType::kF32, {4, 4, 1, 1}), cache);
          },
          std::move(says)};
}

std::vector<Misuse> graphs() {
  using In = Tensor*;
  return {
      with_graph(
          "InputWithInvalidDType", [](Graph& g, In, In) { g.input("y", kNoDType, {4, 1, 1, 1}); }, "dtype number 200"),
      with_graph(
          "CastToInvalidDType", [](Graph& g, In x, In) { cast(g, x, kNoDType); }, "no value number 200"),
      with_graph(
          "FillWithInvalidDType", [](Graph& g, In, In) { fill(g, {kNoDType, {4, 1, 1, 1}, 0}); }, "number 200"),
      with_graph(
          "NodeWithInvalidOp", [](Graph& g, In x, In) { g.add_node(static_cast<Op>(250), {}, {x}); }, "op number 250"),
      with_graph(
          "InvalidUnaryKind", [](Graph& g, In x, In) { unary(g, x, static_cast<UnaryKind>(99)); }, "number 99"),
      with_graph(
          "InvalidGluKind", [](Graph& g, In x, In) { glu(g, x, x, static_cast<GluKind>(99)); }, "number 99"),
      with_graph(
          "InvalidCompareKind", [](Graph& g, In x, In) { compare(g, x, x, static_cast<CompareKind>(9)); }, "number 9"),
      with_graph(
          "InvalidPoolKind", [](Graph& g, In x, In) { pool_2d(g, x, {static_cast<PoolKind>(9)}); }, "number 9"),
      with_graph(
          "InvalidPadMode", [](Graph& g, In x, In) { pad(g, x, {.mode = static_cast<PadMode>(9)}); }, "number 9"),
      with_graph(
          "InvalidUpsampleMode",
          [](Graph& g, In x, In) { upsample(g, x, {{4, 4}, static_cast<UpsampleMode>(9)}); }, "number 9"),
      with_graph(
          "InvalidCollective", [](Graph& g, In x, In) { collective(g, static_cast<Collective>(77), x, {}); }, "77"),
      with_graph(
          "NodeWithoutSource", [](Graph& g, In x, In) { add(g, x, nullptr); }, "source 1 is missing"),
      with_graph(
          "NullOutput", [](Graph& g, In, In) { g.output(nullptr); }, "got none"),
      with_graph(
          "OutputOfAnotherGraph",
          [](Graph& g, In, In) {
            Graph other("other");
            g.output(scale(other, other.input("x", DType::kF32, {4, 1, 1, 1}), {2, 0}));
          },
          "'g'"),
      with_graph(
          "OutputFromInputOfAnotherGraph",
          [](Graph& g, In, In) {
            Graph other("other");
            g.output(other.input("x", DType::kF32, {4, 1, 1, 1}));
          },
          "'g'"),
      with_graph(
          "TwoInputsWithSameName", [](Graph& g, In, In) { g.input("x", DType::kF32, {1, 1, 1, 1}); }, "this name"),
      with_graph(
          "RangeOutsideGraph", [](Graph& g, In, In) { check_range({&g, 0, 3}); }, "[0, 3)"),
      {"LeafWithInvalidDType", [] { TensorContext().add("w", kNoDType, {4, 1, 1, 1}); }, "dtype number 200"},
      {"RangeWithoutGraph", [] { check_range({}); }, "0 nodes"},
      {"BytesOfInvalidDType", [] { bytes_for(kNoDType, 4); }, "dtype number 200"},
  };
}

// --- sharding rules -----------------------------------------------------------------------------------------------

Misuse parsed_rule(std::string name, std::string text, std::string says) {
  return with_graph(
      std::move(name), [text](Graph& g, Tensor* x, Tensor*) { meta::parse_rule(text, *scale(g, x, {2, 0})); },
      std::move(says));
}

/// Plans set_rows(cache, scale(x), ids) on two devices. `text` replaces the sharding rule of `op`.
Misuse with_rule(std::string name, Op op, const std::optional<std::string>& text, std::string says) {
  return {std::move(name),
          [op, text] {
            MetaOptions options;
            options.rules = [op, text](const Tensor& node) { return node.op == op ? text : meta::rule_text(node); };
            const test::CpuMesh mesh(2, {{"cache", Layout::split(0, Partition::even(2, 4))}}, options);
            Graph graph("g");
            TensorContext leaves;
            leaves.add("cache", DType::kF32, {4, 4, 1, 1}, Role::kCache);
            Tensor* x = graph.input("x", DType::kF32, {4, 2, 1, 1});
            Tensor* ids = graph.input("ids", DType::kI32, {2, 1, 1, 1});
            graph.output(set_rows(graph, leaves.find("cache"), scale(graph, x, {2, 0}), ids));
            const auto memory = allocate_tensors(leaves.tensors(), mesh.device->buffer_type(), Usage::kAny);
            mesh.device->init()->create_plan(graph);
          },
          std::move(says)};
}

std::vector<Misuse> rules() {
  return {
      parsed_rule("RuleWithZeroRepetitions", "0*a b c d -> a b c d", "a number >= 1, got '0'"),
      parsed_rule("RuleWithEmptyGroups", "a/0 b c d -> a b c d", "a number >= 1, got '0'"),
      parsed_rule("RuleWithTooLargeGroups", "a/99999999999 b c d -> a b c d", "a number >= 1"),
      parsed_rule("EmptyRule", "", "one '->'"),
      parsed_rule("LinearInMissingSource", "a b c d -> a b c d | linear 7", "an existing source"),
      with_rule("RuleWithoutSources", Op::kScale, "-> a b", "expected 1 sources, got 0"),
      with_rule("RuleWithoutTerms", Op::kScale, "1 -> a b", "axis 0"),
      with_rule("RuleWithFewerSources", Op::kSetRows, "x [r] h z, x (i) h z -> x [r] h z", "expected 3 sources, got 2"),
      with_rule("RuleWithoutPresentSource", Op::kSetRows, "x [r] h z, -, (i) -> x [r] h z", "'-' for absent sources"),
      with_rule("RuleLinearInMissingSource", Op::kScale, "a b -> a b | linear 4", "an existing source"),
      with_rule("RuleSelectingWithoutRanges", Op::kScale, "[a] b -> [a] b", "an op with index ranges"),
      with_rule("NoRuleForInPlaceWrite", Op::kSetRows, std::nullopt, "MetaOptions::rules"),
      with_rule("RuleUnableToFollowCache", Op::kSetRows, "(x) [r] h z, (x) (i) h z, (i) -> (x) [r] h z",
                "does not allow the layout "),
  };
}

// --- meta devices and plans ---------------------------------------------------------------------------------------

Misuse with_options(std::string name, const std::function<void(MetaOptions&)>& change, std::string says) {
  return {std::move(name),
          [change] {
            MetaOptions options;
            change(options);
            const test::CpuMesh mesh(2, {}, options);
          },
          std::move(says)};
}

/// Plans a graph that needs a reduction. The meta device uses the communicator factory `factory`.
Misuse with_communicator(std::string name, const collectives::CommunicatorFactory& factory, std::string says) {
  return {std::move(name),
          [factory] {
            MetaOptions options;
            options.communicator = factory;
            const test::CpuMesh mesh(2, {{"w", Layout::split(0, Partition::even(2, 4))}}, options);
            test::Loaded loaded(
                "weight %w f32 [4, 4]\ninput %x f32 [4]\n%y = mul_mat(%w, %x)\n"
                "%z = unary(%y) {kind=tanh}\noutput %z\n",
                *mesh.device);
            mesh.device->init()->create_plan(loaded.graph);
          },
          std::move(says)};
}

/// A graph that uses one weight. The weight is placed on a device.
struct Planned {
  explicit Planned(Device& device) : memory(allocate_tensors(leaves.tensors(), device.buffer_type(), Usage::kWeights)) {
    y = graph.output(mul_mat(graph, weight, graph.input("x", DType::kF32, {4, 1, 1, 1})));
  }
  TensorContext leaves;
  Tensor* weight = leaves.add("w", DType::kF32, {4, 4, 1, 1});
  Graph graph{"g"};
  Tensor* y;
  std::unique_ptr<Buffer> memory;
};

Misuse with_mesh(std::string name, const std::function<void(test::CpuMesh&)>& act, std::string says) {
  return {std::move(name),
          [act] {
            test::CpuMesh mesh(2);
            act(mesh);
          },
          std::move(says)};
}

void use_prepared_twice(test::CpuMesh& mesh) {
  Planned one(*mesh.device);
  meta::Plan plan = meta::make_plan(one.graph, mesh.device->shards(), mesh.members);
  const auto backend = mesh.device->init();
  PlanOptions options;
  options.prepared = &plan;
  backend->create_plan(one.graph, options).reset();
  backend->create_plan(one.graph, options);
}

void plan_with_store_of(test::CpuMesh& mesh, int ranks) {
  Planned one(*mesh.device);
  ShardStore store(ranks);
  store.declare(*one.weight, Layout::mirrored());
  meta::make_plan(one.graph, store, mesh.members);
}

void adopt_from_empty_store(test::CpuMesh& mesh) {
  TensorContext leaves;
  mesh.device->adopt(*leaves.add("w", DType::kF32, {4, 1, 1, 1}), ShardStore(2));
}

void plan_with_plain_context(test::CpuMesh& mesh) {
  Planned one(*mesh.device);
  meta::make_plan(whole(one.graph), mesh.device->plan_context(), mesh.members);
}

std::vector<Misuse> meta_devices() {
  using std::chrono::milliseconds;
  const auto mirrored = [](const Tensor&) { return SplitState::mirrored(); };
  const auto none = [](std::span<Backend* const>, const collectives::Options&) {
    return std::unique_ptr<collectives::Communicator>();
  };
  const auto smaller = [](std::span<Backend* const> ranks, const collectives::Options& options) {
    return collectives::make_host_communicator(ranks.first(1), options);
  };
  const auto short_description = [](std::span<Device* const>, const collectives::Options&) {
    return collectives::CommunicatorTraits{{1}, {}};
  };
  return {
      {"MeshWithoutDevices", [=] { MetaDevice::create({}, mirrored); }, "at least one"},
      {"MeshWithNullDevice", [=] { MetaDevice::create({nullptr}, mirrored); }, "missing"},
      {"MeshWithoutCallback", [] { MetaDevice::create({&Registry::instance().device("CPU0")}, nullptr); }, "callback"},
      {"SplitOfAxisSeven", [] { SplitState::split(7, Partition()); }, "axis 7"},
      with_options(
          "UnknownCollectives", [](MetaOptions& o) { o.comm = "telepathy"; }, "'telepathy'"),
      with_options(
          "NegativeTimeout", [](MetaOptions& o) { o.comm_timeout = milliseconds(-5); }, "-5 ms"),
      with_options(
          "ZeroTimeout", [](MetaOptions& o) { o.comm_timeout = milliseconds(0); }, "got 0 ms"),
      with_options(
          "TooLongTimeout", [](MetaOptions& o) { o.comm_timeout = milliseconds::max(); }, "1 day"),
      with_options(
          "NoRules", [](MetaOptions& o) { o.rules = nullptr; }, "needs rules"),
      with_options(
          "ParametersForOneOfTwoMembers", [](MetaOptions& o) { o.member_params = {""}; }, "for 1 devices"),
      with_communicator("FactoryReturningNull", {none}, "no communicator"),
      with_communicator("FactoryWithFewerRanks", {smaller}, "of 1 ranks, expected 2"),
      with_communicator("FactoryDescribingFewerRanks", {none, short_description}, "of 1 ranks, expected 2"),
      {"CommunicatorWithoutDevices", [] { collectives::communicator_for({}); }, "one device"},
      with_mesh("PreparedPlanUsedTwice", use_prepared_twice, "used already"),
      with_mesh("StoreWithoutTensor", adopt_from_empty_store, "is not in the other store"),
      with_mesh("ContextWithoutShards", plan_with_plain_context, "PlanContext::shards"),
      {"StoreWithNegativeRanks", [] { ShardStore(-1); }, "got -1"},
      with_mesh(
          "StoreWithOtherRanks", [](test::CpuMesh& mesh) { plan_with_store_of(mesh, 3); }, "3 shards for 2"),
      with_mesh(
          "PlanWithoutDevices",
          [](test::CpuMesh& mesh) {
            Planned one(*mesh.device);
            meta::make_plan(one.graph, mesh.device->shards(), {});
          },
          "one device"),
  };
}

// --- devices, buffers, backends -----------------------------------------------------------------------------------

void run_after_forget(BufferType& type) {
  Planned one(type.device());
  TensorContext leaves;
  Tensor* weight = leaves.add("forgotten", DType::kF32, {4, 4, 1, 1});
  const auto memory = allocate_tensors({&weight, 1}, type, Usage::kWeights);
  Graph graph("g");
  graph.output(mul_mat(graph, weight, graph.input("x", DType::kF32, {4, 1, 1, 1})));
  const auto backend = type.device().init("threads=1");
  const auto plan = backend->create_plan(graph);
  weight->buffer->unplace(*weight);
  backend->compute_async(*plan);
  backend->synchronize();
}

std::vector<Misuse> devices() {
  const auto cpu = []() -> Device& { return Registry::instance().device("CPU0"); };
  const auto place_nothing = [](BufferType& type) {
    Tensor* none = nullptr;
    allocate_tensors({&none, 1}, type, Usage::kWeights);
  };
  return {
      {"PlacingNullTensor", [=] { place_nothing(cpu().buffer_type()); }, "tensor 0 of the 1 tensors"},
      {"PlacingNullTensorPacked", [=] { place_nothing(cpu().weights_type()); }, "tensor 0 of the 1 tensors"},
      {"LayingOutNullTensor",
       [=] {
         Tensor* none = nullptr;
         layout_tensors({&none, 1}, cpu().buffer_type());
       },
       "tensor 0 of the 1 tensors"},
      with_mesh(
          "PlacingNullTensorOnMesh", [=](test::CpuMesh& mesh) { place_nothing(mesh.device->buffer_type()); },
          "tensor 0 of the 1 tensors"),
      {"HostTaskWithoutFunction", [] { HostTask(nullptr, nullptr, nullptr); }, "needs a function"},
      {"PlanOfForgottenWeight", [=] { run_after_forget(cpu().buffer_type()); }, "forgotten"},
      {"PlanOfForgottenPackedWeight", [=] { run_after_forget(cpu().weights_type()); }, "forgotten"},
      {"MultiBufferWithoutParts", [] { make_multi_buffer({}); }, "at least one part"},
  };
}

// --- schedulers ---------------------------------------------------------------------------------------------------

/// Runs a graph with a scheduler over two backends, destroys the first backend, and then calls `act`.
Misuse without_backend(std::string name, const std::function<void(sched::Scheduler&, Planned&)>& act,
                       std::string says = "backend 0 of the scheduler has been destroyed") {
  return {std::move(name),
          [act] {
            const test::CpuMesh mesh(2);
            Planned one(*mesh.device);
            auto first = mesh.device->init();
            const auto second = mesh.other().init("threads=1");
            sched::Scheduler scheduler({first.get(), second.get()});
            scheduler.allocate(one.graph);
            const std::vector<float> x(4, 1.0f);
            tensor_set(*one.graph.find("x"), x.data(), 0, 16);
            scheduler.compute_async(one.graph);
            scheduler.synchronize();
            first.reset();
            act(scheduler, one);
          },
          std::move(says)};
}

Misuse with_scheduler(std::string name, const std::function<void(const sched::Scheduler&)>& act) {
  return {std::move(name),
          [act] {
            const auto backend = Registry::instance().device("CPU0").init("threads=1");
            act(sched::Scheduler({backend.get()}));
          },
          "1 backends, got index 1"};
}

std::vector<Misuse> schedulers() {
  using sched::Scheduler;
  const auto cpu = [] { return Registry::instance().device("CPU0").init("threads=1"); };
  return {
      {"SchedulerWithoutBackends", [] { Scheduler({}); }, "at least one"},
      {"SchedulerWithNullBackend", [] { Scheduler({nullptr}); }, "missing"},
      {"ScheduleWithNullDevice",
       [] {
         Device* const none = nullptr;
         sched::make_schedule(Graph("g"), {&none, 1}, {});
       },
       "a device for each backend"},
      {"SchedulerWithRepeatedBackend",
       [=] {
         const auto one = cpu();
         Scheduler({one.get(), one.get()});
       },
       "twice"},
      {"SchedulerWithoutCopies",
       [=] {
         const auto one = cpu();
         Scheduler({one.get()}, {.copies = 0});
       },
       "got 0"},
      {"SchedulerWithTooManyCopies",
       [=] {
         const auto one = cpu();
         Scheduler({one.get()}, {.copies = 1'000'000'000});
       },
       "got 1000000000"},
      with_scheduler("BackendIndexOutOfRange", [](const Scheduler& s) { s.backend(1); }),
      with_scheduler("BufferTypeIndexOutOfRange", [](const Scheduler& s) { s.buffer_type(1); }),
      with_scheduler("BufferSizeIndexOutOfRange", [](const Scheduler& s) { s.buffer_size(1); }),
      with_scheduler("MemberSizesIndexOutOfRange", [](const Scheduler& s) { s.member_sizes(1); }),
      without_backend("RunAfterBackendIsDestroyed", [](Scheduler& s, Planned& one) { s.compute_async(one.graph); }),
      without_backend("SynchronizeAfterBackendIsDestroyed", [](Scheduler& s, Planned&) { s.synchronize(); }),
      without_backend("ReserveAfterBackendIsDestroyed", [](Scheduler& s, Planned& one) { s.reserve(one.graph); }),
      without_backend("HostMemoryAfterBackendIsDestroyed", [](Scheduler& s, Planned&) { s.allocate_host(64); }),
      without_backend("ReadAfterBackendIsDestroyed",
                      [](Scheduler& s, Planned& one) {
                        float out[4];
                        s.get_async(*one.y, out, 0, 16);
                      }),
  };
}

INSTANTIATE_TEST_SUITE_P(Partitions, InvalidValues, testing::ValuesIn(partitions()), name_of);
INSTANTIATE_TEST_SUITE_P(Graphs, InvalidValues, testing::ValuesIn(graphs()), name_of);
INSTANTIATE_TEST_SUITE_P(Rules, InvalidValues, testing::ValuesIn(rules()), name_of);
INSTANTIATE_TEST_SUITE_P(MetaDevices, InvalidValues, testing::ValuesIn(meta_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, InvalidValues, testing::ValuesIn(devices()), name_of);
INSTANTIATE_TEST_SUITE_P(Schedulers, InvalidValues, testing::ValuesIn(schedulers()), name_of);

}  // namespace
}  // namespace shoal
