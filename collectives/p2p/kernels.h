// The kernels of the p2p communicator, each queued by one function: one rank's side, on that rank's stream,
// without waiting. Every rank must queue the same with the same counts. Their steps and bytes: docs/p2p.md.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/p2p/slots.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::collectives::p2p {

namespace cuda = shoal::cuda;

/// What is summed, and how it travels.
enum class Element : uint8_t { kF32, kF32AsBF16, kF16, kBF16, kI32 };

/// Bytes of one element on the wire, and in memory.
constexpr int wire_bytes(Element element) {
  return element == Element::kF32 || element == Element::kI32 ? 4 : 2;
}

struct Reduction {
  Element element = Element::kF32;
  const void* in = nullptr;
  void* out = nullptr;
};

/// Most elements that all_reduce_one_shot() takes.
constexpr int64_t one_shot_capacity(Element element, int blocks) {
  return static_cast<int64_t>(blocks) * kPackets * (kPacketDataBytes / wire_bytes(element));
}
/// count > 0; `out` may be `in`.
void all_reduce_one_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count);
void all_reduce_two_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count);

/// Elements for each rank, in rank order.
struct Parts {
  int64_t count[kMaxRanks];
};
void reduce_scatter(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                    const Parts& parts);

/// Which bytes of `in` go to each rank, and which bytes of `out` come from each, this rank included.
struct Routes {
  int64_t send_offset[kMaxRanks];
  int64_t send_bytes[kMaxRanks];
  int64_t receive_offset[kMaxRanks];
  int64_t receive_bytes[kMaxRanks];
  int64_t most_bytes;  ///< of any rank to any other: the same on all ranks
};
/// The collectives that do not sum.
void move(const cuda::LaunchContext& context, const Mesh& mesh, const void* in, void* out, const Routes& routes);

/// sum = residual + all_reduce(in); normed = sum / sqrt(mean(sum^2) + epsilon) * weight, by rows. f32 in memory. The
/// pointers `sum` and `normed` may be that of `in` or `residual`, but not equal; `weight` may be null,
/// and `sum` where it is not wanted. The record is of `normed`, which is one row then.
struct NormReduction {
  Element element = Element::kF32;  ///< kF32 or kF32AsBF16
  const float* in = nullptr;
  const float* residual = nullptr;
  const float* weight = nullptr;
  float* sum = nullptr;
  float* normed = nullptr;
  int64_t row = 0;   ///< elements
  int64_t rows = 0;  ///< > 0
  float epsilon = 0;
  cuda::ColumnRecord record = {};

  /// Whole quads, aligned to 16, in all but `in`.
  bool has_whole_quads() const {
    const auto addresses = reinterpret_cast<uintptr_t>(residual) | reinterpret_cast<uintptr_t>(weight) |
                           reinterpret_cast<uintptr_t>(sum) | reinterpret_cast<uintptr_t>(normed);
    return row % 4 == 0 && addresses % 16 == 0;
  }
};
/// Longest row of all_reduce_norm(); its shared memory holds one, and its packets.
constexpr int64_t norm_capacity(Element element) {
  return one_shot_capacity(element, 1) < 8192 ? one_shot_capacity(element, 1) : 8192;
}
/// The parts of a row that blocks may finish apart (product_norm.h).
constexpr int parts_of_row(int64_t row) {
  return row <= 4 * kThreads ? 1 : row <= 8 * kThreads ? 2 : 4;
}
void all_reduce_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction);

}  // namespace shoal::collectives::p2p
