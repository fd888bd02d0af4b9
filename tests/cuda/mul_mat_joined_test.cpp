// Tests of tile products that are fused with gates, biases and residuals. The tests compare results with float64
// results. Some products are split along k. The products use warp or warpgroup instructions. Other tests check that
// columns are converted only once for several products.
#include <algorithm>
#include <optional>

#include "devices/cuda/ops/mul_mat_tiles.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/products.h"

namespace shoal::test {
namespace {

/// Size of a product: depth k, number m of rows, and number n of columns.
struct Size {
  int64_t k, m, n;
};

/// In one launch, computes the last node of a graph and the product that is its first source.
void check_joined(const Build& build, const cuda::GpuTraits& gpu, GluKind kind = {}) {
  check_launch(build, {1e-6}, gpu, [&](CudaRun& run, Tensor& out) {
    Tensor& product = *out.src[0];
    ASSERT_TRUE(cuda::mul_mat_tiles_can_join(product));
    run.give_workspace(product, cuda::mul_mat_tiles_workspace(product, gpu));
    const bool gated = out.op == Op::kGlu;
    const cuda::JoinedProduct one{.a = product.src[0],
                                  .up = gated ? out.src[1]->src[0] : nullptr,
                                  .addend = gated ? nullptr : out.src[1],
                                  .out = &out,
                                  .node = &product};
    cuda::mul_mat_tiles_run_joined(run.context, {&one, 1}, kind);
  });
}

void check_gated(DType dtype, const Size& size, const cuda::GpuTraits& gpu, GluKind kind = GluKind::kSwiglu) {
  const auto build = [&](Graph& g, TensorContext& w) {
    Tensor* b = g.input("b", DType::kF32, {size.k, size.n, 1, 1});
    Tensor* gate = mul_mat(g, w.add("gate", dtype, {size.k, size.m, 1, 1}), b);
    return glu(g, gate, mul_mat(g, w.add("up", dtype, {size.k, size.m, 1, 1}), b), kind);
  };
  check_joined(build, gpu, kind);
}

void check_sum(DType dtype, const Size& size, const Shape& addend, const cuda::GpuTraits& gpu) {
  const auto build = [&](Graph& g, TensorContext& w) {
    Tensor* node = product(dtype, {size.k, size.m, 1, 1}, {size.k, size.n, 2, 1})(g, w);
    return add(g, node, g.input("addend", DType::kF32, addend));
  };
  check_joined(build, gpu);
}

TEST(MulMatJoined, FusesProductsWithGates) {
  for (const cuda::GpuTraits& gpu : {hopper(1), ampere(1)}) {
    for (const DType dtype : {DType::kQ4_K, DType::kQ6_K}) check_gated(dtype, {512, 70, 100}, gpu);
    check_gated(DType::kF16, {136, 131, 21}, gpu, GluKind::kGeglu);
    check_gated(DType::kQ8_0, {160, 64, 67}, gpu, GluKind::kReglu);
  }
  check_gated(DType::kQ5_0, {160, 67, 250}, hopper(1));
}
TEST(MulMatJoined, FusesProductsWithGatesIfKIsSplit) {
  for (const int64_t n : {12, 120}) {
    for (const cuda::GpuTraits& gpu : {hopper(132), ampere(132)}) check_gated(DType::kQ8_0, {2304, 70, n}, gpu);
  }
}
TEST(MulMatJoined, FusesProductsWithAdditions) {
  for (const cuda::GpuTraits& gpu : {hopper(1), ampere(1), hopper(132), ampere(132)}) {
    check_sum(DType::kQ8_0, {1088, 70, 75}, {70, 75, 2, 1}, gpu);
    check_sum(DType::kQ4_0, {1088, 70, 75}, {70, 1, 1, 1}, gpu);
    check_sum(DType::kF16, {1088, 70, 15}, {70, 1, 2, 1}, gpu);
  }
}

/// Checks the results and the number of launches of several products with the same `b`. The first launch converts `b`.
void check_many(const std::vector<std::pair<DType, int64_t>>& matrices, int64_t n, const cuda::GpuTraits& gpu,
                ptrdiff_t launches) {
  Graph graph;
  TensorContext weights;
  Tensor* b = graph.input("b", DType::kF32, {1024, n, 1, 1});
  std::vector<Tensor*> products;
  for (const auto& [dtype, m] : matrices) {
    const std::string name = "w" + std::to_string(products.size());
    products.push_back(graph.output(mul_mat(graph, weights.add(name, dtype, {1024, m, 1, 1}), b)));
  }
  SCOPED_TRACE(to_string(graph) + " on sm_" + std::to_string(gpu.compute_capability));
  TensorValues leaves = random_leaves(graph, 11);
  CudaRun run(graph, leaves, gpu);
  run.give_workspace(*products.back(), cuda::mul_mat_tiles_workspace(*products.back(), gpu));
  cuda::emulator::record_calls();
  cuda::mul_mat_tiles_run_joined(run.context, cuda::joined_products(products));
  run.wait();
  const auto calls = cuda::emulator::take_calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cudaLaunchKernel"), launches);
  for (const Tensor* product : products) run.expect(*product, {5e-7});
}

TEST(MulMatJoined, ProductsOfOneTypeShareALaunch) {
  for (const cuda::GpuTraits& gpu : {hopper(6), ampere(6)}) {
    check_many({{DType::kQ8_0, 512}, {DType::kQ8_0, 128}, {DType::kQ8_0, 70}}, 100, gpu, 2);
    check_many({{DType::kF16, 512}, {DType::kQ8_0, 512}, {DType::kF16, 70}}, 100, gpu, 3);
  }
}
TEST(MulMatJoined, HandlesMoreMatricesThanOneLaunchTakes) {
  check_many({{DType::kQ8_0, 70}, {DType::kQ8_0, 128}, {DType::kQ8_0, 40}, {DType::kQ8_0, 33}}, 12, hopper(1), 3);
}
TEST(MulMatJoined, SplitKTakesOneProductLaunchAndOneSumLaunch) {
  check_many({{DType::kQ8_0, 128}, {DType::kQ8_0, 70}, {DType::kQ8_0, 300}}, 20, hopper(12), 3);
}

/// Four products with the same `b`. The kernel fuses the first, third and fourth product with an addition.
struct Projections {
  explicit Projections(const cuda::GpuTraits& on) : gpu(on) {
    Tensor* b = graph.input("b", DType::kF32, {1088, 75, 1, 1});
    const auto product = [&](DType dtype, int64_t m) {
      return mul_mat(graph, weights_.add("w" + std::to_string(graph.nodes().size()), dtype, {1088, m, 1, 1}), b);
    };
    residual = graph.input("residual", DType::kF32, {33, 75, 1, 1});
    graph.output(add(graph, product(DType::kQ8_0, 70), graph.input("bias", DType::kF32, {70, 1, 1, 1})));
    graph.output(product(DType::kF16, 40));
    graph.output(add(graph, residual, product(DType::kQ4_0, 33)));
    last = product(DType::kQ5_0, 70);
    result = graph.output(add(graph, last, graph.input("other", DType::kF32, {70, 1, 1, 1})));
    joined = cuda::joined_products(graph.nodes());
    leaves_ = random_leaves(graph, 11);
    run.emplace(graph, leaves_, gpu);
    for (Tensor* node : graph.nodes()) {
      if (node->op == Op::kMulMat) run->give_workspace(*node, workspace_bytes(*node));
    }
  }
  void run_joined() {
    cuda::mul_mat_tiles_run_joined(run->context, joined);
    run->wait();
    for (const cuda::JoinedProduct& one : joined) run->expect(*one.out, {2e-7});
  }
  size_t workspace_bytes(const Tensor& node) const { return cuda::mul_mat_tiles_workspace(node, gpu); }

