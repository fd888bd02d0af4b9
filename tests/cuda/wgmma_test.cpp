// devices/cuda/kernels/wgmma.h: products of a warpgroup against plain ones, with operands laid out by hand as the PTX
// manual draws them.
#include "devices/cuda/kernels/wgmma.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;

constexpr int kM = 64, kDepth = 16;
constexpr size_t kShared = 64 * 1024;

/// Where both operands lie: bytes behind a multiple of 1024, and descriptors without their addresses.
struct Layout {
  uint32_t a_begin, b_begin;
  uint64_t a, b;
};

/// `image`: the shared memory from the first multiple of 1024 on.
template <int kSums, bool kBrain>
__global__ void multiply(const uint8_t* image, int image_bytes, Layout layout, float* d) {
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
  if constexpr (kBrain) {
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

/// Random operands whose products and sums are exact in f32, in whatever order.
struct Data {
  std::vector<int> a, b, d;  // [row][k], [column][k], [row][column]
  int n;
  explicit Data(int columns) : n(columns) {
    std::mt19937 random(5);
    std::uniform_int_distribution<int> draw(-100, 100);
    for (int i = 0; i < kM * kDepth; ++i) a.push_back(draw(random));
    for (int i = 0; i < n * kDepth; ++i) b.push_back(draw(random));
    for (int i = 0; i < kM * n; ++i) d.push_back(draw(random));
  }
  int expected(int row, int column) const {
    int sum = d[static_cast<size_t>(row * n + column)];
    for (int k = 0; k < kDepth; ++k) {
      sum += a[static_cast<size_t>(row * kDepth + k)] * b[static_cast<size_t>(column * kDepth + k)];
    }
    return sum;
  }
};

uint16_t encode(int value, bool brain) {
  const auto number = static_cast<float>(value);
  return brain ? __bfloat16_as_ushort(__float2bfloat16_rn(number)) : __half_as_ushort(__float2half_rn(number));
}

using Place = uint32_t (*)(int row, int k);  ///< byte of an element, from the operand's first

template <int kSums, bool kBrain>
bool is_right(const Layout& layout, Place place_a, Place place_b) {
  const Data data(2 * kSums);
  std::vector<uint8_t> image(kShared - 1024);
  const auto put = [&](uint32_t at, int value) {
    const uint16_t bits = encode(value, kBrain);
    std::memcpy(image.data() + at, &bits, 2);
  };
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kM; ++row) {
      put(layout.a_begin / 1024 * 1024 + place_a(row, k), data.a[static_cast<size_t>(row * kDepth + k)]);
    }
    for (int column = 0; column < data.n; ++column) {
      put(layout.b_begin / 1024 * 1024 + place_b(column, k), data.b[static_cast<size_t>(column * kDepth + k)]);
    }
  }
  std::vector<float> sums;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < kSums; ++i) {
      sums.push_back(
          static_cast<float>(data.d[static_cast<size_t>(row_of(thread, i) * data.n + column_of(thread, i))]));
    }
  }
  const CudaStream stream;
  const CudaArray<uint8_t> on_gpu(image);
  const CudaArray<float> d(sums);
  launch(stream, multiply<kSums, kBrain>, dim3(1), dim3(128), kShared, on_gpu.data(), static_cast<int>(image.size()),
         layout, d.data());
  stream.synchronize();
  const std::vector<float> result = d.get();
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < kSums; ++i) {
      const int expected = data.expected(row_of(thread, i), column_of(thread, i));
      if (result[static_cast<size_t>(thread * kSums + i)] != static_cast<float>(expected)) return false;
    }
  }
  return true;
}

// Rows of 128 bytes, eight of which take 1024; chunk c at c ^ (row % 8). The operands are elements 32 .. 47 of their
// rows, chunks 4 and 5.
uint32_t swizzled_128(int row, int k) {
  const int chunk = (4 + k / 8) ^ row % 8;
  return static_cast<uint32_t>(row * 128 + chunk * 16 + k % 8 * 2);
}
constexpr Layout k128Bytes{64, 8192 + 64, operand_descriptor(0, 0, 1024, Swizzle::k128),
                           operand_descriptor(0, 0, 1024, Swizzle::k128)};

