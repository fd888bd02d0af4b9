// The kernels of the p2p communicator. Each function queues the kernel of one rank on that rank's stream and does not
// wait. Every rank must queue the same kernel with the same counts. docs/p2p.md lists the steps and bytes of each
// kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/p2p/slots.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::collectives::p2p {

namespace cuda = shoal::cuda;

/// The dtype of elements in memory and on the wire. kF32AsBF16 is f32 in memory and bf16 on the wire.
enum class Element : uint8_t { kF32, kF32AsBF16, kF16, kBF16, kI32 };

/// Bytes of one element on the wire.
constexpr int wire_bytes(Element element) {
  return element == Element::kF32 || element == Element::kI32 ? 4 : 2;
}

struct Reduction {
  Element element = Element::kF32;
  const void* in = nullptr;
  void* out = nullptr;
};

/// Largest number of elements that all_reduce_one_shot() accepts.
constexpr int64_t one_shot_capacity(Element element, int blocks) {
  return static_cast<int64_t>(blocks) * kPackets * (kPacketDataBytes / wire_bytes(element));
}
/// `count` must be positive. `out` and `in` may be the same array.
void all_reduce_one_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count);
void all_reduce_two_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count);

/// Number of elements per rank, in rank order.
struct Parts {
  int64_t count[kMaxRanks];
};
void reduce_scatter(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                    const Parts& parts);

/// Byte ranges for each rank, this rank included: the range of `in` to send to the rank, and the range of `out` to
/// receive from the rank.
struct Routes {
  int64_t send_offset[kMaxRanks];
  int64_t send_bytes[kMaxRanks];
  int64_t receive_offset[kMaxRanks];
  int64_t receive_bytes[kMaxRanks];
  int64_t most_bytes;  ///< largest number of bytes that any rank sends to one rank; equal on all ranks
};
/// Runs a collective that does not sum.
void move(const cuda::LaunchContext& context, const Mesh& mesh, const void* in, void* out, const Routes& routes);

/// For each row: sum = residual + all_reduce(in); normed = sum / sqrt(mean(sum^2) + epsilon) * weight. Elements in
/// memory are f32. `sum` and `normed` may each equal `in` or `residual`, but not each other. `weight` may be null.
/// `sum` may be null if the caller does not need it. The kernel writes quantised copies of `normed` to the addresses in
/// `record` that are not null. If `record` has such an address, there must be one row.
struct NormReduction {
  Element element = Element::kF32;  ///< kF32 or kF32AsBF16
  const float* in = nullptr;
  const float* residual = nullptr;
  const float* weight = nullptr;
  float* sum = nullptr;
  float* normed = nullptr;
  int64_t row = 0;   ///< number of elements in a row
  int64_t rows = 0;  ///< number of rows; at least 1
  float epsilon = 0;
  cuda::ColumnRecord record = {};

  /// Whether all arrays except `in` consist of whole quads (4 elements) aligned to 16 bytes.
  bool has_whole_quads() const {
    const auto addresses = reinterpret_cast<uintptr_t>(residual) | reinterpret_cast<uintptr_t>(weight) |
                           reinterpret_cast<uintptr_t>(sum) | reinterpret_cast<uintptr_t>(normed);
    return row % 4 == 0 && addresses % 16 == 0;
  }
};
/// Maximum number of elements in a row of all_reduce_norm(). The row must fit into the packets of one block. The limit
/// of 8192 also bounds the registers and shared memory of the kernel.
constexpr int64_t norm_capacity(Element element) {
  return one_shot_capacity(element, 1) < 8192 ? one_shot_capacity(element, 1) : 8192;
}
/// Number of parts into which product_norm() divides a row (product_norm.h). Different blocks can finish different
/// parts.
constexpr int parts_of_row(int64_t row) {
  return row <= 4 * kThreads ? 1 : row <= 8 * kThreads ? 2 : 4;
}
void all_reduce_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction);

}  // namespace shoal::collectives::p2p
