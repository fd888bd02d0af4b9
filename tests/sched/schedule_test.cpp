// Compares schedules with their expected text. The devices are CPU devices with other names. No tensor has memory.
#include "sched/schedule.h"

#include <gmock/gmock.h>

#include <map>

#include "base/error.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/sched/proxy.h"
#include "tests/support/external_ops.h"

namespace shoal::sched {
namespace {

using test::ProxyDevice;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kTwoLayers = R"(
input %x f32 [64, 1]
weight %w0 f32 [64, 96]
weight %w1 f32 [96, 32]
%h = mul_mat(%w0, %x)
%a = unary(%h) {kind=silu}
%y = mul_mat(%w1, %a)
output %y
)";

constexpr const char* kExperts = R"(
input %x f32 [32, 1, 8]
input %ids2 i32 [2, 8]
weight %experts f32 [32, 16, 6]
weight %after f32 [16, 8]
%e = mul_mat_id(%experts, %x, %ids2)
%y = mul_mat(%after, %e)
output %y
)";

struct Schedules : testing::Test {
  /// Makes a schedule. `homes` contains the devices of weights and caches by name. All other weights and caches are on
  /// the device `otherwise`.
  Schedule make(const std::string& text, const std::map<std::string, Device*>& homes, Device* otherwise = nullptr) {
    graph = std::make_unique<Graph>("graph");
    weights = std::make_unique<TensorContext>();
    parse_graph(text, *graph, *weights);
    options.home = [homes, otherwise](const Tensor& tensor) -> const BufferType* {
      const auto found = homes.find(tensor.name);
      Device* device = found != homes.end() ? found->second : otherwise;
      return device == nullptr ? nullptr : &device->buffer_type();
    };
    options.user.clear();
    for (const auto& [name, backend] : user) options.user[graph->find(name)] = backend;
    options.observed.clear();
    for (const std::string& name : observed) options.observed.insert(graph->find(name));
    return make_schedule(*graph, devices, options);
  }
  void use_offload() {
    a.wants = [](const Tensor& node) { return node.op == Op::kMulMatId || node.shape[1] >= 16; };
  }
  static Device& cpu(int index) { return Registry::instance().device("CPU" + std::to_string(index)); }

  test::CpuConfiguration configuration{"devices=4,threads=1"};
  ProxyDevice a{cpu(0), "A"}, b{cpu(1), "B"}, host{cpu(2), "HOST"};
  std::vector<Device*> devices{&a, &b, &host};
  ScheduleOptions options;
  std::map<std::string, int> user;
  std::vector<std::string> observed;
  std::unique_ptr<TensorContext> weights;
  std::unique_ptr<Graph> graph;
};

TEST_F(Schedules, HaveOneSplitPerDevice) {
  EXPECT_EQ(to_string(make(kTwoLayers, {{"w0", &a}, {"w1", &b}})),
            "schedule of graph: 2 splits on 3 backends, 2 copies, 640 B\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "  node a unary    neighbour\n"
            "split 1  B\n"
            "  copy a f32 [96] from split 0\n"
            "  node y mul_mat  weight\n");
}

TEST_F(Schedules, RunNodeOnBackendOfItsLargestWeight) {
  constexpr const char* kPair = R"(
weight %large f32 [64, 96]
weight %small f32 [64, 8]
weight %long f32 [96, 512]
weight %short f32 [96, 1]
%y = mul_mat(%large, %small)
%z = mul_mat(%short, %long)
output %y
output %z
)";
  for (const bool swapped : {false, true}) {
    Device *large = swapped ? &host : &a, *small = swapped ? &a : &host;
    const Schedule schedule = make(kPair, {{"large", large}, {"small", small}, {"long", large}, {"short", small}});
    for (const char* name : {"y", "z"}) {
      const Assignment& assigned = schedule.nodes[static_cast<size_t>(graph->find(name)->id)];
      EXPECT_EQ(devices[static_cast<size_t>(assigned.backend)], large) << name << " swapped " << swapped;
      EXPECT_EQ(assigned.reason, Reason::kWeight);
    }
  }
}

