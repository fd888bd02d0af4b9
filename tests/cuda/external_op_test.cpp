// External ops with CUDA kernels, on the emulator. The kernels are queued on the stream of the device, so they can be
// part of a CUDA graph. A meta device of two devices runs the ops on shards.
#include <gmock/gmock.h>

#include "base/error.h"
#include "collectives/cuda/cuda_communicator.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/meta/mesh.h"
#include "tests/support/external_ops.h"
#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const char* const kText =
    "weight %x f32 [7, 5]\nweight %w f32 [7]\n%t = external(%x) {op=\"cuda.twice\"}\n"
    "%d = external(%t, %w) {op=\"cuda.dot\"}\n%y = scale(%d) {scale=2}\noutput %y\n";

__global__ void twice_kernel(const float* x, float* to, int64_t n) {
  const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = 2 * x[i];
}
/// Stores the sums in the workspace first, so that a missing workspace fails.
__global__ void dot_kernel(const float* x, const float* w, float* sums, float* to, int64_t k, int64_t n) {
  const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  sums[i] = 0;
  for (int64_t j = 0; j < k; ++j) sums[i] += x[i * k + j] * w[j];
  to[i] = sums[i];
}

cudaStream_t stream_of(const shoal_op_launch* launch) {
  return static_cast<cudaStream_t>(launch->stream);
}
void launch_twice(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t n = count(*node->result);
  cuda::launch(stream_of(launch), twice_kernel, dim3(static_cast<unsigned>((n + 31) / 32)), dim3(32), 0,
               floats(node->sources[0]), floats(*node->result), n);
}
void launch_dot(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t n = count(*node->result);
  cuda::launch(stream_of(launch), dot_kernel, dim3(static_cast<unsigned>((n + 31) / 32)), dim3(32), 0,
               floats(node->sources[0]), floats(node->sources[1]), static_cast<float*>(launch->workspace),
               floats(*node->result), node->sources[0].shape[0], n);
}
int32_t infer_dot(const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) {
  *result = {SHOAL_OP_F32, {node->sources[0].shape[1], 1, 1, 1}, {}, nullptr};
  return 0;
}
size_t dot_workspace(const shoal_op_node* node, int32_t) {
  return static_cast<size_t>(node->sources[0].shape[1]) * sizeof(float);
}

struct ExternalOpOnCuda : testing::Test {
  ExternalOpOnCuda() {
    dot.kernel.family = twice.kernel.family = "cuda";  // the case of the name does not matter
    dot.kernel.workspace = dot_workspace;
    register_op(twice.op);
    register_op(dot.op);
  }
  ~ExternalOpOnCuda() override {
    unregister_op(twice.op.name);
    unregister_op(dot.op.name);
  }
  /// The expected values of y for the leaves of `loaded`.
  static std::vector<float> expected(const Loaded& loaded) {
    const auto x = read_floats(*loaded.weights.find("x")), w = read_floats(*loaded.weights.find("w"));
    std::vector<float> y(5);
    for (size_t n = 0; n < 5; ++n) {
      for (size_t k = 0; k < 7; ++k) y[n] += 4 * x[n * 7 + k] * w[k];
    }
    return y;
  }
  static void expect_results(Device& device) {
    Loaded loaded(kText, device);
    const auto backend = device.init();
    const auto plan = backend->create_plan(loaded.graph);
    for (int run = 0; run < 3; ++run) {  // later runs replay a CUDA graph
      backend->compute_async(*plan);
      backend->synchronize();
      EXPECT_THAT(read_floats(*loaded.graph.find("y")),
                  testing::Pointwise(testing::FloatNear(1e-4f), expected(loaded)));
    }
  }

  OpOfTest twice{"cuda.twice", "a b -> a b | linear 0", 1, infer_like_first, launch_twice};
  OpOfTest dot{"cuda.dot", "k n, k -> n | sum k", 2, infer_dot, launch_dot};
};

TEST_F(ExternalOpOnCuda, RunsOnOneDevice) {
  CudaMesh gpu(1);
  expect_results(*gpu.devices()[0]);
}

TEST_F(ExternalOpOnCuda, RunsOnShardsOfAMetaDevice) {
  CudaMesh gpu(2);
  meta::MetaOptions options;
  options.communicator = collectives::cuda::make_cuda_communicator;
  const auto split = meta::Layout::split(0, meta::Partition(2, {{5, {0}}, {2, {1}}}));
  const auto device =
      meta::MetaDevice::create(gpu.devices(), callback_for({{"x", split}, {"w", split}}), std::move(options));
  expect_results(*device);
}

TEST_F(ExternalOpOnCuda, NamesRemedyForMissingKernel) {
  register_test_ops();
  CudaMesh gpu(1);
  Loaded loaded("weight %x f32 [7, 5]\n%y = external(%x) {op=\"test.reverse\"}\noutput %y\n", *gpu.devices()[0]);
  EXPECT_THAT(
      [&] { gpu.backend(0).create_plan(loaded.graph); },
      ThrowsMessage<DeviceError>(HasSubstr("op 'test.reverse' has no kernel for CUDA, only for: CPU; register a "
                                           "kernel for CUDA")));
}

}  // namespace
}  // namespace shoal::test
