// The kernel of mul_mat_stream.h. Each file that includes this header compiles the kernel for some weight types.
#pragma once

#include "devices/cuda/granule.h"
#include "devices/cuda/kernels/quantized_column.h"
#include "devices/cuda/kernels/quantized_dot.h"
#include "devices/cuda/ops/mul_mat_stream.h"
#include "devices/cuda/ops/mul_mat_vec_job.h"

namespace shoal::cuda {

/// kStreamBytes is about the number of bytes that arrive during the latency of a load. A block keeps about this number
/// of bytes in flight, and at most kMostStreamBytes.
inline constexpr int kStreamBytes = 64 * 1024, kMostStreamBytes = 96 * 1024;

// Types of streamed weights. Each type defines the size of a step, the form of the column, and functions that multiply.
// The argument `left` of these functions is the number of elements from the current step to the end of the row.

/// Converts columns of k elements to 8-bit integers and stores the converted columns consecutively. All threads of a
/// block must call this function. `column_at` returns the address of a column.
template <int kGroups, class ColumnAt>
__device__ __forceinline__ void quantize_columns(int k, int count, std::byte* to, const ColumnAt& column_at) {
  const int chunks = k / 8, all = count * chunks;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < (all + kWarp - 1) / kWarp * kWarp;  // whole warps iterate
       first += kStreamThreads) {
    float values[8] = {};
    if (first < all) {
      const int column = count == 1 ? 0 : first / chunks;
      load_floats<float>(reinterpret_cast<const std::byte*>(column_at(column) + 8 * (first - column * chunks)), values);
    }
    const QuantizedPart<8> part = quantize_part(values);
    const unsigned at = 8 * first;
    std::byte* const step = to + at / kStepElements * column_step_bytes(kGroups);
    if (first < all) store_part<kGroups>(step, at % kStepElements, part);
  }
}

/// Quantised weights, multiplied by a column of 8-bit integers. In each step, a lane multiplies one or two units of 64
/// elements.
template <DType kType, int kMostUnits = 2>
struct StreamedBlocks {
  using Format = DotFormat<kType>;
  using Place = UnitPlace;
  static constexpr bool kTwoFit = 4 * kStreamWarps * Format::kStepBytes <= kMostStreamBytes;
  static constexpr int kUnits = kTwoFit && Format::kGroups == 2 ? kMostUnits : 1;  // number of units per lane;
                                                                                   // registers limit this number
  static constexpr int kStepElements = kUnits * cuda::kStepElements;
  static constexpr int kStepBytes = kUnits * Format::kStepBytes;
  static constexpr int kAlignment = Format::kAlignment;
  static constexpr int kGroups = Format::kGroups;
  static constexpr bool kFourGroups = kGroups == 4;
  static constexpr bool kPacks = true;  ///< whether a step can read several short rows
  static constexpr int kColumnBytes = kUnits * column_step_bytes(kGroups);

  static __device__ __forceinline__ void put_column(const float* x, int k, const StreamPart& part, std::byte* to) {
    if (part.record == nullptr) return quantize_columns<kGroups>(k, 1, to, [=](int) { return x; });
#pragma unroll 1
    for (int at = 16 * static_cast<int>(threadIdx.x); at < part.record_bytes; at += 16 * kStreamThreads) {
      store_as<uint4>(to + at, load_as<uint4>(part.record + at));
    }
  }

