// Runs a graph's nodes one after the other with the kernels of devices/cuda, without a device or plans around them: for
// tests of single ops on whatever the CUDA runtime finds, a GPU or the emulator. Single-threaded.
//
//   check_case({Op::kScale, "name", build, tolerance}, seed);  // of one node, see tests/ops/op_cases.h
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/cuda/op_kernel.h"
#include "graph/text.h"
#include "tests/ops/op_cases.h"
#include "tests/support/reference.h"

namespace shoal::test {

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorName(error));
}

/// Memory of the current device, full of NaN.
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

/// A graph with memory for every tensor; nothing is overwritten in place. Takes the memory back at the end.
class CudaRun {
 public:
  /// `leaves` has values for all leaves; those of quantised ones become what is stored.
  CudaRun(Graph& graph, TensorValues& leaves) : graph_(graph) {
    check_cuda(cudaStreamCreate(&context.stream));
    const auto ask = [](cudaDeviceAttr attribute) {
      int value = 0;
      check_cuda(cudaDeviceGetAttribute(&value, attribute, 0));
      return value;
    };
    context.gpu.processors = ask(cudaDevAttrMultiProcessorCount);
    context.gpu.compute_capability =
        10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
    context.gpu.shared_bytes_per_block =
        static_cast<size_t>(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)) - 1024;  // as CudaFamily does
    const size_t counters = static_cast<size_t>(context.gpu.processors) * sizeof(uint32_t);
    context.counters = reinterpret_cast<uint32_t*>(zeros(counters));
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
    check_cuda(cudaStreamSynchronize(context.stream));
  }
  /// Memory that a node's kernel needs besides its operands and result.
  void give_workspace(Tensor& node) {
    const cuda::OpKernel& kernel = cuda::kernel_for(node.op);
    if (!kernel.workspace) return;
    memory_.emplace_back(kernel.workspace(node, context.gpu));
    node.workspace = memory_.back().get();
  }
  std::byte* zeros(size_t bytes) {
    std::byte* const memory = memory_.emplace_back(bytes).get();
    check_cuda(cudaMemset(memory, 0, bytes));
    return memory;
  }

  /// Stored bytes of a tensor without gaps.
  std::vector<std::byte> bytes(const Tensor& tensor) const {
    std::vector<std::byte> result(tensor.bytes());
    if (!result.empty()) check_cuda(cudaMemcpy(result.data(), tensor.data, result.size(), cudaMemcpyDeviceToHost));
    return result;
  }
  Values values(const Tensor& tensor) const { return decode(tensor.dtype, bytes(tensor), tensor.elements()); }

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

  Graph& graph_;
  std::vector<CudaMemory> memory_;
  std::vector<Tensor*> placed_;
};

/// A conformance case against the float64 reference, within the case's tolerance; caches too.
inline void check_case(const OpCase& one, uint64_t seed) {
  SCOPED_TRACE(one.name);
  Graph graph;
  TensorContext weights;
  const Tensor* node = graph.output(one.build(graph, weights));
  SCOPED_TRACE(to_string(graph));
  TensorValues leaves = random_leaves(graph, seed);
  CudaRun cuda(graph, leaves);
  cuda.run();
  if (::testing::Test::HasFatalFailure()) return;
  const TensorValues expected = reference_eval(graph, leaves);
  EXPECT_TRUE(close_to(cuda.values(*node), expected.at(node), one.tolerance));
  for (const Tensor* leaf : graph.leaves()) {
    if (leaf->role != Role::kCache) continue;
    EXPECT_TRUE(close_to(cuda.values(*leaf), expected.at(leaf), one.tolerance));
  }
}

}  // namespace shoal::test
