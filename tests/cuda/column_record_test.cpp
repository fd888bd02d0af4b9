// Tests of column records (columns quantised to 8 bits). The bytes of a record equal the output of the kernel that
// quantises columns. Products compute the same result from a record as from the column. Steps of a plan write and read
// records wherever possible.
#include "devices/cuda/column_record.h"

#include <gmock/gmock.h>

#include <optional>

#include "devices/cuda/fusion.h"
#include "devices/cuda/ops/fused.h"
#include "devices/cuda/ops/mul_mat_vec.h"
#include "tests/cuda/placed_graph.h"
#include "tests/cuda/products.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

constexpr GpuTraits kGpu{0, 90, 132, 227 * 1024};
constexpr ColumnForms kBoth{true, true}, kTwo{true, false}, kFour{false, true};

/// Runs a graph whose launches have memory for a record.
class Rig {
 public:
  explicit Rig(const test::Build& build) {
    build(graph_, weights_);
    leaves_ = test::random_leaves(graph_, 7);
    run_.emplace(graph_, leaves_);
    for (Tensor* node : graph_.nodes()) run_->give_workspace(*node);
    run_->context.record_memory = run_->zeros(kRecordBytes);
  }

  LaunchContext& context() { return run_->context; }
  Tensor& node(size_t i) { return *graph_.nodes()[i]; }
  void spoil(const Tensor& tensor) { test::check_cuda(cudaMemset(tensor.data, 0xff, tensor.bytes())); }
  std::vector<std::byte> bytes(const std::byte* from, size_t size) const {
    run_->wait();
    std::vector<std::byte> bytes(size);
    test::check_cuda(cudaMemcpy(bytes.data(), from, size, cudaMemcpyDeviceToHost));
    return bytes;
  }
  std::vector<std::byte> bytes(const Tensor& tensor) const { return bytes(tensor.data, tensor.bytes()); }

  /// Quantises a column in a separate kernel. The result has the form that weights of type `dtype` require.
  std::byte* quantized(const Tensor& column, DType dtype, std::byte* to = nullptr) {
    const int64_t k = column.elements();
    Graph graph;
    TensorContext weights;
    const Tensor* a = weights.add("a", dtype, {k, 1, 1, 1});
    Tensor* b = graph.input("b", DType::kF32, {k, 1, 1, 1});
    b->data = column.data;
    if (to == nullptr) to = run_->zeros(column_bytes(k, dtype == DType::kQ6_K ? 4 : 2));
    prepare_columns(context(), *a, *b, to);
    b->data = nullptr;
    return to;
  }
  /// Writes the record of a column in form `two` (groups of 32 elements) and in form `four` (groups of 16 elements).
  void record(const Tensor& column) {
    const ColumnRecord record = context().record(kBoth);
    quantized(column, DType::kQ8_0, record.two);
    quantized(column, DType::kQ6_K, record.four);
  }
  void expect_record(const Tensor& column, const ColumnForms& forms) {
    const ColumnRecord record = context().record(kBoth);
    for (const int groups : {2, 4}) {
      const auto size = static_cast<size_t>(column_bytes(column.elements(), groups));
      const bool is_there = groups == 2 ? forms.two : forms.four;
      const DType dtype = groups == 2 ? DType::kQ8_0 : DType::kQ6_K;
      const std::byte* const expected = is_there ? quantized(column, dtype) : run_->zeros(size);
      EXPECT_TRUE(bytes(groups == 2 ? record.two : record.four, size) == bytes(expected, size)) << groups;
    }
  }

 private:
  test::Environment processors_{"SHOAL_EMULATED_PROCESSORS", "132"};
  TensorContext weights_;
  Graph graph_;
  test::TensorValues leaves_;
  std::optional<test::CudaRun> run_;
};

