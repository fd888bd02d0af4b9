// The kernels of row-wise ops. table.cpp puts them into a table. RowKernels (kernels.h) documents them.
#pragma once

#include "devices/cpu/kernels/kernels.h"

namespace shoal::cpu::SHOAL_ISA {

// in rows.cpp
double sum_row(const float* x, int64_t n);
double sum_squares(const float* x, double shift, int64_t n);
void normalize(const float* x, float shift, float factor, float* to, int64_t n);
float logits(const float* x, const float* mask, float scale, float* to, int64_t n);

// in elementwise.cpp
extern const UnaryKernel kUnaryKernels[kUnaryKernelCount];
extern const GluKernel kGluKernels[kGluKernelCount];
extern const BinaryKernel kBinaryKernels[4];
extern const CompareKernel kCompareFloats[6], kCompareIntegers[6];
void select_halves(const int32_t* condition, const uint16_t* a, const uint16_t* b, uint16_t* to, int64_t n);
void select_words(const int32_t* condition, const uint32_t* a, const uint32_t* b, uint32_t* to, int64_t n);
void scale_row(const float* x, float scale, float bias, float* to, int64_t n);
void clamp_row(const float* x, float low, float high, float* to, int64_t n);

// in images.cpp
void pool_largest(const PoolRow& row);
void pool_sum(const PoolRow& row);
void larger_of(const float* a, const float* b, float* to, int64_t n);
void total_of(const float* a, const float* b, float* to, int64_t n);
void gather(const float* x, const int32_t* at, float* to, int64_t n);
void interpolate(const float* x, const Taps& taps, float* to, int64_t n);
void mix(const float* a, const float* b, float weight, float* to, int64_t n);

// in rotate.cpp
void turn(const double* quarters, double position, double scale, int64_t pairs, bool neighbours, float* factors);
void rotate_neighbours(const float* x, const float* cosines, const float* sines, int64_t n, float* to);
void rotate_halves(const float* low, const float* high, const float* cosines, const float* sines, int64_t n,
                   float* to_low, float* to_high);
void sines(const float* x, float* to, int64_t n);
void cosines(const float* x, float* to, int64_t n);

// in convert.cpp
void to_f16(const float* src, void* dst, int64_t n);
void to_bf16(const float* src, void* dst, int64_t n);
void to_q8_0(const float* src, void* dst, int64_t n);
template <class Rows>
void sum_arrays(const SumArgs& args);

}  // namespace shoal::cpu::SHOAL_ISA