// All layers use the same small frequency factors. So the heads must not be copied to the device of the factors and
// back.
TEST_F(Schedules, RunRopeOnBackendOfItsHeads) {
  constexpr const char* kRope = R"(
input %x f32 [64, 1]
input %positions i32 [1]
weight %w0 f32 [64, 32]
weight %w1 f32 [32, 16]
weight %factors f32 [16]
%q = mul_mat(%w0, %x)
%turned = rope(%q, %positions, %factors) {dims=32}
%y = mul_mat(%w1, %turned)
output %y
)";
  const Schedule schedule = make(kRope, {{"w0", &a}, {"w1", &a}, {"factors", &b}});
  const Assignment& assigned = schedule.nodes[static_cast<size_t>(graph->find("turned")->id)];
  EXPECT_EQ(assigned.backend, 0);
  EXPECT_EQ(assigned.reason, Reason::kNeighbour);
  for (const Split& split : schedule.splits) EXPECT_EQ(split.backend, 0) << "the factors are copied";
}

TEST_F(Schedules, RunNodeWithoutWeightsOnFasterBackendOfNeighbourNodes) {
  EXPECT_EQ(to_string(make(kTwoLayers, {{"w0", &host}, {"w1", &a}})),
            "schedule of graph: 2 splits on 3 backends, 2 copies, 640 B\n"
            "split 0  HOST\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "split 1  A\n"
            "  copy h f32 [96] from split 0\n"
            "  node a unary    neighbour\n"
            "  node y mul_mat  weight\n")
      << "a node without weights runs on the faster backend of a neighbour";
}

TEST_F(Schedules, HaveOneSplitOnSingleBackend) {
  devices = {&a};
  const Schedule schedule = make(kTwoLayers, {}, &a);
  EXPECT_EQ(to_string(schedule),
            "schedule of graph: 1 splits on 1 backends, 1 copies, 256 B\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "  node a unary    neighbour\n"
            "  node y mul_mat  weight\n");
  EXPECT_FALSE(schedule.ordered);
}

TEST_F(Schedules, UseFirstBackendThatCanRunNode) {
  a.refuses = [](const Tensor& node) { return node.op == Op::kUnary; };
  EXPECT_EQ(to_string(make(kTwoLayers, {}, &a)),
            "schedule of graph: 3 splits on 3 backends, 3 copies, 1.0 KiB\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "split 1  B\n"
            "  copy h f32 [96] from split 0\n"
            "  node a unary    neighbour\n"
            "split 2  A\n"
            "  copy a f32 [96] from split 1\n"
            "  node y mul_mat  weight\n");
  a.refuses = b.refuses = [](const Tensor& node) { return node.name == "y"; };
  EXPECT_EQ(to_string(make(kTwoLayers, {}, &a)),
            "schedule of graph: 2 splits on 3 backends, 3 copies, 12.6 KiB\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "  node a unary    neighbour\n"
            "split 1  HOST\n"
            "  copy w1 f32 [96, 32] from A\n"
            "  copy a  f32 [96]     from split 0\n"
            "  node y  mul_mat      unsupported\n");
}

TEST_F(Schedules, UseBackendSetByUser) {
  user = {{"a", 2}};
  EXPECT_EQ(to_string(make(kTwoLayers, {{"w0", &a}, {"w1", &a}})),
            "schedule of graph: 3 splits on 3 backends, 3 copies, 1.0 KiB\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "split 1  HOST\n"
            "  copy h f32 [96] from split 0\n"
            "  node a unary    user\n"
            "split 2  A\n"
            "  copy a f32 [96] from split 1\n"
            "  node y mul_mat  weight\n");
  host.refuses = [](const Tensor& node) { return node.op == Op::kUnary; };
  EXPECT_THAT([&] { make(kTwoLayers, {}, &a); },
              ThrowsMessage<DeviceError>(HasSubstr(
                  "[HOST] cannot run '%a = unary(%h) {kind=silu}  # f32 [96]', although this backend was set for "
                  "the node; set another backend, or none")));
}

