// Compares the results of every device with the float64 reference, for every op, dtype and shape class. One line in
// kTargets adds a device. The exclusions of a device are the cases that the device cannot run. A comment gives the
// reason for each exclusion.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "devices/cpu/packed_buffer.h"
#include "devices/device.h"
#include "graph/text.h"
#include "meta/device/meta_buffer.h"
#include "meta/device/meta_family.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/ops/op_cases.h"
#include "tests/support/plugin.h"
#include "tests/support/reference.h"

namespace shoal::test {
namespace {

struct Target {
  std::string name;                                      ///< used in test names
  std::string spec;                                      ///< argument of Registry::init
  std::set<std::pair<Op, std::string>> exclusions = {};  ///< (op, case) pairs that the device rejects; a comment gives
                                                         ///< each reason
  bool packed = false;                                   ///< whether all leaves except caches have memory of
                                                         ///< Device::weights_type
};

std::ostream& operator<<(std::ostream& out, const Target& target) {
  return out << target.spec;
}

const Target kTargets[] = {
    {"Cpu1Thread", "CPU0:threads=1"},
    {"Cpu2Threads", "CPU0:threads=2"},
    {"MetaEvenColumns", "META:devices=CPU0,CPU1 axis=0"},
    {"MetaUnevenRows", "META:devices=CPU0,CPU1,CPU2 axis=1 split=5,0,2"},
    {"MetaHeads", "META:devices=CPU0,CPU1 axis=2 split=1,2"},
    {"CpuPacked", "CPU0:threads=2", {}, true},
    {"MetaEvenColumnsPacked", "META:devices=CPU0,CPU1 axis=0", {}, true},
    {"MetaUnevenRowsPacked", "META:devices=CPU0,CPU1,CPU2 axis=1 split=5,0,2", {}, true},
};

/// All compute ops except external. Each external op has its own kernels (tests/meta/device/external_op_test.cpp).
std::vector<Op> compute_ops() {
  std::vector<Op> ops;
  for (int i = 0; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    if (info(op).kind == OpKind::kCompute && op != Op::kExternal) ops.push_back(op);
  }
  return ops;
}

class Conformance : public ::testing::TestWithParam<std::tuple<Target, Op>> {};

bool supports(const Device& device, const OpCase& one) {
  Graph graph;
  TensorContext weights;
  return device.supports_op(*one.build(graph, weights));
}

/// Copies the nodes of `from` to `to`. The copies read weights instead of inputs. Returns the last copy.
Tensor* with_weights_only(const Graph& from, Graph& to, TensorContext& weights) {
  std::unordered_map<const Tensor*, Tensor*> same;
  Tensor* last = nullptr;
  for (const Tensor* node : from.nodes()) {
    std::vector<Tensor*> sources;
    for (Tensor* source : node->src) {
      if (source != nullptr && source->role == Role::kInput && !same.contains(source)) {
        same[source] = weights.add("weight " + source->name, source->dtype, source->shape);
      }
      sources.push_back(same.contains(source) ? same.at(source) : source);
    }
    same[node] = last = to.add_node(node->op, node->params, sources, node->name);
  }
  return last;
}

/// Whether a CPU device stores the weight packed. For a meta device, whether any member stores a shard of the weight
/// packed.
bool is_stored_packed(const Tensor& weight) {
  const meta::Shards* shards = meta::find_shards(weight);
  if (shards == nullptr) return cpu::is_packed(weight);
  return std::any_of(shards->local.begin(), shards->local.end(),
                     [](const Tensor* part) { return !part->empty() && cpu::is_packed(*part); });
}

/// Runs one case. Returns the number of packed weights.
int run_case(Backend& backend, const OpCase& one, bool packed, uint64_t seed) {
  Graph inputs, graph;
  TensorContext weights;
  Tensor* node = one.build(packed ? inputs : graph, weights);
  if (packed) node = with_weights_only(inputs, graph, weights);
  graph.output(node);
  SCOPED_TRACE(to_string(graph));
  require<InvalidArgument>(node->op == one.op && backend.device().supports_op(*node), "{} cannot run", node->name);
  TensorValues leaves = random_leaves(graph, seed);
  GraphRun once(backend, graph, leaves, packed ? &backend.device().weights_type() : nullptr);
  once.run();
  const TensorValues results = once.results(), expected = reference_eval(graph, leaves);
  for (const auto& [tensor, values] : results) {
    EXPECT_TRUE(close_to(values, expected.at(tensor), one.tolerance)) << tensor->name;
  }
  const std::vector<Tensor*> all = graph.leaves();
  return static_cast<int>(
      std::count_if(all.begin(), all.end(), [](const Tensor* leaf) { return is_stored_packed(*leaf); }));
}

TEST_P(Conformance, ResultsMatchReference) {
  const auto& [target, op] = GetParam();
  const CpuConfiguration configuration("devices=3");
  meta::family();
  const auto backend = Registry::instance().init(target.spec);
  int count = 0, packed = 0;
  for (const OpCase& one : op_cases()) {
    if (one.op != op || target.exclusions.contains({op, one.name})) continue;
    SCOPED_TRACE(one.name);
    ++count;
    ASSERT_NO_THROW(packed += run_case(*backend, one, target.packed, static_cast<uint64_t>(1 + count)));
  }
  EXPECT_GT(count, 0) << "no case for " << name_of(op) << " in tests/ops/op_cases.cpp";
  EXPECT_EQ(packed > 0, target.packed && op != Op::kFill) << packed << " packed weights; kFill has no source";
}

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         ::testing::Combine(::testing::ValuesIn(kTargets), ::testing::ValuesIn(compute_ops())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::string(name_of(std::get<1>(info.param)));
                         });

/// The ops that are tested on a plug-in. Each op has its own test. So an op that breaks the device does not hide
/// failures of other ops.
std::vector<Op> plugin_ops() {
  return plugin_device() == nullptr ? std::vector{Op::kAdd} : compute_ops();
}

class PluginConformance : public ::testing::TestWithParam<Op> {};

/// A plug-in declares the ops that it runs. The plug-in of examples/plugin must run some ops. Every other plug-in must
/// run all ops.
TEST_P(PluginConformance, ResultsMatchReference) {
  Device* device = plugin_device();
  if (device == nullptr) GTEST_SKIP() << "SHOAL_TEST_PLUGIN names no plug-in";
  const auto backend = device->init();
  int count = 0;
  for (const OpCase& one : op_cases()) {
    if (one.op != GetParam() || !supports(*device, one)) continue;
    SCOPED_TRACE(one.name);
    ASSERT_NO_THROW(run_case(*backend, one, false, static_cast<uint64_t>(1 + ++count)));
  }
  const std::set<Op> some{Op::kAdd, Op::kMul, Op::kScale, Op::kUnary, Op::kRmsNorm, Op::kMulMat, Op::kSetRows};
  EXPECT_EQ(count > 0, device->reg().name() != "SIMPLE" || some.contains(GetParam())) << count << " cases ran";
}

INSTANTIATE_TEST_SUITE_P(, PluginConformance, ::testing::ValuesIn(plugin_ops()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(OpCases, NamesAreUnique) {
  std::set<std::pair<Op, std::string>> names;
  for (const OpCase& one : op_cases()) {
    EXPECT_TRUE(names.insert({one.op, one.name}).second) << name_of(one.op) << " " << one.name;
  }
}

}  // namespace
}  // namespace shoal::test
