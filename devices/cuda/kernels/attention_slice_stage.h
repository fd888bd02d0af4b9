// Copies slices of KV rows into shared memory for attention_slices.h. A slice of K is 64 rows by 64 columns; a slice of
// V is 16 rows by up to 288 columns. The copies are asynchronous and do not convert elements. After the copies have
// arrived, the lanes that have copied a row convert this row in place to 16-bit floats. So no barrier is needed between
// copy and conversion. Conversions:
//
//   f16, bf16      no conversion
//   q8_0           K: the integers in f16 (exact); V: the values as sums of two bf16 numbers (high and low part)
//
// In shared memory, a row consists of its high parts, its low parts if there are any, and 16 additional bytes. These
// bytes put the rows of a fragment in different banks. For K in q8_0, these 16 bytes also contain the scales of the
// row's two blocks. `rows` contains the row of each key of the slice (KeyRows::of()). Keys without a row are not read
// and become zeros. Padding of the columns to a multiple of 16 also becomes zeros.
#pragma once

#include "devices/cuda/kernels/attention_parts.h"

namespace shoal::cuda::attention {

inline constexpr int kSliceWarps = 8;        ///< number of warps per block
inline constexpr int kSliceColumns = 64;     ///< number of columns in a slice of K
inline constexpr int kSliceKeys = 16;        ///< number of rows in a slice of V
inline constexpr int kSliceMostKeys = 576;   ///< largest number of columns of K and of V
inline constexpr int kSliceMostWidth = 288;  ///< largest number of columns of V per block
inline constexpr int kSlots = 3;             ///< number of slots in shared memory: one slot is in use while copies fill
                                             ///< the other two slots

__host__ __device__ inline int up_to_16(int columns) {
  return (columns + 15) / 16 * 16;
}
/// Number of parts into which the e columns of V are divided. Each part has its own blocks.
__host__ __device__ inline int slice_parts(int e) {
  return (e + kSliceMostWidth - 1) / kSliceMostWidth;
}
/// Number of columns per part. The last part may have fewer columns. The number is a multiple of 32, because a q8_0
/// block has 32 columns.
__host__ __device__ inline int slice_width(int e) {
  const int parts = slice_parts(e);
  return ((e + parts - 1) / parts + 31) / 32 * 32;
}

/// K or V of one KV head. kLanes lanes of a warp copy a row. Each lane copies parts of two rows, one after the other.
template <int kLanes>
struct Slices {
  static constexpr bool kKeysSide = kLanes == 8;
  static constexpr int kRowsOfWarp = 32 / kLanes, kRowsOfPass = kSliceWarps * kRowsOfWarp;
  static constexpr int kChunks = kKeysSide ? 2 : 3;  ///< largest number of chunks (of four columns) per lane
  static constexpr int kBlockBytes = 34;             ///< bytes of a q8_0 block: an f16 scale and 32 integers

  const std::byte* data;
  int64_t stride;
  DType dtype;
  int columns;  ///< number of columns of the head
  int width;    ///< number of columns of a slice; a multiple of 16

  __host__ __device__ static int parts_of(DType dtype) { return dtype == DType::kQ8_0 && !kKeysSide ? 2 : 1; }
  /// Stride of rows in shared memory, in bytes.
  __host__ __device__ static int pitch_of(DType dtype, int width) { return parts_of(dtype) * width * 2 + 16; }
  __device__ int pitch() const { return pitch_of(dtype, width); }
  __device__ bool has_low() const { return parts_of(dtype) == 2; }
  __device__ bool has_scales() const { return dtype == DType::kQ8_0; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % kLanes); }
  __device__ static int row_of(int pass) { return pass * kRowsOfPass + static_cast<int>(threadIdx.x) / kLanes; }
  /// Number of columns of the slice that begins at column `first`.
  __device__ int columns_from(int first) const { return min(width, columns - first); }
  __device__ const std::byte* slice_of(int row, int first) const {
    return data + row * stride + (has_scales() ? first / 32 * kBlockBytes : first * 2);
  }
  __device__ static int offset(const std::byte* at) { return static_cast<int>(reinterpret_cast<uintptr_t>(at) % 16); }

