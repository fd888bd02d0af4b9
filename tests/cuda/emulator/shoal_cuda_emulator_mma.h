// Matrix instructions. devices/cuda/kernels/mma.h includes this file if SHOAL_CUDA_EMULATED is defined. The lanes of a
// warp wait for each other, and the last lane to arrive computes the results of all lanes. As in Hopper's tensor cores,
// sums are truncated instead of rounded.
#pragma once

#include <cstdint>
#include <source_location>

#include "tests/cuda/emulator/block.h"

namespace shoal::cuda {
namespace emulator {

struct Product {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

struct MatrixLoad {
  uint32_t* registers;
  const void* row;
};

// Functions of type Meeting::Compute.
void multiply_f16(const std::array<void*, 32>& lanes, uint32_t present);
void multiply_bf16(const std::array<void*, 32>& lanes, uint32_t present);
void load_matrices_4(const std::array<void*, 32>& lanes, uint32_t present);
void load_matrices_4_trans(const std::array<void*, 32>& lanes, uint32_t present);

template <class Argument>
void meet_warp(Argument argument, Meeting::Compute compute, const char* name, const std::source_location& where) {
  g_runner->meet_lanes(0xffffffff, &argument, compute, name, where);
}

}  // namespace emulator

#define SHOAL_HERE const std::source_location& where = std::source_location::current()

inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SHOAL_HERE) {
  emulator::meet_warp(emulator::Product{d, a, b}, &emulator::multiply_f16, "mma_f16", where);
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SHOAL_HERE) {
  emulator::meet_warp(emulator::Product{d, a, b}, &emulator::multiply_bf16, "mma_bf16", where);
}
inline void load_matrix_x4(uint32_t (&r)[4], const void* shared_row, SHOAL_HERE) {
  emulator::meet_warp(emulator::MatrixLoad{r, shared_row}, &emulator::load_matrices_4, "load_matrix_x4", where);
}
inline void load_matrix_x4_trans(uint32_t (&r)[4], const void* shared_row, SHOAL_HERE) {
  emulator::meet_warp(emulator::MatrixLoad{r, shared_row}, &emulator::load_matrices_4_trans, "load_matrix_x4_trans",
                      where);
}

#undef SHOAL_HERE
}  // namespace shoal::cuda
