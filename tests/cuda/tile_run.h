// What tests of mul_mat's tiles share: a product on a GPU that is described, with memory and a workspace of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "devices/cuda/ops/mul_mat_tiles.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/dtypes.h"

namespace shoal::test {

inline constexpr std::byte kGuard{0xa5};
inline constexpr size_t kGuardBytes = 256;

/// GPUs with the instructions of warpgroups, and without.
inline cuda::GpuTraits hopper(int processors = 132) {
  return {0, 90, processors, 227 * 1024};
}
inline cuda::GpuTraits ampere(int processors = 132) {
  return {0, 80, processors, 163 * 1024};
}

/// How a product is run: `out` is where the result goes.
using RunTiles = std::function<void(const cuda::LaunchContext& context, Tensor& product, Tensor& out)>;
inline void run_tiles(const cuda::LaunchContext& context, Tensor& product, Tensor&) {
  cuda::mul_mat_tiles_run(context, product);
}

/// Runs a product, and what is joined to it until `out`, of a graph that has nothing else but views. The workspace is
/// as large as that of the product, and not larger.
class TileRun {
 public:
  TileRun(Graph& graph, Tensor& node, TensorValues& leaves, const cuda::GpuTraits& gpu)
      : TileRun(graph, node, node, leaves, gpu, run_tiles) {}
  TileRun(Graph& graph, Tensor& product, Tensor& out, TensorValues& leaves, const cuda::GpuTraits& gpu,
          const RunTiles& run)
      : node_(out) {
    for (Tensor* leaf : graph.leaves()) {
      place(*leaf);
      const std::vector<std::byte> bytes = encode(leaf->dtype, leaves.at(leaf));
      if (!bytes.empty()) check_cuda(cudaMemcpy(leaf->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      if (traits(leaf->dtype).is_quantized) leaves[leaf] = decode(leaf->dtype, bytes, leaf->elements());
    }
    for (Tensor* view : graph.nodes()) {
      if (view->is_view()) view->data = view->view_base->data + view->view_offset;
    }
    place(out);
    workspace_bytes_ = cuda::mul_mat_tiles_workspace(product, gpu);
    const CudaMemory& workspace = memory_.emplace_back(workspace_bytes_ + kGuardBytes);
    product.workspace = workspace.get();
    guard_ = product.workspace + workspace_bytes_;
    check_cuda(cudaMemset(guard_, static_cast<int>(kGuard), kGuardBytes));
    cuda::LaunchContext context{nullptr, gpu};
    check_cuda(cudaStreamCreate(&context.stream));
    run(context, product, out);
    check_cuda(cudaGetLastError());
    check_cuda(cudaStreamSynchronize(context.stream));
    check_cuda(cudaStreamDestroy(context.stream));
  }

  Values values() const {
    std::vector<std::byte> bytes(node_.bytes());
    check_cuda(cudaMemcpy(bytes.data(), node_.data, bytes.size(), cudaMemcpyDeviceToHost));
    return decode(DType::kF32, bytes, node_.elements());
  }
  bool guarded() const {
    std::vector<std::byte> guard(kGuardBytes);
    check_cuda(cudaMemcpy(guard.data(), guard_, kGuardBytes, cudaMemcpyDeviceToHost));
    return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; });
  }
  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  void place(Tensor& tensor) { tensor.data = memory_.emplace_back(tensor.bytes()).get(); }

  Tensor& node_;
  std::vector<CudaMemory> memory_;
  size_t workspace_bytes_ = 0;
  std::byte* guard_ = nullptr;
};

struct Trial {
  Values values;
  size_t workspace_bytes;
};
using Build = std::function<Tensor*(Graph&, TensorContext&)>;
using Change = std::function<void(const Graph&, TensorValues&)>;

inline Trial check(const Build& build, double nmse, const cuda::GpuTraits& gpu = hopper(), const Change& change = {}) {
  Graph graph;
  TensorContext weights;
  Tensor* node = graph.output(build(graph, weights));
  SCOPED_TRACE(to_string(graph));
  EXPECT_TRUE(cuda::mul_mat_tiles_supports(*node));
  TensorValues leaves = random_leaves(graph, 11);
  if (change) change(graph, leaves);
  const TileRun run(graph, *node, leaves, gpu);
  EXPECT_TRUE(run.guarded());
  Trial trial{run.values(), run.workspace_bytes()};
  EXPECT_TRUE(close_to(trial.values, reference_eval(graph, leaves).at(node), {nmse}));
  return trial;
}

/// Halves have 11 bits, which leaves 4e-8 of each operand that is rounded to them; two terms of bf16 have 16.
/// In formats whose scales and minima are products these are rounded too: with weights spread over [-1, 1], a minimum
/// of 1 and scale * code up to 2, that is (2.1e-4^2 + 1.9e-4^2) / (1 / 3), 2.4e-7 more.
/// Beside mxfp4 columns are bf16, of 8 bits: 64 times the error of halves in squares.
inline double bound(DType a, DType b) {
  if (a == DType::kMXFP4) return b == DType::kBF16 ? 1e-11 : 4e-6;
  if (a == DType::kQ2_K || a == DType::kQ4_K || a == DType::kQ5_K) return 5e-7;
  if (traits(a).is_quantized) return 2e-7;
  if (a == DType::kF16) return b == DType::kF32 ? 1e-7 : 1e-12;
  if (a == DType::kBF16) return b == DType::kF32 ? 1e-10 : 1e-12;
  return 1e-11;
}

}  // namespace shoal::test