TEST_F(Schedules, StreamWeightsForLargeBatches) {
  use_offload();
  const std::string large = R"(
input %x f32 [64, 16]
weight %w0 f32 [64, 96]
weight %w1 f32 [96, 32]
%h = mul_mat(%w0, %x)
%y = mul_mat(%w1, %h)
output %y
)";
  EXPECT_EQ(to_string(make(large, {}, &host)),
            "schedule of graph: 2 splits on 3 backends, 3 copies, 40.0 KiB\n"
            "split 0  A\n"
            "  copy w0 f32 [64, 96] from HOST\n"
            "  copy x  f32 [64, 16] from the caller\n"
            "  node h  mul_mat      offload\n"
            "split 1  A\n"
            "  copy w1 f32 [96, 32] from HOST\n"
            "  node y  mul_mat      offload\n")
      << "each streamed weight begins a split, so that the next weight can reuse its memory";
  options.op_offload = false;
  EXPECT_EQ(make(large, {}, &host).splits[0].backend, 2);
  options.op_offload = true;
  const Schedule small = make(kTwoLayers, {}, &host);
  ASSERT_EQ(small.splits.size(), 1U) << to_string(small);
  EXPECT_EQ(small.splits[0].backend, 2) << "one token";
  a.refuses = [](const Tensor& node) { return node.name == "h"; };
  EXPECT_EQ(make(large, {}, &host).nodes[0].reason, Reason::kWeight) << "A does not request a node that A cannot run";
  EXPECT_EQ(make(large, {{"w1", &a}}, &b).nodes[1].reason, Reason::kWeight) << "A stores the weight";
}

TEST_F(Schedules, CopyOnlyUsedExperts) {
  use_offload();
  EXPECT_EQ(to_string(make(kExperts, {}, &host)),
            "schedule of graph: 2 splits on 3 backends, 4 copies, 14.1 KiB\n"
            "split 0  A\n"
            "  copy experts f32 [32, 16, 6] from HOST, only experts in ids2\n"
            "  copy x       f32 [32, 1, 8]  from the caller\n"
            "  copy ids2    i32 [2, 8]      from the caller\n"
            "  node e       mul_mat_id      offload\n"
            "split 1  HOST\n"
            "  copy e f32 [16, 2, 8] from split 0\n"
            "  node y mul_mat        weight\n");
  const std::string twice = R"(
input %x f32 [32, 1, 8]
input %ids2 i32 [2, 8]
weight %experts f32 [32, 16, 6]
%e = mul_mat_id(%experts, %x, %ids2)
%f = scale(%experts) {scale=2}
output %e
output %f
)";
  user = {{"e", 0}, {"f", 0}};
  EXPECT_EQ(make(twice, {}, &host).splits[0].copies[0].ids, nullptr) << "another node also uses the experts";
}

TEST_F(Schedules, PropagateBackendsToNeighbourNodes) {
  const std::string text = R"(
input %x f32 [64, 1]
weight %w0 f32 [64, 64]
weight %w1 f32 [64, 64]
%before = scale(%x) {scale=2}
%h = mul_mat(%w0, %before)
%c = scale(%h) {scale=2}
%d = scale(%c) {scale=2}
%y = mul_mat(%w1, %d)
%z = scale(%y) {scale=2}
output %z
)";
  const auto where = [&](const Schedule& schedule) {
    std::string text;
    for (const Assignment& node : schedule.nodes) text += std::to_string(node.backend);
    return text;
  };
  EXPECT_EQ(where(make(text, {{"w0", &a}, {"w1", &b}})), "000011");
  EXPECT_EQ(where(make(text, {{"w0", &a}, {"w1", &host}})), "000022")
      << "the last backend gets only the remaining nodes";
  EXPECT_EQ(where(make(text, {{"w0", &host}, {"w1", &a}})), "220000")
      << "the last backend gets only the remaining nodes";
  EXPECT_EQ(where(make(text, {}, &host)), "222222");
  a.refuses = [](const Tensor& node) { return node.name == "d"; };
  EXPECT_EQ(where(make(text, {{"w0", &a}, {"w1", &b}})), "000111");
  EXPECT_EQ(where(make(text, {{"w0", &a}, {"w1", &a}})), "000100")
      << "the backends of the neighbours cannot run this node, so the first backend that can run the node does";
}

TEST_F(Schedules, MakeLeafViewsOnEveryBackendThatReadsThem) {
  const std::string text = R"(
input %x f32 [64, 4]
weight %w f32 [64, 8]
weight %v f32 [32, 8]
%s = slice(%x) {begin=1, length=2, axis=1}
%t = slice(%w) {begin=2, length=4, axis=1}
%h = mul_mat(%t, %s)
%p = reshape(%h) {shape=[8,1,1,1]}
%u = add(%p, %p)
%r = reshape(%x) {shape=[32,8,1,1]}
%q = mul_mat(%v, %r)
output %u
output %q
)";
  EXPECT_EQ(to_string(make(text, {{"w", &a}, {"v", &b}})),
            "schedule of graph: 2 splits on 3 backends, 2 copies, 2.0 KiB\n"
            "split 0  A\n"
            "  copy x f32 [64, 4] from the caller\n"
            "  node h mul_mat     weight\n"
            "  node p reshape     view\n"
            "  node u add         neighbour\n"
            "split 1  B\n"
            "  copy x f32 [64, 4] from the caller\n"
            "  node q mul_mat     weight\n");
}