TEST(ColumnRecord, NormRecordsEqualRecordsOfSeparateQuantisation) {
  for (const int64_t k : {64, 256, 448, 512, 576, 2048, 4160, 5120, 14336}) {
    for (const ColumnForms forms : {kTwo, kFour, kBoth}) {
      if (k % 256 != 0 && forms.four) continue;
      for (const bool sum : {false, true}) {
        SCOPED_TRACE(testing::Message() << k << " " << forms.two << forms.four << sum);
        Rig rig([&](Graph& g, TensorContext& w) {
          const Shape shape{k, 1, 1, 1};
          Tensor* y = add(g, g.input("a", DType::kF32, shape), g.input("b", DType::kF32, shape));
          return mul(g, rms_norm(g, y, {1e-5F}), w.add("w", DType::kF32, shape));
        });
        Tensor &y = rig.node(0), &z = rig.node(2);
        ASSERT_TRUE(rms_norm_records(z));
        rig.context().writes = forms;
        const View a = view_of(*y.src[0]), b = view_of(*y.src[1]);
        const NormWeight weight(*z.src[1]);
        if (sum) {
          launch_add_rms_norm(rig.context(), a, b, view_of(y), weight, view_of(z), 1e-5F);
        } else {
          launch_rms_norm_mul(rig.context(), a, weight, view_of(z), 1e-5F);
        }
        rig.expect_record(z, forms);
      }
    }
  }
}
TEST(ColumnRecord, NormsOfSeveralRowsOrOfLongRowsWriteNoRecord) {
  Graph g;
  EXPECT_TRUE(rms_norm_records(*g.input("a", DType::kF32, {16384, 1, 1, 1})));
  EXPECT_FALSE(rms_norm_records(*g.input("b", DType::kF32, {16448, 1, 1, 1})));
  EXPECT_FALSE(rms_norm_records(*g.input("c", DType::kF32, {256, 2, 1, 1})));
}

/// Cases with few keys use one block, and cases with many keys use several blocks. The dtypes cover kernels with and
/// without tensor cores.
TEST(ColumnRecord, AttentionRecordsEqualRecordsOfSeparateQuantisation) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kF32}) {
    for (const auto& [keys, columns, group] :
         {std::array<int64_t, 3>{40, 64, 4}, {700, 64, 4}, {700, 128, 2}, {40, 96, 1}, {700, 32, 8}, {700, 32, 9}}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << keys << " " << columns << " " << group);
      Rig rig([&](Graph& g, TensorContext& w) {
        Tensor* q = g.input("q", DType::kF32, {columns, 1, 2 * group, 1});
        Tensor* k = w.add("k", dtype, {columns, keys, 2, 1}, Role::kCache);
        Tensor* v = w.add("v", dtype, {columns, keys, 2, 1}, Role::kCache);
        return shoal::attention(g, q, k, v, nullptr, nullptr, nullptr, {0.1F});
      });
      Tensor& result = rig.node(0);
      if (!attention_records(result)) {
        EXPECT_GT(group, 8);
        continue;
      }
      const bool four = result.elements() % 256 == 0;
      rig.context().writes = {true, four};
      kernel_for(Op::kAttention).run(rig.context(), result);
      rig.expect_record(result, rig.context().writes);
    }
  }
}
TEST(ColumnRecord, AttentionOfPromptsOrPartialGroupsWritesNoRecord) {
  const auto records = [](int64_t columns, int64_t queries) {
    Graph g;
    Tensor* q = g.input("q", DType::kF32, {columns, queries, 2, 1});
    Tensor* k = g.input("k", DType::kF16, {columns, 40, 2, 1});
    return attention_records(*shoal::attention(g, q, k, k, nullptr, nullptr, nullptr, {0.1F}));
  };
  EXPECT_TRUE(records(64, 1));
  EXPECT_FALSE(records(48, 1));
  EXPECT_FALSE(records(64, 2));
}

/// Computes `results` from the column and then from the record of the column. The column is overwritten before the
/// second run. Both runs must give the same bits.
template <class Run>
void expect_same_bits(Rig& rig, const Tensor& column, const std::vector<const Tensor*>& results, const Run& run) {
  run(rig.context());
  std::vector<std::vector<std::byte>> expected;
  for (const Tensor* result : results) expected.push_back(rig.bytes(*result));
  rig.record(column);
  rig.bytes(column);
  rig.spoil(column);
  for (const Tensor* result : results) rig.spoil(*result);
  rig.context().reads = kBoth;
  run(rig.context());
  for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(rig.bytes(*results[i]) == expected[i]) << i;
}