  /// Writes the slots' columns of k elements consecutively to `to`. If all slots have the same column, this column is
  /// written once.
  static __device__ __forceinline__ void put_columns(const ExpertStream& s, const int* slots, int count,
                                                     std::byte* to) {
    if (s.x_stride == 0 || s.part.record) return put_column(s.x, s.k, s.part, to);
    quantize_columns<kGroups>(s.k, count, to, [&](int column) { return s.x + slots[column] * s.x_stride; });
  }
  static __device__ int column_of(int place, int k) {
    return place * (k / kUnitElements);
  }
  /// Computes the byte offsets of a lane's units in the column. The lane's n-th unit is unit `within[n]` of the column.
  static __device__ __forceinline__ void set_offsets(int column, const int (&within)[kUnits], int (&offsets)[kUnits]) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = column + within[i];
      offsets[i] = unit / kWarp * column_step_bytes(kGroups) + unit % kWarp * 16;
    }
  }

  static __device__ __forceinline__ Place place_of(unsigned lane) {
    return Place::template of<Format>(lane);
  }

  static __device__ __forceinline__ void add_products(const std::byte* slot, unsigned before, const std::byte* column,
                                                      unsigned lane, Place at, int left, float& sum) {
    const int first = static_cast<int>(lane) * kUnitElements;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (first + i * cuda::kStepElements >= left) break;
      sum += unit_product(slot, before, column + i * column_step_bytes(kGroups), lane, at, i);
    }
  }
  /// Like add_products, but with one sum per unit. `offsets` contains the byte offsets of the column's units.
  static __device__ __forceinline__ void add_units(const std::byte* slot, unsigned before, const std::byte* column,
                                                   const int (&offsets)[kUnits], unsigned lane, Place at, int left,
                                                   float (&sums)[kUnits]) {
    const int first = static_cast<int>(lane) * kUnitElements;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (first + i * cuda::kStepElements >= left) break;
      sums[i] += unit_product(slot, before, column + offsets[i], 0, at, i);
    }
  }

 private:
  static __device__ __forceinline__ float unit_product(const std::byte* slot, unsigned before, const std::byte* column,
                                                       unsigned lane, Place at, int unit) {
    Unit<kGroups> weights = {};
    const auto* const words = reinterpret_cast<const uint32_t*>(slot + unit * Format::kStepBytes);
    Format::template decode<false>({words, before}, at, 2, weights);
    ColumnUnit<kGroups> x;
    load_column(reinterpret_cast<const uint4*>(column), lane, x);
    return dot_unit<Format>(weights, x);
  }
};

/// f32, f16 and bf16 weights, multiplied by a column of f32. A lane multiplies every 32nd vector of 16 bytes of
/// weights. A vector contains one quad of four weights (f32) or two quads (f16, bf16). In shared memory, a step of the
/// column contains first quad 0 of every vector, then quad 1 of every vector. So neighbouring lanes read neighbouring
/// quads.
template <class T>
struct StreamedFloats {
  struct Place {};
  static constexpr int kStepBytes = 2048;
  static constexpr int kVectors = kStepBytes / 16;
  static constexpr int kElements = 16 / sizeof(T);  ///< number of elements per vector
  static constexpr int kStepElements = kVectors * kElements;
  static constexpr int kAlignment = 16;
  static constexpr bool kFourGroups = false;
  static constexpr bool kPacks = false;
  static constexpr int kUnits = 1;
  static constexpr int kColumnBytes = kStepElements * static_cast<int>(sizeof(float));

  static __device__ __forceinline__ void put_column(const float* x, int k, const StreamPart&, std::byte* to) {
    constexpr int kQuads = kElements / 4;
    for (int quad = static_cast<int>(threadIdx.x); quad < k / 4; quad += kStreamThreads) {
      const int vector = quad / kQuads, step = vector / kVectors;
      store_as<float4>(to + step * kColumnBytes + quad % kQuads * kVectors * 16 + vector % kVectors * 16,
                       load_as<float4>(x + 4 * quad));
    }
  }

  static __device__ __forceinline__ void put_columns(const ExpertStream& s, const int* slots, int count,
                                                     std::byte* to) {
    if (s.x_stride == 0) return put_column(s.x, s.k, s.part, to);
    for (int i = 0; i < count; ++i) put_column(s.x + slots[i] * s.x_stride, s.k, s.part, to + column_of(i, s.k));
  }
  static __device__ int column_of(int place, int k) {
    return place * ((k + kStepElements - 1) / kStepElements) * kColumnBytes;
  }
  static __device__ void set_offsets(int, const int (&)[1], int (&)[1]) {}

  static __device__ __forceinline__ Place place_of(unsigned) { return {}; }

  static __device__ __forceinline__ void add_units(const std::byte* slot, unsigned before, const std::byte* column,
                                                   const int (&)[1], unsigned lane, Place at, int left,
                                                   float (&sums)[1]) {
    add_products(slot, before, column, lane, at, left, sums[0]);
  }

  static __device__ __forceinline__ void add_products(const std::byte* slot, unsigned, const std::byte* column,
                                                      unsigned lane, Place, int left, float& sum) {
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kVectors; i += kWarp) {
      const int v = i + static_cast<int>(lane);
      if (v * kElements >= left) break;
      float weights[kElements];
      load_floats<T>(slot + 16 * v, weights);
#pragma unroll
      for (int j = 0; j < kElements; j += 4) {
        const float4 x = load_as<float4>(column + j / 4 * kVectors * 16 + 16 * v);
        sums[0] = fmaf(weights[j], x.x, sums[0]);
        sums[1] = fmaf(weights[j + 1], x.y, sums[1]);
        sums[0] = fmaf(weights[j + 2], x.z, sums[0]);
        sums[1] = fmaf(weights[j + 3], x.w, sums[1]);
      }
    }
    sum += sums[0] + sums[1];
  }
};

