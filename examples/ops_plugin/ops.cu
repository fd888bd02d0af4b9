// CUDA kernels of the plug-in's ops. A launcher queues its kernel on the stream of the device and returns. The kernel
// gets copies of its arguments at the launch, so it can be part of a CUDA graph.
#include <cstdio>

#include "graph/external_op_c.h"

namespace {

constexpr int kThreads = 256;

__global__ void lerp(const float* x, const float* y, float t, float* to, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) to[i] = x[i] + t * (y[i] - x[i]);
}

/// A thread computes one element.
__global__ void dot(const float* x, const float* w, float* to, int64_t k, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  double sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(x[i * k + j]) * w[j];
  to[i] = static_cast<float>(sum);
}

int64_t count(const shoal_op_tensor& tensor) {
  return tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
}
const float* floats(const shoal_op_tensor& tensor) {
  return static_cast<const float*>(tensor.data);
}
unsigned blocks(int64_t n) {
  return static_cast<unsigned>((n + kThreads - 1) / kThreads);
}

}  // namespace

extern "C" void launch_lerp(const shoal_op_node* node, const shoal_op_launch* launch) {
  float t = 0;
  std::sscanf(node->args, "%f", &t);
  const int64_t n = count(*node->result);
  lerp<<<blocks(n), kThreads, 0, static_cast<cudaStream_t>(launch->stream)>>>(
      floats(node->sources[0]), floats(node->sources[1]), t, static_cast<float*>(node->result->data), n);
}

extern "C" void launch_dot(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t n = count(*node->result);
  dot<<<blocks(n), kThreads, 0, static_cast<cudaStream_t>(launch->stream)>>>(
      floats(node->sources[0]), floats(node->sources[1]), static_cast<float*>(node->result->data),
      node->sources[0].shape[0], n);
}