TEST(ColumnRecord, ProductsReadRecords) {
  for (const DType dtype : test::weight_types()) {
    if (!traits(dtype).is_quantized) continue;
    for (const int64_t k : {256, 2304, 5120}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << k);
      Rig rig(test::product(dtype, {k, 40, 1, 1}, {k, 1, 1, 1}));
      Tensor& product = rig.node(0);
      EXPECT_TRUE(mul_mat_forms(std::array{&product}, kGpu).any());
      expect_same_bits(rig, *product.src[1], {&product},
                       [&](const LaunchContext& context) { kernel_for(Op::kMulMat).run(context, product); });
    }
  }
}
TEST(ColumnRecord, ProductsOfSeveralTypesReadOneRecord) {
  Rig rig([&](Graph& g, TensorContext& w) {
    Tensor *b = g.input("b", DType::kF32, {2304, 1, 1, 1}), *last = nullptr;
    for (const DType dtype : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
      last = mul_mat(g, w.add(std::string(name_of(dtype)), dtype, {2304, 40, 1, 1}), b);
    }
    return last;
  });
  Tensor* const nodes[] = {&rig.node(0), &rig.node(1), &rig.node(2)};
  EXPECT_EQ(mul_mat_forms(nodes, kGpu), kBoth);
  expect_same_bits(rig, *nodes[0]->src[1], {nodes[0], nodes[1], nodes[2]},
                   [&](const LaunchContext& context) { mul_mat_many_run(context, nodes); });
}
TEST(ColumnRecord, ExpertsReadRecords) {
  const test::Experts experts{512, 40, 4, 3, 1};
  Rig rig([&](Graph& g, TensorContext& w) { return test::expert_product(g, w, DType::kQ4_K, experts); });
  Tensor& product = rig.node(0);
  EXPECT_EQ(mul_mat_forms(std::array{&product}, kGpu), kTwo);
  expect_same_bits(rig, *product.src[1], {&product},
                   [&](const LaunchContext& context) { kernel_for(Op::kMulMatId).run(context, product); });
}

/// Returns a list of the steps of a plan. Each step has the name of its last node. "w" precedes the record forms that a
/// step writes, and "r" precedes the forms that it reads. Nodes %before and %behind belong to other launches. If one of
/// these nodes exists, the list ends with the forms passed from %before and to %behind. Nodes that no other node reads
/// are outputs.
std::string steps_of(const std::string& nodes) {
  static const char* const kLeaves =
      "input %a f32 [256]\ninput %b f32 [256]\ninput %two f32 [256, 2]\ninput %l f32 [33280]\ninput %ids i32 [2]\n"
      "input %q f32 [64, 1, 4]\ncache %kc f16 [64, 40, 2]\ncache %vc f16 [64, 40, 2]\n"
      "input %many f32 [64, 1, 520]\ncache %m130 f16 [64, 40, 130]\nweight %s f32 [256]\n"
      "weight %k4 q4_k [256, 64]\nweight %k6 q6_k [256, 64]\nweight %f f16 [256, 64]\nweight %g q4_k [256, 64]\n"
      "weight %square q8_0 [256, 256]\nweight %small q8_0 [128, 64]\nweight %both q8_0 [512, 64]\n"
      "weight %long q8_0 [33280, 16]\nweight %experts q6_k [256, 32, 4]\nweight %halves q8_0 [128, 32, 4]\n";
  test::Placed placed(kLeaves + nodes);
  for (Tensor* node : placed.graph.nodes()) {
    const auto reads = [&](const Tensor* other) { return std::ranges::count(other->src, node) > 0; };
    if (std::ranges::none_of(placed.graph.nodes(), reads)) placed.graph.output(node);
  }
  const Neighbours neighbours{placed.graph.find("before"), placed.graph.find("behind")};
  std::erase(placed.running, neighbours.before);
  std::erase(placed.running, neighbours.behind);
  std::vector<Step> steps;
  const Readers readers(whole(placed.graph), {});
  for (std::span<Tensor* const> rest = placed.running; !rest.empty(); rest = rest.subspan(steps.back().nodes.size())) {
    steps.push_back(fuse(rest, readers, kGpu));
  }
  const PassedForms passed = share_records(steps, kGpu, neighbours);
  const auto told = [](const char* what, const ColumnForms& forms) {
    return forms.any() ? fmt::format(" {}{}{}", what, forms.two ? "2" : "", forms.four ? "4" : "") : std::string();
  };
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) text += ", ";
    text += step.nodes.back()->name + told("w", step.writes) + told("r", step.reads);
  }
  if (neighbours.before == nullptr && neighbours.behind == nullptr) return text;
  return text + ", passed" + told("before", ColumnForms::of(passed.before)) +
         told("behind", ColumnForms::of(passed.behind));
}

const std::string kNorm = "%n = rms_norm(%a)\n%m = mul(%n, %s)\n";