  /// Starts to copy columns [first, first + width) of the slice's rows.
  __device__ void fetch(std::byte* slot, const int* rows, int first) const {
    const int count = columns_from(first);
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
      const int row = row_of(pass);
      const bool valid = rows[row] >= 0;
      std::byte* to = slot + row * pitch();
      const std::byte* from = valid ? slice_of(rows[row], first) : data;
      if (has_scales()) {  // 34-byte blocks begin at any byte, so all 16-byte granules that cover the row are copied
        if (!valid) continue;
        const int bytes = offset(from) + count / 32 * kBlockBytes;
        for (int at = lane() * 16; at < bytes; at += kLanes * 16) copy_async_16(to + at, from - offset(from) + at);
      } else {
        for (int at = lane() * 16; at < up_to_16(count) * 2; at += kLanes * 16) {
          const bool exists = valid && at < count * 2;
          copy_async_16(to + at, exists ? from + at : data, exists);
        }
      }
    }
  }

  /// Converts the slice. A thread calls prepare() after its copies have arrived and before the barrier that precedes
  /// the use of the slice. With `marks`, also zeroes each row that no query sees (marks[row] != mark), because the row
  /// may contain NaN.
  __device__ void prepare(std::byte* slot, const int* rows, int first, const int* marks, int mark) const {
    if (!has_scales() && marks == nullptr) return;
    __syncwarp();  // waits for the copies of other lanes
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      const int row = row_of(pass);
      const bool valid = rows[row] >= 0 && (marks == nullptr || marks[row] == mark);
      std::byte* at = slot + row * pitch();
      if (has_scales()) {
        convert(at, valid ? offset(slice_of(rows[row], first)) : 0, up_to_16(columns_from(first)), valid);
      } else if (!valid) {
        for (int i = lane() * 16; i < up_to_16(columns_from(first)) * 2; i += kLanes * 16) {
          store_as<uint4>(at + i, uint4{0, 0, 0, 0});
        }
      }
    }
  }

 private:
  /// Reads four copied columns. `begin` is the byte offset of the slice in the row's granules.
  __device__ static float4 read(const std::byte* row, int begin, int column, float& scale) {
    const std::byte* block = row + begin + column / 32 * kBlockBytes;
    const uint32_t low = load_as<uint16_t>(block + 2 + column % 32);
    const uint32_t high = load_as<uint16_t>(block + 4 + column % 32);
    scale = __half2float(load_as<__half>(block));
    const auto byte = [](uint32_t bits) { return static_cast<float>(static_cast<int8_t>(bits)); };
    return {byte(low), byte(low >> 8), byte(high), byte(high >> 8)};
  }

  /// Converts a row in place: all lanes read before any lane writes.
  __device__ void convert(std::byte* row, int begin, int count, bool valid) const {
    float4 x[kChunks];
    float scales[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int column = (i * kLanes + lane()) * 4;
      x[i] = {0, 0, 0, 0}, scales[i] = 0;
      if (valid && column < count) x[i] = read(row, begin, column, scales[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int column = (i * kLanes + lane()) * 4;
      if (kKeysSide && lane() == 0) store_as<float>(row + pitch() - 16 + i * 4, scales[i]);
      if (column >= count) continue;
      const float by = kKeysSide ? 1 : scales[i];
      const Split left = split<kKeysSide>(x[i].x * by, x[i].y * by), right = split<kKeysSide>(x[i].z * by, x[i].w * by);
      store_as<uint2>(row + column * 2, uint2{left.high, right.high});
      if (!kKeysSide) store_as<uint2>(row + (width + column) * 2, uint2{left.low, right.low});
    }
  }
};

}  // namespace shoal::cuda::attention
