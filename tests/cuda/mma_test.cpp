// Tests of devices/cuda/kernels/mma.h and wgmma.h. The tests compare products of a warp and of a warpgroup with
// products that the host computes. Kernels fill fragments element by element in the layout of mma.h, or by matrix loads
// from shared memory. Operands of warpgroups have the layouts of the PTX manual.
#include "devices/cuda/kernels/mma.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "devices/cuda/kernels/wgmma.h"
#include "tests/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;

/// Random row-major operands: `a` [m][depth], `b` [depth][n] and `d` [m][n]. Products and sums are exact in f32 in any
/// order.
struct Exact {
  std::vector<int> a, b, d, expected;
  Exact(int m, int n, int depth) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> draw(-100, 100);
    for (int i = 0; i < m * depth; ++i) a.push_back(draw(random));
    for (int i = 0; i < depth * n; ++i) b.push_back(draw(random));
    for (int i = 0; i < m * n; ++i) {
      int sum = d.emplace_back(draw(random));
      for (int k = 0; k < depth; ++k) {
        sum += a[static_cast<size_t>(i / n * depth + k)] * b[static_cast<size_t>(k * n + i % n)];
      }
      expected.push_back(sum);
    }
  }
};

uint16_t encode_f16(int value) {
  return __half_as_ushort(__float2half_rn(static_cast<float>(value)));
}
uint16_t encode_bf16(int value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
}

constexpr int kN = 8, kK = 16;  // columns and depth of a warp's product, which has 16 rows

// `a`, `b` (k x 8) and `d` are row-major. The kernel fills fragments element by element, as in the table of mma.h.
template <void (*kMultiply)(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2])>
__global__ void multiply(const uint16_t* a, const uint16_t* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  uint32_t fa[4] = {}, fb[2] = {};
  for (int i = 0; i < 2; ++i) {
    const int shift = 16 * i, k = 2 * t + i;
    fa[0] |= uint32_t{a[g * kK + k]} << shift;
    fa[1] |= uint32_t{a[(g + 8) * kK + k]} << shift;
    fa[2] |= uint32_t{a[g * kK + k + 8]} << shift;
    fa[3] |= uint32_t{a[(g + 8) * kK + k + 8]} << shift;
    fb[0] |= uint32_t{b[k * kN + g]} << shift;
    fb[1] |= uint32_t{b[(k + 8) * kN + g]} << shift;
  }
  float fd[4] = {d[g * kN + 2 * t], d[g * kN + 2 * t + 1], d[(g + 8) * kN + 2 * t], d[(g + 8) * kN + 2 * t + 1]};
  kMultiply(fd, fa, fb);
  d[g * kN + 2 * t] = fd[0];
  d[g * kN + 2 * t + 1] = fd[1];
  d[(g + 8) * kN + 2 * t] = fd[2];
  d[(g + 8) * kN + 2 * t + 1] = fd[3];
}

// These functions hide the additional argument that the emulator's functions have.
__device__ void f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_f16(d, a, b);
}
__device__ void bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_bf16(d, a, b);
}

void check(uint16_t (*encode)(int), void (*kernel)(const uint16_t*, const uint16_t*, float*)) {
  const Exact exact(16, kN, kK);
  std::vector<uint16_t> bits_a, bits_b;
  for (const int value : exact.a) bits_a.push_back(encode(value));
  for (const int value : exact.b) bits_b.push_back(encode(value));
  const CudaStream stream;
  const CudaArray<uint16_t> a(bits_a), b(bits_b);
  const CudaArray<float> d(std::vector<float>(exact.d.begin(), exact.d.end()));
  launch(stream, kernel, dim3(1), dim3(32), 0, a.data(), b.data(), d.data());
  stream.synchronize();
  EXPECT_EQ(d.get(), std::vector<float>(exact.expected.begin(), exact.expected.end()));
}

TEST(Mma, MultipliesF16) {
  check(encode_f16, multiply<f16>);
}
TEST(Mma, MultipliesBF16) {
  check(encode_bf16, multiply<bf16>);
}