// Blocks of 8 rows x 16 bytes: those of the first chunk of k one after the other, then those of the second.
uint32_t blocks_by_rows(int row, int k) {
  return static_cast<uint32_t>(k / 8 * 8192 + row / 8 * 128 + row % 8 * 16 + k % 8 * 2);
}
// The same, blocks of a group of rows beside each other.
uint32_t blocks_by_groups(int row, int k) {
  return static_cast<uint32_t>(row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2);
}
constexpr Layout kBlocks{0, 16384, operand_descriptor(0, 128, 256, Swizzle::kNone),
                         operand_descriptor(0, 8192, 128, Swizzle::kNone)};

// Rows of 32 bytes, all of both operands: chunk c at c ^ (row / 4 % 2). And of 64, chunks 2 and 3 at c ^ (row / 2 % 4).
uint32_t swizzled_32(int row, int k) {
  return static_cast<uint32_t>(row * 32 + (k / 8 ^ row / 4 % 2) * 16 + k % 8 * 2);
}
uint32_t swizzled_64(int row, int k) {
  return static_cast<uint32_t>(row * 64 + ((2 + k / 8) ^ row / 2 % 4) * 16 + k % 8 * 2);
}
constexpr Layout kNarrow{0, 8192 + 32, operand_descriptor(0, 0, 256, Swizzle::k32),
                         operand_descriptor(0, 0, 512, Swizzle::k64)};

TEST(Wgmma, DescriptorFields) {
  EXPECT_EQ(operand_descriptor(0x12340, 128, 1024, Swizzle::k128), 0x4000'0040'0008'1234u);
  EXPECT_EQ(operand_descriptor(0x400, 0, 256, Swizzle::k32), 0xc000'0010'0000'0040u);
  EXPECT_EQ(descriptor_at(operand_descriptor(0x12340, 0, 1024, Swizzle::k64), 32),
            operand_descriptor(0x12360, 0, 1024, Swizzle::k64));
}
TEST(Wgmma, HalvesInRowsOf128Bytes) {
  EXPECT_TRUE((is_right<64, false>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<128, false>(k128Bytes, swizzled_128, swizzled_128)));
}
TEST(Wgmma, BrainFloatsInRowsOf128Bytes) {
  EXPECT_TRUE((is_right<64, true>(k128Bytes, swizzled_128, swizzled_128)));
  EXPECT_TRUE((is_right<128, true>(k128Bytes, swizzled_128, swizzled_128)));
}
TEST(Wgmma, HalvesInBlocks) {
  EXPECT_TRUE((is_right<64, false>(kBlocks, blocks_by_groups, blocks_by_rows)));
}
TEST(Wgmma, HalvesInNarrowRows) {
  EXPECT_TRUE((is_right<64, false>(kNarrow, swizzled_32, swizzled_64)));
}
TEST(Wgmma, WrongDescriptorsGiveWrongResults) {
  Layout wrong = k128Bytes;
  wrong.a = operand_descriptor(0, 0, 1024, Swizzle::k64);
  EXPECT_FALSE((is_right<64, false>(wrong, swizzled_128, swizzled_128)));
  wrong = k128Bytes;
  wrong.b = operand_descriptor(0, 0, 512, Swizzle::k128);
  EXPECT_FALSE((is_right<64, false>(wrong, swizzled_128, swizzled_128)));
  wrong = k128Bytes;
  wrong.a_begin += 32;
  EXPECT_FALSE((is_right<64, false>(wrong, swizzled_128, swizzled_128)));
  wrong = kBlocks;
  wrong.b = operand_descriptor(0, 8192, 256, Swizzle::kNone);
  EXPECT_FALSE((is_right<64, false>(wrong, blocks_by_groups, blocks_by_rows)));
}

}  // namespace
}  // namespace shoal::cuda