/// Properties of a warp's ring buffer.
template <class Weights>
struct StreamRing {
  static constexpr bool kAligned = Weights::kAlignment % kGranule == 0;  ///< whether rows begin at multiples of 16
                                                                         ///< bytes
  static constexpr int kSlotBytes = Weights::kStepBytes + (kAligned ? 0 : 32);
  static constexpr int kVectors = kSlotBytes / 16 - (kAligned ? 0 : 1);  ///< maximum number of 16-byte vectors over
                                                                         ///< which one step extends
  static constexpr int kWanted = (kStreamBytes - 1) / (kStreamWarps * kSlotBytes) + 1;
  static constexpr int kStages = kWanted < 2 ? 2 : kWanted > 4 ? 4 : kWanted;
  static constexpr int kBytes = kStages * kSlotBytes;
};

/// Returns the number of bytes between the start of the row's first vector and the start of the row. The kernel also
/// reads these bytes, and the bytes after the row in the row's last vector. These bytes may belong to other tensors or
/// be outside the buffer (devices/cuda/granule.h).
template <class Weights>
__device__ __forceinline__ unsigned before_row(uint32_t address) {
  return StreamRing<Weights>::kAligned ? 0 : address % kGranule;
}

/// Copies the steps of a warp's rows to the warp's ring buffer, in order. A lane copies every 32nd vector. If kItems is
/// true, a table of items contains the addresses of the rows.
template <class Weights, bool kItems = false>
class StreamCopies {
  using Ring = StreamRing<Weights>;

 public:
  /// Copies the items `first`, `first` + kStreamWarps, and so on, up to `end` - 1. `row` is the address of the lane's
  /// first vector in item `first`.
  __device__ __forceinline__ StreamCopies(const StreamPart& part, const std::byte* row, int first, int end,
                                          std::byte* ring, unsigned lane)
      : lane_bytes_(16 * lane),
        to_(ring + lane_bytes_),
        end_(end),
        row_left_(part.row_bytes - static_cast<int>(lane_bytes_)),
        row_jump_(part.row_jump),
        from_(row + kBias),
        item_(first),
        left_(first < end ? row_left_ : kNone) {}
  __device__ __forceinline__ StreamCopies(const StreamItem* items, int row_bytes, int first, int end, std::byte* ring,
                                          unsigned lane)
      : lane_bytes_(16 * lane),
        to_(ring + lane_bytes_),
        end_(end),
        row_left_(row_bytes - static_cast<int>(lane_bytes_)),
        row_jump_(0),
        items_(items),
        from_(first < end ? items[first].row + lane_bytes_ + kBias : nullptr),
        item_(first),
        left_(first < end ? row_left_ : kNone) {}

  /// Starts to copy the next step to byte offset `slot` of the ring. If no step is left, this function copies nothing.
  /// All lanes must call this function.
  __device__ __forceinline__ void next(int slot) {
    const unsigned before = before_row<Weights>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from_)));
    const std::byte* const from = from_ - before;
    const SharedPlace to = to_ + slot;
#pragma unroll
    for (int i = 0; i < 16 * Ring::kVectors; i += 16 * kWarp) {
      const bool in_slot = i + 16 * kWarp <= 16 * Ring::kVectors || lane_bytes_ < 16 * Ring::kVectors - i;
      if (left_ + static_cast<int>(before) > i && in_slot) copy_async_16(to + i, from + (i - kBias));
    }
    copy_async_commit();
    const bool ends = left_ <= Weights::kStepBytes - static_cast<int>(lane_bytes_);
    from_ += ends ? row_jump_ : Weights::kStepBytes;
    left_ -= Weights::kStepBytes;
    if (ends) {
      item_ += kStreamWarps;
      left_ = item_ < end_ ? row_left_ : kNone;
      if (kItems && item_ < end_) from_ = items_[item_].row + lane_bytes_ + kBias;
    }
  }

 private:
  /// Offset in bytes that is added to the address in from_. A copy instruction can access only the 2048 bytes before
  /// its address operand and the 2048 bytes after this operand.
  static constexpr int kBias = Ring::kAligned && 16 * Ring::kVectors > 2048 ? 1024 : 0;
  static constexpr int kNone = -static_cast<int>(kGranule);  ///< value of left_ if no row is left

  const unsigned lane_bytes_;
  const SharedPlace to_;
  const int end_, row_left_, row_jump_;
  const StreamItem* const items_ = nullptr;
  const std::byte* from_;  ///< address of the lane's first vector in the next step, plus kBias; not rounded down to a
                           ///< multiple of 16 bytes
  int item_;
  int left_;  ///< number of bytes from from_ - kBias to the end of the row
};

