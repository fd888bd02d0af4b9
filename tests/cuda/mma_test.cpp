// devices/cuda/kernels/mma.h: products of a warp against plain ones, with fragments filled by hand as the header lays
// them out, and by matrix loads from shared memory.
#include "devices/cuda/kernels/mma.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;

constexpr int kM = 16, kN = 8, kK = 16;

// a in rows, b in rows (k x 8), d in rows. Fragments element by element, from the header's table.
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

// The wrappers, without the emulator's further argument.
__device__ void f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_f16(d, a, b);
}
__device__ void bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_bf16(d, a, b);
}

/// Random elements whose products and sums are exact in float, so that the order of sums makes no difference.
struct Case {
  std::vector<uint16_t> a, b;
  std::vector<float> d, expected;

  explicit Case(uint16_t (*encode)(int)) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> draw(-100, 100);
    std::vector<int> plain_a, plain_b;
    for (int i = 0; i < kM * kK; ++i) a.push_back(encode(plain_a.emplace_back(draw(random))));
    for (int i = 0; i < kK * kN; ++i) b.push_back(encode(plain_b.emplace_back(draw(random))));
    for (int row = 0; row < kM; ++row) {
      for (int column = 0; column < kN; ++column) {
        int sum = draw(random);
        d.push_back(static_cast<float>(sum));
        for (int k = 0; k < kK; ++k) {
          sum += plain_a[static_cast<size_t>(row * kK + k)] * plain_b[static_cast<size_t>(k * kN + column)];
        }
        expected.push_back(static_cast<float>(sum));
      }
    }
  }
};

uint16_t encode_f16(int value) {
  return __half_as_ushort(__float2half_rn(static_cast<float>(value)));
}
uint16_t encode_bf16(int value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
}

void check(const Case& data, void (*kernel)(const uint16_t*, const uint16_t*, float*)) {
  const CudaStream stream;
  const CudaArray<uint16_t> a(data.a), b(data.b);
  const CudaArray<float> d(data.d);
  launch(stream, kernel, dim3(1), dim3(32), 0, a.data(), b.data(), d.data());
  stream.synchronize();
  EXPECT_EQ(d.get(), data.expected);
}

TEST(Mma, Halfs) {
  check(Case(encode_f16), multiply<f16>);
}
TEST(Mma, BrainFloats) {
  check(Case(encode_bf16), multiply<bf16>);
}

// The operands come from shared memory through matrix loads: a in rows, b in rows (transposed loads) or columns.
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

TEST(Mma, LoadsFromRows) {
  check(Case(encode_f16), multiply_loaded<false>);
}
TEST(Mma, LoadsFromColumns) {
  check(Case(encode_f16), multiply_loaded<true>);
}

}  // namespace
}  // namespace shoal::cuda
