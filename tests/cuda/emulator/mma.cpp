#include <fmt/format.h>

#include <array>
#include <cstring>

#include "tests/cuda/emulator/shoal_cuda_emulator.h"
#include "tests/cuda/emulator/shoal_cuda_emulator_mma.h"
#include "tests/cuda/emulator/tensor_sum.h"

namespace shoal::cuda::emulator {
namespace {

void check_whole(uint32_t present) {
  if (present != 0xffffffff) {
    g_runner->die(*g_thread,
                  fmt::format("is in a matrix instruction for which only the lanes {:#x} are there", present));
  }
}

int32_t s8_to_int(uint8_t bits) {
  return static_cast<int8_t>(bits);
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
