// Copies tiles of kKeys KV rows into shared memory in the form that tensor cores read: rows of 16-bit floats. Each row
// is followed by 16 bytes of padding, so that the rows of a fragment are in different banks. f16 and bf16 rows are
// copied asynchronously into one of two buffers while the other buffer is in use. q8_0 rows consist of 34-byte blocks
// that begin at any byte. The 16-byte granules that cover such a row are copied without conversion. After the granules
// have arrived, the integers are converted exactly to f16 (keys) or bf16 (values). The scales go to a separate array.
//
// `rows_of_tile` contains the rows of the tile's keys (KeyRows::of()). Keys without a row are not read and become
// zeros. Padding of the columns to a multiple of 16 also becomes zeros.
#pragma once

#include <bit>

#include "devices/cuda/kernels/attention_parts.h"

namespace shoal::cuda::attention {

enum class KvType { kF16, kBF16, kQ8_0 };

/// Stride of rows in shared memory, in elements.
template <int kD>
inline constexpr int kPitch = kD + 8;

inline constexpr int kBlockBytes = 34, kBlockElements = 32;  // a q8_0 block consists of an f16 scale and 32 integers

/// The rows of one KV head.
struct KvRows {
  const std::byte* data;
  int stride;  ///< in bytes; the product of a row and the stride is a 64-bit number
  const std::byte* end;
  int columns;
  __device__ const std::byte* row(int index) const { return data + static_cast<int64_t>(index) * stride; }
};

template <KvType kType, int kD, bool kKeysSide>
struct Stage {
  static constexpr int kChunks = kD / 8;  ///< number of 16-byte chunks per row
  static constexpr size_t kBufferBytes = kKeys * kPitch<kD> * 2;
  static constexpr size_t kBytes = 2 * kBufferBytes;

  std::byte* shared;
  KvRows rows;

  __device__ const uint16_t* tile(int index) const {
    return reinterpret_cast<const uint16_t*>(shared + (index % 2) * kBufferBytes);
  }
  __device__ const float* scales() const { return nullptr; }
  /// Starts to copy a tile. Each thread copies the same chunk of every kStep-th row.
  __device__ void fetch(int index, const int* rows_of_tile) const {
    constexpr int kStep = kThreads / kChunks;
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    if (chunk * 8 >= (rows.columns + 15) / 16 * 16) return;
    const bool exists = chunk * 8 < rows.columns;
    std::byte* const to = shared + (index % 2) * kBufferBytes + row * kPitch<kD> * 2 + chunk * 16;
#pragma unroll
    for (int i = 0; i < kKeys; i += kStep) {
      const int from = rows_of_tile[row + i];
      const bool valid = exists && from >= 0;
      copy_async_16(to + i * kPitch<kD> * 2, valid ? rows.row(from) + chunk * 16 : rows.data, valid);
    }
  }
  /// All threads call unpack() after the tile has arrived and before the tile is used, between two __syncthreads().
  __device__ void unpack(const int*) const {}
  /// Zeroes row `row` of a tile. No query sees this row, and the row may contain NaN.
  __device__ void clear(int index, int row) const {
    std::byte* at = shared + (index % 2) * kBufferBytes + row * kPitch<kD> * 2;
    for (int chunk = 0; chunk < kChunks; ++chunk) store_as<uint4>(at + chunk * 16, uint4{0, 0, 0, 0});
  }
};

template <int kD, bool kKeysSide>
struct Stage<KvType::kQ8_0, kD, kKeysSide> {
  static constexpr int kChunks = kD / 8;
  /// Number of bytes of shared memory for the granules that cover a row.
  static constexpr int kRawPitch = (kD / kBlockElements * kBlockBytes + 30) / 16 * 16;
  static constexpr int kScaleBytes = kD / kBlockElements * kKeys * 4;
  static constexpr size_t kTileBytes = kKeys * kPitch<kD> * 2;
  static constexpr size_t kBytes = kTileBytes + kScaleBytes + kKeys * kRawPitch;
  static_assert(kRawPitch / 16 <= kChunks);

  std::byte* shared;
  KvRows rows;

  __device__ const uint16_t* tile(int) const { return reinterpret_cast<const uint16_t*>(shared); }
  /// The scales, indexed [block][row].
  __device__ float* scales() const { return reinterpret_cast<float*>(shared + kTileBytes); }
  __device__ std::byte* raw(int row) const { return shared + kTileBytes + kScaleBytes + row * kRawPitch; }
  __device__ static int offset(const std::byte* row) { return static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16); }

  __device__ void fetch(int, const int* rows_of_tile) const {
    const int bytes = rows.columns / kBlockElements * kBlockBytes;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kThreads) {
      const int row = i / kChunks, granule = i % kChunks, from = rows_of_tile[row];
      if (from < 0) continue;
      const std::byte* data = rows.row(from);
      const int at = granule * 16 - offset(data);
      if (at >= bytes) continue;
      std::byte* to = raw(row) + granule * 16;
      if (at + 16 <= rows.end - data) {
        copy_async_16(to, data + at);
      } else {
        for (int byte = 0; byte < bytes - at; ++byte) to[byte] = data[at + byte];
      }
    }
  }
  __device__ void unpack(const int* rows_of_tile) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks, from = rows_of_tile[row];
      if (chunk * 8 >= rows.columns) continue;
      uint4 values{0, 0, 0, 0};
      float scale = 0;
      if (from >= 0) {
        const std::byte* block = raw(row) + offset(rows.row(from)) + chunk * 8 / kBlockElements * kBlockBytes;
        const std::byte* const pairs = block + 2 + chunk % 4 * 8;
        const auto pair = [&](int i) { return floats(load_as<uint16_t>(pairs + 2 * i)); };
        values = uint4{pair(0), pair(1), pair(2), pair(3)};
        scale = __half2float(load_as<__half>(block));
      }
      store_as<uint4>(shared + row * kPitch<kD> * 2 + chunk * 16, values);
      if (chunk % 4 == 0) scales()[chunk / 4 * kKeys + row] = scale;
    }
  }
  __device__ void clear(int, int row) const {
    for (int block = 0; block < kD / kBlockElements; ++block) scales()[block * kKeys + row] = 0;
  }
  /// Converts two integers to two 16-bit floats. The low bits of the float 2^23 + 128 + x are x + 128, also for
  /// negative x.
  __device__ static uint32_t floats(uint32_t pair) {
    const uint32_t shifted = pair ^ 0x8080;
    const float low = std::bit_cast<float>(__byte_perm(shifted, 0x4B000000, 0x7440)) - 8388736.0f;
    const float high = std::bit_cast<float>(__byte_perm(shifted, 0x4B000000, 0x7441)) - 8388736.0f;
    if constexpr (kKeysSide) {
      return pack_f16(low, high);
    } else {
      return __byte_perm(std::bit_cast<uint32_t>(low), std::bit_cast<uint32_t>(high), 0x7632);
    }
  }
};

}  // namespace shoal::cuda::attention