/// Layout of a block's shared memory.
struct StreamMemory {
  float* results;  ///< array of kStreamResults floats
  std::byte *rings, *columns;

  __device__ StreamMemory(std::byte* memory, size_t ring_bytes)
      : results(reinterpret_cast<float*>(memory)),
        rings(memory + kStreamResults * sizeof(float)),
        columns(rings + ring_bytes) {}
};

/// Stores the results of a block's rows. The rows begin at row `first` of the part.
__device__ __forceinline__ void store_rows(const Stream& s, const StreamPart& part, const float* results,
                                           unsigned first, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kStreamThreads) {
    float sum = s.gated ? activate_gate(s.glu, results[2 * i]) * results[2 * i + 1] : results[i];
    if (part.addend) sum += part.addend[first + i];
    part.c[first + i] = sum;
  }
}

/// Computes one block's rows of a StreamPart (mul_mat_stream.h). Calls `begin` after the previous kernel has ended.
/// Calls `finish` with the results.
template <class Weights, class Begin, class Finish>
__device__ __forceinline__ void stream_part(const Stream& s, const StreamPart& part, const StreamMemory& memory,
                                            const Begin& begin, const Finish& finish) {
  using Ring = StreamRing<Weights>;
  const unsigned lane = kept(threadIdx.x % kWarp), warp = kept(threadIdx.x / kWarp);
  const int block = static_cast<int>(blockIdx.x);
  const unsigned first = (block - part.first_block) * part.block_rows;

  // The warp computes the block's items `warp`, `warp` + kStreamWarps, and so on. If the product is gated, even items
  // are rows of the gate, and odd items are rows of `up`.
  const unsigned gated = s.gated;
  const int last = kept(part.last_items),
            usual = kept(part.block_items);  // kept() loads both values before the code selects one
  const int end = block == part.last_block ? last : usual;
  const std::byte* const block_row = kept(part.a[warp % 2] + static_cast<uint64_t>(first) * part.row_stride);
  const std::byte* const row = block_row + ((warp >> gated) * part.row_stride + 16 * lane);  // the lane's first vector
  std::byte* const ring = memory.rings + warp * Ring::kBytes;
  float* const results = memory.results;
  StreamCopies<Weights> copies(part, row, static_cast<int>(warp), end, ring, lane);
#pragma unroll 1
  for (int at = 0; at < Ring::kBytes; at += Ring::kSlotBytes) copies.next(at);

  wait_for_previous();
  begin();
  Weights::put_column(s.x, s.k, part, memory.columns);
  __syncthreads();
  const typename Weights::Place at = Weights::place_of(lane);
  auto row_address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row));
  int slot = 0;
#pragma unroll 1
  for (int item = static_cast<int>(warp); item < end; item += kStreamWarps) {
    const unsigned before = before_row<Weights>(row_address);
    const std::byte* column = memory.columns;
    int left = s.k;
    float sum = 0;
#pragma unroll 1
    do {
      copy_async_wait<Ring::kStages - 1>();
      __syncwarp();
      Weights::add_products(ring + slot, before, column, lane, at, left, sum);
      __syncwarp();
      copies.next(slot);
      slot = slot + Ring::kSlotBytes == Ring::kBytes ? 0 : slot + Ring::kSlotBytes;
      column += Weights::kColumnBytes;
      left -= Weights::kStepElements;
    } while (left > 0);
    sum = warp_sum(sum);
    if (lane == 0) results[item] = sum;
    row_address += static_cast<uint32_t>(part.row_step);
  }
  __syncthreads();
  finish(results, first, end >> gated);
}

/// Computes one block's rows of a StreamPart and stores the results in c.
template <class Weights>
__device__ __forceinline__ void stream_part(const Stream& s, const StreamPart& part, const StreamMemory& memory) {
  stream_part<Weights>(
      s, part, memory, [] {},
      [&](const float* results, unsigned first, int rows) { store_rows(s, part, results, first, rows); });
}

__device__ __forceinline__ const StreamPart& part_of_block(const Stream& s) {
  const int block = static_cast<int>(blockIdx.x);
  return s.parts[block >= s.parts[2].first_block ? 2 : block >= s.parts[1].first_block ? 1 : 0];
}

template <class Weights>
__device__ __forceinline__ void stream(const Stream& s) {
  SHOAL_DYNAMIC_SHARED(std::byte, bytes);
  let_next_start();
  const StreamMemory memory(bytes, kStreamWarps * StreamRing<Weights>::kBytes);
  stream_part<Weights>(s, part_of_block(s), memory);
}

}  // namespace shoal::cuda