// Matrix loads read the operands from shared memory. `a` is row-major. `b` is row-major (transposed loads) or
// column-major.
template <bool kColumns>
__global__ void multiply_loaded(const uint16_t* a, const uint16_t* b, float* d) {
  __shared__ __align__(16) uint16_t shared_a[16 * 16];
  __shared__ __align__(16) uint16_t shared_b[16 * 8];
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  for (int i = lane; i < 16 * 16; i += 32) shared_a[i] = a[i];
  for (int i = lane; i < 16 * 8; i += 32) {
    const int k = i / kN, n = i % kN;
    shared_b[kColumns ? n * 16 + k : i] = b[i];
  }
  __syncwarp();
  uint32_t fa[4], twice[4];
  load_matrix_x4(fa, shared_a + (lane % 16) * 16 + lane / 16 * 8);
  if (kColumns) {
    load_matrix_x4(twice, shared_b + lane % 8 * 16 + lane / 8 % 2 * 8);
  } else {
    load_matrix_x4_trans(twice, shared_b + lane % 16 * 8);
  }
  const uint32_t fb[2] = {twice[0], twice[1]};
  const bool same = twice[2] == fb[0] && twice[3] == fb[1];
  float fd[4] = {d[g * kN + 2 * t], d[g * kN + 2 * t + 1], d[(g + 8) * kN + 2 * t], d[(g + 8) * kN + 2 * t + 1]};
  mma_f16(fd, fa, fb);
  d[g * kN + 2 * t] = same ? fd[0] : -1.0f;
  d[g * kN + 2 * t + 1] = fd[1];
  d[(g + 8) * kN + 2 * t] = fd[2];
  d[(g + 8) * kN + 2 * t + 1] = fd[3];
}

TEST(Mma, LoadsMatricesFromRows) {
  check(encode_f16, multiply_loaded<false>);
}
TEST(Mma, LoadsMatricesFromColumns) {
  check(encode_f16, multiply_loaded<true>);
}

constexpr size_t kShared = 64 * 1024;

/// Offsets of operands `a` and `b` from an address that is a multiple of 1024. The descriptors of `a` and `b` contain
/// no address.
struct Layout {
  uint32_t a_begin, b_begin;
  uint64_t a, b;
};

/// `image` contains the bytes of shared memory from the first multiple of 1024 on.
template <int kSums, bool kBf16>
__global__ void multiply_group(const uint8_t* image, int image_bytes, Layout layout, float* d) {
  SHOAL_DYNAMIC_SHARED(uint8_t, memory);
  uint8_t* const shared = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < image_bytes; i += 128) shared[i] = image[i];
  float sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = d[thread * kSums + i];
  fence_async();
  __syncthreads();
  wgmma_fence();
  const uint64_t a = descriptor_at(layout.a, shared_address(shared) + layout.a_begin);
  const uint64_t b = descriptor_at(layout.b, shared_address(shared) + layout.b_begin);
  if constexpr (kBf16) {
    wgmma_bf16(sums, a, b);
  } else {
    wgmma_f16(sums, a, b);
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < kSums; ++i) d[thread * kSums + i] = sums[i];
}

/// Row and column of sum i of a thread.
int row_of(int thread, int i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
int column_of(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

using Place = uint32_t (*)(int row, int k);  ///< byte offset of an element from the operand's first element

template <int kSums, bool kBf16>
bool is_right(const Layout& layout, Place place_a, Place place_b) {
  constexpr int kRows = 64, kColumns = 2 * kSums, kDepth = 16;
  const Exact exact(kRows, kColumns, kDepth);
  std::vector<uint8_t> image(kShared - 1024);
  const auto put = [&](uint32_t at, int value) {
    const uint16_t bits = kBf16 ? encode_bf16(value) : encode_f16(value);
    std::memcpy(image.data() + at, &bits, 2);
  };
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kRows; ++row) {
      put(layout.a_begin / 1024 * 1024 + place_a(row, k), exact.a[static_cast<size_t>(row * kDepth + k)]);
    }
    for (int column = 0; column < kColumns; ++column) {
      put(layout.b_begin / 1024 * 1024 + place_b(column, k), exact.b[static_cast<size_t>(k * kColumns + column)]);
    }
  }
  const auto of_threads = [](const std::vector<int>& values) {
    std::vector<float> sums;
    for (int i = 0; i < 128 * kSums; ++i) {
      const int at = row_of(i / kSums, i % kSums) * kColumns + column_of(i / kSums, i % kSums);
      sums.push_back(static_cast<float>(values[static_cast<size_t>(at)]));
    }
    return sums;
  };
  const CudaStream stream;
  const CudaArray<uint8_t> on_gpu(image);
  const CudaArray<float> d(of_threads(exact.d));
  launch(stream, multiply_group<kSums, kBf16>, dim3(1), dim3(128), kShared, on_gpu.data(),
         static_cast<int>(image.size()), layout, d.data());
  stream.synchronize();
  return d.get() == of_threads(exact.expected);
}