TEST_F(Schedules, RunNodesThatAccessHostCachesOnHost) {
  const std::string text = R"(
input %x f32 [64, 1]
input %slots16.rows i32 [1]
weight %wk f32 [64, 32]
weight %wo f32 [32, 64]
cache %ck f16 [32, 16]
%k = mul_mat(%wk, %x)
%keys = set_rows(%ck, %k, %slots16.rows)
%score = mul_mat(%keys, %k)
%w = soft_max(%score, _, _)
%o = mul_mat(%wo, %k)
output %w
output %o
)";
  EXPECT_EQ(to_string(make(text, {{"ck", &host}}, &a)),
            "schedule of graph: 3 splits on 3 backends, 4 copies, 452 B\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node k mul_mat  weight\n"
            "split 1  HOST\n"
            "  copy k            f32 [32] from split 0\n"
            "  copy slots16.rows i32 [1]  from the caller\n"
            "  node keys         set_rows cache\n"
            "  node score        mul_mat  cache\n"
            "split 2  A\n"
            "  copy score f32 [16] from split 1\n"
            "  node w     soft_max neighbour\n"
            "  node o     mul_mat  weight\n");
}

TEST_F(Schedules, OrderSplitsIfOtherBackendReadsCacheInPlace) {
  const std::string text = R"(
input %x f32 [32, 1]
input %slots16.rows i32 [1]
cache %ck f16 [32, 16]
%keys = set_rows(%ck, %x, %slots16.rows)
%score = mul_mat(%keys, %x)
output %score
)";
  user = {{"score", 2}};
  const Schedule copied = make(text, {}, &a);
  EXPECT_FALSE(copied.ordered) << "HOST gets a copy of the written rows";
  EXPECT_EQ(copied.splits[1].copies[0].tensor->name, "keys");
  const std::string before = R"(
input %x f32 [32, 1]
input %slots16.rows i32 [1]
cache %ck f16 [32, 16]
%score = mul_mat(%ck, %x)
%keys = set_rows(%ck, %x, %slots16.rows)
output %score
output %keys
)";
  host.reads_all = true;
  const Schedule in_place = make(before, {}, &a);
  EXPECT_TRUE(in_place.ordered) << to_string(in_place);
  EXPECT_EQ(in_place.copies(), 3) << "two copies of x and one copy of the rows, but no copy of the cache";
  host.reads_all = false;
  EXPECT_FALSE(make(before, {}, &a).ordered);
}

TEST_F(Schedules, EndSplitAfterObservedNode) {
  observed = {"h"};
  EXPECT_EQ(to_string(make(kTwoLayers, {}, &a)),
            "schedule of graph: 2 splits on 3 backends, 1 copies, 256 B\n"
            "split 0  A\n"
            "  copy x f32 [64] from the caller\n"
            "  node h mul_mat  weight\n"
            "split 1  A\n"
            "  node a unary   neighbour\n"
            "  node y mul_mat weight\n");
}

TEST_F(Schedules, EndSplitAfterViewsOfObservedNode) {
  const std::string text = R"(
input %x f32 [64, 1]
%h = scale(%x) {scale=2}
%v = reshape(%h) {shape=[8,8,1,1]}
%a = scale(%h) {scale=2}
%y = add(%v, %v)
output %y
output %a
)";
  observed = {"h"};
  EXPECT_EQ(make(text, {}).splits[0].nodes, (std::vector<int>{0, 1}));
  observed = {"v"};
  EXPECT_EQ(make(text, {}).splits[0].nodes, (std::vector<int>{0, 1}));
  observed = {};
  EXPECT_EQ(make(text, {}).splits.size(), 1U);
}