TEST(ColumnRecordPlans, NormPassesColumnRecordsToItsProducts) {
  EXPECT_EQ(steps_of(kNorm + "%x = mul_mat(%k4, %m)\n%y = mul_mat(%k6, %m)\n"), "m w24, y r24");
  EXPECT_EQ(steps_of("%t = add(%a, %b)\n%n = rms_norm(%t)\n%m = mul(%n, %s)\n%x = mul_mat(%k6, %m)\n"), "m w4, x r4");
  EXPECT_EQ(steps_of(kNorm + "%g0 = mul_mat(%g, %m)\n%u = mul_mat(%k4, %m)\n%o = glu(%g0, %u)\n"), "m w2, o r2");
  EXPECT_EQ(steps_of(kNorm + "%x = mul_mat(%square, %m)\n%o = add(%x, %a)\n"), "m w2, o r2");
}
TEST(ColumnRecordPlans, ProductsReadRecordsAfterOtherSteps) {
  EXPECT_EQ(steps_of(kNorm + "%r = mul_mat(%f, %m)\n%e = mul_mat_id(%experts, %m, %ids)\n%x = mul_mat(%k4, %m)\n"),
            "m w24, r, e r4, x r2");
  EXPECT_EQ(steps_of(kNorm + "%g0 = mul_mat_id(%experts, %m, %ids)\n%u = mul_mat_id(%experts, %m, %ids)\n"
                             "%o = glu(%g0, %u)\n"),
            "m w4, o r4");
}
TEST(ColumnRecordPlans, AttentionPassesRecordsToItsProjection) {
  EXPECT_EQ(steps_of("%t = attention(%q, %kc, %vc, _, _, _) {scale=0.125}\n%c = reshape(%t) {shape=[256,1,1,1]}\n"
                     "%x = mul_mat(%square, %c)\n%o = add(%x, %a)\n"),
            "t w2, o r2");
  EXPECT_EQ(
      steps_of("%t = attention(%many, %m130, %m130, _, _, _) {scale=0.125}\n%c = reshape(%t) {shape=[33280,1,1,1]}\n"
               "%x = mul_mat(%long, %c)\n"),
      "t, x")
      << "longer than a record";
}
TEST(ColumnRecordPlans, LaterNormReplacesRecordOfEarlierColumn) {
  EXPECT_EQ(steps_of(kNorm + "%h = rms_norm(%b)\n%i = mul(%h, %s)\n%x = mul_mat(%k4, %m)\n%y = mul_mat(%k4, %i)\n"),
            "m, i w2, x, y r2");
}
TEST(ColumnRecordPlans, PlansExchangeRecordsWithNeighbourNodes) {
  EXPECT_EQ(steps_of("%before = mul(%a, %s)\n%x = mul_mat(%k4, %before)\n%y = mul_mat(%k6, %before)\n"),
            "y r24, passed before24");
  EXPECT_EQ(steps_of(kNorm + "%behind = mul_mat(%square, %m)\n"), "m w2, passed behind2");
  EXPECT_EQ(steps_of("%before = mul(%a, %s)\n%x = mul_mat(%k6, %before)\n%behind = mul_mat(%square, %before)\n"),
            "x r4, passed before24 behind2");
  EXPECT_EQ(steps_of("%before = mul(%a, %s)\n" + kNorm +
                     "%x = mul_mat(%k4, %before)\n%y = mul_mat(%k6, %m)\n"
                     "%behind = mul_mat(%square, %before)\n"),
            "m w4, x, y r4, passed")
      << "the record of %m has replaced the record of %before";
  EXPECT_EQ(steps_of("%before = mul(%two, %s)\n%x = mul_mat(%k4, %before)\n"), "x, passed");
  EXPECT_EQ(steps_of("%before = mul(%two, %s)\n%h = reshape(%before) {shape=[512,1,1,1]}\n%x = mul_mat(%both, %h)\n"),
            "x, passed")
      << "%before has two rows, although %h is one column";
  EXPECT_EQ(steps_of("%before = mul(%l, %l)\n%x = mul_mat(%long, %before)\n"), "x, passed") << "longer than a record";
  EXPECT_EQ(steps_of("%before = mul(%a, %s)\n%u = unary(%before) {kind=silu}\n%behind = mul_mat(%square, %u)\n"),
            "u, passed");
}
TEST(ColumnRecordPlans, OnlyWholeResultsWithOneRowBecomeRecords) {
  EXPECT_EQ(steps_of("%n = rms_norm(%two)\n%m = mul(%n, %s)\n%x = mul_mat(%k4, %m)\n"), "m, x");
  EXPECT_EQ(steps_of(kNorm + "%h = slice(%m) {axis=0, begin=0, length=128}\n%x = mul_mat(%small, %h)\n"), "m, x");
  EXPECT_EQ(steps_of(kNorm + "%h = reshape(%m) {shape=[128,2,1,1]}\n%x = mul_mat_id(%halves, %h, %ids)\n"), "m, x");
  EXPECT_EQ(steps_of(kNorm + "%u = unary(%m) {kind=silu}\n%x = mul_mat(%k4, %u)\n"), "m, u, x");
  EXPECT_EQ(steps_of(kNorm + "%x = mul_mat(%f, %m)\n"), "m, x");
}

}  // namespace
}  // namespace shoal::cuda
