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
    g_runner->die(*g_thread, fmt::format("executes a matrix instruction with only lanes {:#x} present", present));
  }
}

/// d[16 x 8] += a[16 x 16] b[16 x 8]. Each register holds two elements.
template <float (*kDecode)(uint16_t)>
void multiply(const std::array<void*, 32>& lanes, uint32_t present) {
  check_whole(present);
  std::array<float, 16> a[16], b[8];  // rows of `a`, columns of `b`
  for (int lane = 0; lane < 32; ++lane) {
    const auto& held = *static_cast<const Product*>(lanes[static_cast<size_t>(lane)]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      const auto k = static_cast<size_t>(2 * t + i);
      for (size_t r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][k + 8 * (r / 2)] = kDecode(static_cast<uint16_t>(held.a[r] >> 16 * i));
      }
      for (size_t r = 0; r < 2; ++r) b[g][k + 8 * r] = kDecode(static_cast<uint16_t>(held.b[r] >> 16 * i));
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& held = *static_cast<Product*>(lanes[static_cast<size_t>(lane)]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      held.d[r] = sum_of(held.d[r], a[row], b[column]);
    }
  }
}

template <bool kTransposed>
void load_matrices(const std::array<void*, 32>& lanes, uint32_t present) {
  check_whole(present);
  uint16_t matrices[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const void* row = static_cast<const MatrixLoad*>(lanes[static_cast<size_t>(lane)])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      g_runner->die(*g_thread, fmt::format("loads a matrix, but the row of lane {} is not aligned to 16 bytes", lane));
    }
    std::memcpy(matrices[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* const registers = static_cast<const MatrixLoad*>(lanes[static_cast<size_t>(lane)])->registers;
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const auto& matrix = matrices[i];
      const uint32_t low = kTransposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = kTransposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      registers[i] = high << 16 | low;
    }
  }
}

}  // namespace

void multiply_f16(const std::array<void*, 32>& lanes, uint32_t present) {
  multiply<f16_to_float>(lanes, present);
}
void multiply_bf16(const std::array<void*, 32>& lanes, uint32_t present) {
  multiply<bf16_to_float>(lanes, present);
}
void load_matrices_4(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<false>(lanes, present);
}
void load_matrices_4_trans(const std::array<void*, 32>& lanes, uint32_t present) {
  load_matrices<true>(lanes, present);
}

}  // namespace shoal::cuda::emulator