// Rows have 128 bytes. Chunk c of a row has position c ^ (row % 8), so the layout repeats after eight rows (1024
// bytes). The operands are elements 32 .. 47 of their rows: chunks 4 and 5.
uint32_t swizzled_128(int row, int k) {
  const int chunk = (4 + k / 8) ^ row % 8;
  return static_cast<uint32_t>(row * 128 + chunk * 16 + k % 8 * 2);
}
constexpr Layout k128Bytes{64, 8192 + 64, operand_descriptor(0, 0, 1024, Swizzle::k128),
                           operand_descriptor(0, 0, 1024, Swizzle::k128)};

// Blocks have 8 rows x 16 bytes. The blocks of the first chunk of k precede the blocks of the second chunk.
uint32_t blocks_by_rows(int row, int k) {
  return static_cast<uint32_t>(k / 8 * 8192 + row / 8 * 128 + row % 8 * 16 + k % 8 * 2);
}
// Blocks have 8 rows x 16 bytes. The two blocks of a group of rows are adjacent.
uint32_t blocks_by_groups(int row, int k) {
  return static_cast<uint32_t>(row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2);
}
constexpr Layout kBlocks{0, 16384, operand_descriptor(0, 128, 256, Swizzle::kNone),
                         operand_descriptor(0, 8192, 128, Swizzle::kNone)};

// Rows of 32 bytes hold a whole operand. Chunk c has position c ^ (row / 4 % 2). In rows of 64 bytes, the operand is
// chunks 2 and 3, which have position c ^ (row / 2 % 4).
uint32_t swizzled_32(int row, int k) {
  return static_cast<uint32_t>(row * 32 + (k / 8 ^ row / 4 % 2) * 16 + k % 8 * 2);
}
uint32_t swizzled_64(int row, int k) {
  return static_cast<uint32_t>(row * 64 + ((2 + k / 8) ^ row / 2 % 4) * 16 + k % 8 * 2);
}
constexpr Layout kNarrow{0, 8192 + 32, operand_descriptor(0, 0, 256, Swizzle::k32),
                         operand_descriptor(0, 0, 512, Swizzle::k64)};

TEST(Wgmma, EncodesDescriptorFields) {
  EXPECT_EQ(operand_descriptor(0x12340, 128, 1024, Swizzle::k128), 0x4000'0040'0008'1234u);
  EXPECT_EQ(operand_descriptor(0x400, 0, 256, Swizzle::k32), 0xc000'0010'0000'0040u);
  EXPECT_EQ(descriptor_at(operand_descriptor(0x12340, 0, 1024, Swizzle::k64), 32),
            operand_descriptor(0x12360, 0, 1024, Swizzle::k64));
}
TEST(Wgmma, MultipliesOperandsInEveryLayout) {
  EXPECT_TRUE((is_right<64, false>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<128, false>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<64, true>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<128, true>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<64, false>(kBlocks, blocks_by_groups, blocks_by_rows)));
  EXPECT_TRUE((is_right<64, false>(kNarrow, swizzled_32, swizzled_64)));
}
TEST(Wgmma, WrongDescriptorsGiveWrongResults) {
  const auto& [a_begin, b_begin, a, b] = k128Bytes;
  for (const Layout& wrong : {Layout{a_begin, b_begin, operand_descriptor(0, 0, 1024, Swizzle::k64), b},
                              {a_begin, b_begin, a, operand_descriptor(0, 0, 512, Swizzle::k128)},
                              {a_begin + 32, b_begin, a, b}}) {
    EXPECT_FALSE((is_right<64, false>(wrong, swizzled_128, swizzled_128)));
  }
  Layout wrong = kBlocks;
  wrong.b = operand_descriptor(0, 8192, 256, Swizzle::kNone);
  EXPECT_FALSE((is_right<64, false>(wrong, blocks_by_groups, blocks_by_rows)));
}

}  // namespace
}  // namespace shoal::cuda
