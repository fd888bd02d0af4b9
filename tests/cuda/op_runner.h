// Runs the nodes of a graph one after the other with the kernels of devices/cuda, without devices or plans. This file
// is for tests of single ops on a GPU or on the emulator. All functions are single-threaded.
//
//   check_case({Op::kScale, "name", build, tolerance}, seed);  // a case of tests/ops/op_cases.h
//   check_launch(build, tolerance, gpu, [](CudaRun& run, Tensor& out) { queue(run.context, *out.src[0], out); });
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/cuda/op_kernel.h"
#include "graph/text.h"
#include "tests/ops/op_cases.h"
#include "tests/support/reference.h"

namespace shoal::test {

using Build = std::function<Tensor*(Graph&, TensorContext&)>;

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorName(error));
}

/// Memory of the current device, filled with NaN.
class CudaMemory {
 public:
  explicit CudaMemory(size_t bytes) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes + 1));
    memory_.reset(static_cast<std::byte*>(memory));
    check_cuda(cudaMemset(memory, 0xff, bytes + 1));
  }
  std::byte* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

/// Traits of the current GPU.
inline cuda::GpuTraits current_gpu() {
  const auto ask = [](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, attribute, 0));
    return value;
  };
  return {.compute_capability = 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor),
          .processors = ask(cudaDevAttrMultiProcessorCount),
          .shared_bytes_per_block =  // CudaFamily uses the same formula
          static_cast<size_t>(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)) - 1024};
}

/// A graph in which all tensors have separate memory, so no node overwrites its source. The destructor frees the
/// memory.
class CudaRun {
 public:
  /// `leaves` contains the values of all leaves. For a quantised leaf, the constructor replaces these values with the
  /// rounded values that the leaf stores.
  CudaRun(Graph& graph, TensorValues& leaves, const cuda::GpuTraits& gpu = current_gpu())
      : graph_(graph), leaves_(leaves) {
    context.gpu = gpu;
    check_cuda(cudaStreamCreate(&context.stream));
    context.counters = reinterpret_cast<uint32_t*>(zeros(cuda::kCounters * sizeof(uint32_t)));
    for (Tensor* leaf : graph.leaves()) {
      place(*leaf, leaf->bytes());
      const std::vector<std::byte> bytes = encode(leaf->dtype, leaves.at(leaf));
      if (!bytes.empty()) check_cuda(cudaMemcpy(leaf->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      if (traits(leaf->dtype).is_quantized) leaves[leaf] = decode(leaf->dtype, bytes, leaf->elements());
    }
    for (Tensor* node : graph.nodes()) {
      if (node->is_view()) {
        node->data = node->view_base->data + node->view_offset;
        placed_.push_back(node);
      } else {
        place(*node, node->bytes());
      }
    }
  }
  CudaRun(const CudaRun&) = delete;
  CudaRun& operator=(const CudaRun&) = delete;
  ~CudaRun() {
    cudaStreamDestroy(context.stream);
    for (Tensor* tensor : placed_) tensor->data = tensor->workspace = nullptr;
  }

  void run() {
    for (Tensor* node : graph_.nodes()) {
      if (info(node->op).kind == OpKind::kCompute && !node->empty()) run_node(*node);
    }
    wait();
  }
  /// Waits for queued work. Fails the test if a kernel wrote past the end of a workspace.
  void wait() const {
    check_cuda(cudaGetLastError());
    check_cuda(cudaStreamSynchronize(context.stream));
    for (const std::byte* guard : guards_) {
      std::vector<std::byte> bytes(kGuardBytes);
      check_cuda(cudaMemcpy(bytes.data(), guard, kGuardBytes, cudaMemcpyDeviceToHost));
      EXPECT_EQ(bytes, std::vector(kGuardBytes, std::byte{0xff}));
    }
  }
  /// Gives a node the scratch memory that its kernel requires.
  void give_workspace(Tensor& node) {
    const cuda::OpKernel& kernel = cuda::kernel_for(node.op);
    if (kernel.workspace) give_workspace(node, kernel.workspace(node, context.gpu));
  }
  void give_workspace(Tensor& node, size_t bytes) {
    node.workspace = memory_.emplace_back(bytes + kGuardBytes).get();
    guards_.push_back(node.workspace + bytes);
  }
  std::byte* zeros(size_t bytes) {
    std::byte* const memory = memory_.emplace_back(bytes).get();
    check_cuda(cudaMemset(memory, 0, bytes));
    return memory;
  }

  /// Stored bytes of a contiguous tensor.
  std::vector<std::byte> bytes(const Tensor& tensor) const {
    std::vector<std::byte> result(tensor.bytes());
    if (!result.empty()) check_cuda(cudaMemcpy(result.data(), tensor.data, result.size(), cudaMemcpyDeviceToHost));
    return result;
  }
  Values values(const Tensor& tensor) const { return decode(tensor.dtype, bytes(tensor), tensor.elements()); }
  /// Compares a tensor with the float64 reference.
  void expect(const Tensor& tensor, const Tolerance& tolerance) const {
    EXPECT_TRUE(close_to(values(tensor), reference_eval(graph_, leaves_).at(&tensor), tolerance)) << describe(tensor);
  }

  cuda::LaunchContext context;

 private:
  void place(Tensor& tensor, size_t bytes) {
    memory_.emplace_back(bytes);
    tensor.data = memory_.back().get();
    placed_.push_back(&tensor);
  }

  void run_node(Tensor& node) {
    const cuda::OpKernel& kernel = cuda::kernel_for(node.op);
    ASSERT_TRUE(kernel.run && kernel.supports(node)) << describe(node);
    give_workspace(node);
    kernel.run(context, node);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess) << describe(node);
  }

  static constexpr size_t kGuardBytes = 256;

  Graph& graph_;
  TensorValues& leaves_;
  std::vector<CudaMemory> memory_;
  std::vector<const std::byte*> guards_;  ///< start of the guard bytes after each workspace
  std::vector<Tensor*> placed_;
};

/// Runs `launch` to compute the last node from the leaves. Compares this node and all caches with the float64
/// reference.
inline void check_launch(const Build& build, const Tolerance& tolerance, const cuda::GpuTraits& gpu,
                         const std::function<void(CudaRun& run, Tensor& out)>& launch, uint64_t seed = 11) {
  Graph graph;
  TensorContext weights;
  Tensor* out = graph.output(build(graph, weights));
  SCOPED_TRACE(to_string(graph));
  TensorValues leaves = random_leaves(graph, seed);
  CudaRun run(graph, leaves, gpu);
  launch(run, *out);
  if (::testing::Test::HasFatalFailure()) return;
  run.wait();
  run.expect(*out, tolerance);
  for (const Tensor* leaf : graph.leaves()) {
    if (leaf->role == Role::kCache) run.expect(*leaf, tolerance);
  }
}

/// Runs a conformance case and compares the result with the float64 reference.
inline void check_case(const OpCase& one, uint64_t seed) {
  SCOPED_TRACE(one.name);
  check_launch(
      one.build, one.tolerance, current_gpu(), [](CudaRun& run, Tensor&) { run.run(); }, seed);
}

}  // namespace shoal::test
