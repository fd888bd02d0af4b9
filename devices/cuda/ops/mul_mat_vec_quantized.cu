// The kernels of mul_mat_vec.h for quantised weights. Each warp has a ring buffer of steps (quantized_dot.h) in shared
// memory. For every format, asynchronous copies of 16 bytes fill the ring, so bytes in flight need no registers. If the
// address of a row is not a multiple of 16, each step copies at most one additional vector of 16 bytes.
#include "devices/cuda/granule.h"
#include "devices/cuda/kernels/quantized_dot.h"
#include "devices/cuda/ops/mul_mat_vec_job.h"

namespace shoal::cuda {
namespace {

/// Approximate number of bytes that a warp keeps in flight.
constexpr int kRingBytes = 7168;

template <class Format, int kRows>
struct Ring {
  /// Number of bytes of the ring for one step of one row. This number includes the rounding to 16 bytes at both ends of
  /// the step. It also includes the bytes that shifted loads read past the end of the step.
  static constexpr int kSlotBytes = Format::kStepBytes + 32;
  static constexpr int kVectors = Format::kStepBytes / 16 + 1;
  static constexpr int kFits = kRingBytes / (kRows * kSlotBytes);
  static constexpr int kStages = kFits < 2 ? 2 : kFits > 4 ? 4 : kFits;
  static constexpr int kBytes = kStages * kRows * kSlotBytes;
  static_assert(Format::kStepBytes % 16 == 0);
};

/// Returns the number of bytes between the start of the row's first vector and the start of the row. The kernel also
/// reads these bytes, and the bytes after the row in the row's last vector. These bytes may belong to other tensors or
/// be outside the buffer (devices/cuda/granule.h).
__device__ inline unsigned bytes_before(const std::byte* row) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(row) % kGranule);
}

/// Starts to copy `bytes` bytes of a row. The copy begins at byte `first` of the row, and `first` is a multiple of 16.
template <int kVectors>
__device__ __forceinline__ void copy_step(std::byte* slot, const std::byte* row, int64_t first, int bytes, int lane) {
  const int before = bytes_before(row);
  const std::byte* const from = row + first - before;
#pragma unroll
  for (int i = 0; i < kVectors; i += kWarp) {
    if (16 * (i + lane) < before + bytes) copy_async_16(slot + 16 * (i + lane), from + 16 * (i + lane));
  }
}

/// Rotates the columns by kBy: column c + kBy becomes column c, and the first kBy columns become the last columns.
template <int kBy, int kRows, int kColumns>
__device__ __forceinline__ void rotate_columns(float (&sums)[kRows * kColumns], uint32_t (&x)[kColumns]) {
  float old_sums[kRows * kColumns];
  uint32_t old_x[kColumns];
#pragma unroll
  for (int i = 0; i < kRows * kColumns; ++i) old_sums[i] = sums[i];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) old_x[c] = x[c];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int from = (c + kBy) % kColumns;
    x[c] = old_x[from];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r * kColumns + c] = old_sums[r * kColumns + from];
  }
}