TEST_F(Schedules, RefuseToSetBackendOfViewsAndRepeatedCacheWrites) {
  const std::string text = R"(
input %x f32 [32, 1]
input %slots16.rows i32 [1]
cache %ck f16 [32, 16]
%keys = set_rows(%ck, %x, %slots16.rows)
%again = set_rows(%keys, %x, %slots16.rows)
%flat = reshape(%again) {shape=[512,1,1,1]}
output %flat
)";
  user = {{"again", 0}};
  EXPECT_EQ(make(text, {{"ck", &a}}).nodes[1].backend, 0);
  host.reads_all = true;
  user = {{"again", 2}};
  EXPECT_THAT([&] { make(text, {{"ck", &a}}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("again is set to run on HOST, but writes into the cache that keys wrote on A; "
                            "set the backend of keys instead")));
  user = {{"flat", 0}};
  EXPECT_THAT([&] { make(text, {{"ck", &a}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("flat is a view and runs on the backend of its base; set the "
                                                       "backend of again instead")));
}

TEST_F(Schedules, ErrorsNameTensorAndDevices) {
  EXPECT_THAT([&] { make(kTwoLayers, {{"w0", &a}}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("w1 f32 [96, 32] has no memory; place it on a device before graphs are scheduled")));
  EXPECT_THAT([&] { make(kTwoLayers, {{"w0", &a}}, &cpu(3)); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "w1 f32 [96, 32] is in memory of CPU3, which none of the backends can use; add a backend")));
  a.refuses = b.refuses = host.refuses = [](const Tensor& node) { return node.name == "a"; };
  EXPECT_THAT([&] { make(kTwoLayers, {}, &a); },
              ThrowsMessage<DeviceError>(
                  HasSubstr("none of the devices (A, B, HOST) can run '%a = unary(%h) {kind=silu}  # f32 [96]'")));
  devices.clear();
  EXPECT_THROW(make(kTwoLayers, {}, &a), InvalidArgument);
}

TEST_F(Schedules, ErrorsNameRemedy) {
  const auto cannot_write = [&](const Tensor& node) { return info(node.op).alias == Alias::kWrites; };
  const std::string text = R"(
input %x f32 [32, 1]
input %slots16.rows i32 [1]
cache %ck f16 [32, 16]
%keys = set_rows(%ck, %x, %slots16.rows)
output %keys
)";
  const auto expect = [&](Device& home, const std::string& remedy) {
    EXPECT_THAT([&] { make(text, {{"ck", &home}}); }, ThrowsMessage<DeviceError>(testing::EndsWith(remedy)));
  };
  a.refuses = b.refuses = host.refuses = cannot_write;
  expect(host, "; cast the sources of the node");
  expect(a, "; ck is stored on A, which cannot run the node: place the tensor on another device, or omit this device");
  const auto mesh = meta::MetaDevice::create({&a, &b}, [](const Tensor&) { return meta::SplitState::mirrored(); });
  devices = {mesh.get(), &host};
  expect(*mesh, "; every member of a meta device must be able to run the node: leave out members that cannot");
  devices = {mesh.get()};
  expect(*mesh, "leave out members that cannot, or add a CPU device as the last device");
}

TEST_F(Schedules, RunExternalOpsOnDevicesWithKernels) {
  test::register_test_ops();
  const std::string text = R"(
input %x f32 [64, 1]
weight %w0 f32 [64, 96]
%h = mul_mat(%w0, %x)
%r = external(%h) {op="test.reverse"}
output %r
)";
  const auto refuse = [](const Tensor& node) { return node.op == Op::kExternal; };
  a.refuses = refuse;
  const Schedule schedule = make(text, {{"w0", &a}});
  EXPECT_EQ(schedule.nodes[0].backend, 0);
  EXPECT_EQ(schedule.nodes[1].backend, 1);
  b.refuses = host.refuses = refuse;
  EXPECT_THAT([&] { make(text, {{"w0", &a}}); },
              ThrowsMessage<DeviceError>(testing::AllOf(
                  HasSubstr("none of the devices (A, B, HOST) can run '%r = external(%h) {op=\"test.reverse\"}"),
                  HasSubstr("op 'test.reverse' has no kernel for "), HasSubstr(", only for: CPU; register a kernel"))));
}

TEST_F(Schedules, PreferLastBackendIfNoBackendOwnsTheHostMemory) {
  // Both backends can read memory of CPU2, but neither backend belongs to the device CPU2.
  ProxyDevice first(cpu(2), "FIRST"), last(cpu(2), "LAST");
  first.reads_all = last.reads_all = true;
  devices = {&first, &last};
  const Schedule schedule = make(kTwoLayers, {}, &cpu(2));
  ASSERT_EQ(schedule.splits.size(), 1U);
  EXPECT_EQ(schedule.splits[0].backend, 1);
}

}  // namespace
}  // namespace shoal::sched