  const cuda::GpuTraits gpu;
  Graph graph;
  Tensor *residual = nullptr, *last = nullptr, *result = nullptr;
  std::vector<cuda::JoinedProduct> joined;

 private:
  TensorContext weights_;
  TensorValues leaves_;

 public:
  std::optional<CudaRun> run;  ///< destroyed before the tensors that `run` has placed
};

TEST(MulMatJoined, ConvertsColumnsOnceForProductsWithAdditions) {
  for (const cuda::GpuTraits& gpu : {hopper(1), ampere(1), hopper(132), ampere(132)}) {
    Projections p(gpu);
    ASSERT_EQ(cuda::mul_mat_tiles_choice(*p.last, gpu).parts > 1, gpu.processors > 1);
    p.run_joined();
    for (const cuda::JoinedProduct& one : p.joined) {
      if (one.node == p.last) continue;
      std::vector<std::byte> unused(p.workspace_bytes(*one.node));
      check_cuda(cudaMemcpy(unused.data(), one.node->workspace, unused.size(), cudaMemcpyDeviceToHost));
      EXPECT_EQ(std::count(unused.begin(), unused.end(), std::byte{0xff}), std::ssize(unused)) << one.out->name;
    }
  }
}

/// The memory plan may reuse the workspace of split k for the result of the last addition, or for a residual that no
/// later node reads.
TEST(MulMatJoined, ResidualOrResultMayOverlapSplitKWorkspace) {
  for (Tensor* Projections::*const moved : {&Projections::residual, &Projections::result}) {
    Projections p(hopper());
    const size_t parts_at = cuda::mul_mat_tiles_workspace(*p.last, hopper(1));
    Tensor& tensor = *(p.*moved);
    constexpr size_t kFourColumns = size_t{4} * 70 * sizeof(float);
    ASSERT_LE(parts_at + kFourColumns + tensor.bytes(), p.workspace_bytes(*p.last));
    std::byte* const to = p.last->workspace + parts_at + kFourColumns;
    check_cuda(cudaMemcpy(to, tensor.data, tensor.bytes(), cudaMemcpyDeviceToDevice));
    check_cuda(cudaDeviceSynchronize());
    tensor.data = to;
    p.run_joined();
  }
}

}  // namespace
}  // namespace shoal::test