template <DType kType, int kRows, int kColumns>
__global__ void __launch_bounds__(kVecThreads, vec_blocks(kColumns, DotFormat<kType>::kWide)) quantized_vec(Product p) {
  using Format = DotFormat<kType>;
  using Slots = Ring<Format, kRows>;
  constexpr int kGroups = Format::kGroups, kMost = kRows == 4 ? 2 : 4, kTurn = kColumns < kMost ? kColumns : kMost;
  SHOAL_DYNAMIC_SHARED(std::byte, rings);
  const WarpPlace<kRows> at(p);
  const Job job = job_of(p, at.job, kColumns);
  if (job.count == 0) return;
  if (job.matrix < 0) return store_zeros(p, at, job);

  std::byte* const ring = rings + at.warp * Slots::kBytes;
  // Formats with four groups have a scale for every 16 elements. Two units of such a format cover the same 128
  // elements.
  constexpr int kTogether = kGroups == 4 ? 2 : 1;
  const int units = (p.k + kTogether * kUnitElements - 1) / (kTogether * kUnitElements) * kTogether;
  const int steps = (p.k + kStepElements - 1) / kStepElements;
  const int64_t row_bytes = static_cast<int64_t>(p.k / Quantized<kType>::kElements) * Format::kBlockBytes;
  const std::byte* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = at.row_of(p, job.matrix, r);
  const auto copy = [&](int step, int slot) {
    const int64_t first = static_cast<int64_t>(step) * Format::kStepBytes, left = row_bytes - first;
    const int bytes = left < Format::kStepBytes ? static_cast<int>(left) : Format::kStepBytes;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      copy_step<Slots::kVectors>(ring + (slot * kRows + r) * Slots::kSlotBytes, rows[r], first, bytes, at.lane);
    }
  };

#pragma unroll 1
  for (int i = 0; i < Slots::kStages; ++i) {
    const int step = at.part + i * p.split;
    if (step < steps) copy(step, i);
    copy_async_commit();
  }
  uint32_t x[kColumns];
  find_columns(p, at.job, job, at.lane, x);
  const UnitPlace place = UnitPlace::of<Format>(at.lane);
  float sums[kRows * kColumns] = {};
  int slot = 0;
  for (int step = at.part; step < steps; step += p.split) {
    const int unit = step * (kStepElements / kUnitElements) + at.lane;
    const auto* const column_at =
        reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(step) * column_step_bytes(kGroups));
    copy_async_wait<Slots::kStages - 1>();
    __syncwarp();
    if (unit < units) {
      Unit<kGroups> weights[kRows] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto* words = reinterpret_cast<const uint32_t*>(ring + (slot * kRows + r) * Slots::kSlotBytes);
        const int blocks = (unit + 1) * kUnitElements > p.k ? 1 : 2;
        Format::template decode<true>({words, bytes_before(rows[r])}, place, blocks, weights[r]);
      }
      // Each iteration processes kTurn columns. Without this loop, the compiler would load all columns together and
      // need more registers. After the last iteration, the columns have their original order.
#pragma unroll 1
      for (int turn = 0; turn < kColumns / kTurn; ++turn) {
        if (turn * kTurn < job.count) {
#pragma unroll
          for (int c = 0; c < kTurn; ++c) {
            ColumnUnit<kGroups> column;
            load_column(column_at + x[c], at.lane, column);
            if (kColumns == kTurn && c >= job.count) break;
#pragma unroll
            for (int r = 0; r < kRows; ++r) sums[r * kColumns + c] += dot_unit<Format>(weights[r], column);
          }
        }
        if (kColumns > kTurn) rotate_columns<kTurn, kRows, kColumns>(sums, x);
      }
    }
    __syncwarp();
    const int next = step + Slots::kStages * p.split;
    if (next < steps) copy(next, slot);
    copy_async_commit();
    slot = slot + 1 == Slots::kStages ? 0 : slot + 1;
  }
  finish<kRows, kColumns>(p, at, job, sums);
}

template <DType kType, int kRows, int kColumns>
constexpr VecKernel quantized_kernel() {
  return {quantized_vec<kType, kRows, kColumns>, kRows, kColumns,
          kVecWarps * static_cast<size_t>(Ring<DotFormat<kType>, kRows>::kBytes)};
}

template <DType kType>
constexpr VecKernels quantized_kernels() {
  constexpr int kManyRows = DotFormat<kType>::kWide ? 2 : 4;  // the number of registers per thread limits kManyRows
  return {quantized_kernel<kType, 2, 2>(), quantized_kernel<kType, kManyRows, 8>()};
}

}  // namespace

#define SHOAL_QUANTIZED(id, ...) const VecKernels kVec##id = quantized_kernels<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
