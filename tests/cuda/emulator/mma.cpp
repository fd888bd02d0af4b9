#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/cuda/emulator/shoal_cuda_emulator.h"
#include "tests/cuda/emulator/shoal_cuda_emulator_mma.h"

namespace shoal::cuda::emulator {
namespace {

void check_whole(uint32_t present) {
  if (present != 0xffffffff) {
    g_runner->die(*g_thread,
                  fmt::format("is in a matrix instruction for which only the lanes {:#x} are there", present));
  }
}

float f16_to_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
float bf16_to_float(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}
int32_t s8_to_int(uint8_t bits) {
  return static_cast<int8_t>(bits);
}

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// As Hopper's tensor cores sum: all terms are cut to two bits more than an f32 of the largest one's size has, added
/// exactly, and the sum is cut to an f32. What is cut off is lost towards zero, never rounded.
template <size_t kCount>
float sum_of(float start, const std::array<float, kCount>& a, const std::array<float, kCount>& b) {
  double products[kCount], largest = std::fabs(start), plain = start;
  for (size_t i = 0; i < kCount; ++i) {
    products[i] = static_cast<double>(a[i]) * static_cast<double>(b[i]);  // exact
    largest = std::max(largest, std::fabs(products[i]));
    plain += products[i];
  }
  if (largest == 0 || !std::isfinite(plain)) return static_cast<float>(plain);
  constexpr int kKept = 25;  // bits behind the first
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(largest) >> 52) - 1023 - kKept;
  const double units = power_of_two(-exponent);
  auto sum = static_cast<int64_t>(start * units);
  for (const double product : products) sum += static_cast<int64_t>(product * units);
  constexpr uint64_t kBeyondF32 = (uint64_t{1} << 29) - 1;
  const double exact = static_cast<double>(sum) * power_of_two(exponent);
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~kBeyondF32));
}
template <size_t kCount>
int32_t sum_of(int32_t start, const std::array<int32_t, kCount>& a, const std::array<int32_t, kCount>& b) {
  int64_t sum = start;
  for (size_t i = 0; i < kCount; ++i) sum += static_cast<int64_t>(a[i]) * b[i];
  return static_cast<int32_t>(sum);
}

/// One product, whatever the elements are: `kPerRegister` of them in a register, k = 8 * kPerRegister.
template <class Sum, class Bits, class Value, Value (*kDecode)(Bits)>
void multiply(const std::array<void*, 32>& lanes, uint32_t present) {
  check_whole(present);
  constexpr int kPerRegister = 4 / sizeof(Bits);
  constexpr int kDepth = 8 * kPerRegister;
  std::array<Value, kDepth> a[16], b[8];  // rows, columns
  for (int lane = 0; lane < 32; ++lane) {
    const auto& held = *static_cast<const Product<Sum>*>(lanes[static_cast<size_t>(lane)]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < kPerRegister; ++i) {
      const int k = kPerRegister * t + i;
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][static_cast<size_t>(k + 4 * kPerRegister * (r / 2))] =
            kDecode(static_cast<Bits>(held.a[r] >> (8 * sizeof(Bits) * static_cast<size_t>(i))));
      }
      for (int r = 0; r < 2; ++r) {
        b[g][static_cast<size_t>(k + 4 * kPerRegister * r)] =
            kDecode(static_cast<Bits>(held.b[r] >> (8 * sizeof(Bits) * static_cast<size_t>(i))));
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& held = *static_cast<Product<Sum>*>(lanes[static_cast<size_t>(lane)]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      held.d[r] = sum_of(held.d[r], a[row], b[column]);
    }
  }
}

template <int kMatrices, bool kTransposed>
void load_matrices(const std::array<void*, 32>& lanes, uint32_t present) {
  check_whole(present);
  uint16_t matrices[kMatrices][8][8];
  for (int lane = 0; lane < 8 * kMatrices; ++lane) {
    const void* row = static_cast<const MatrixLoad*>(lanes[static_cast<size_t>(lane)])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      g_runner->die(*g_thread, fmt::format("loads a matrix of which the row of lane {} is not aligned to 16", lane));
    }
    std::memcpy(matrices[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* const registers = static_cast<const MatrixLoad*>(lanes[static_cast<size_t>(lane)])->registers;
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < kMatrices; ++i) {
      const auto& matrix = matrices[i];
      const uint32_t low = kTransposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = kTransposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      registers[i] = high << 16 | low;
    }
  }
}

}  // namespace

void multiply_f16(const std::array<void*, 32>& lanes, uint32_t present) {
  multiply<float, uint16_t, float, f16_to_float>(lanes, present);
}
void multiply_bf16(const std::array<void*, 32>& lanes, uint32_t present) {
  multiply<float, uint16_t, float, bf16_to_float>(lanes, present);
}
void multiply_s8(const std::array<void*, 32>& lanes, uint32_t present) {
  multiply<int32_t, uint8_t, int32_t, s8_to_int>(lanes, present);
}
void load_matrices_2(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<2, false>(lanes, present);
}
void load_matrices_2_trans(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<2, true>(lanes, present);
}
void load_matrices_4(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<4, false>(lanes, present);
}
void load_matrices_4_trans(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<4, true>(lanes, present);
}

}  // namespace shoal::cuda::emulator
