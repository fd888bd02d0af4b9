// Conversion of every quantised type, one pair of functions each, in the form of the traits table (graph/dtype.cpp).
// n is a multiple of the block. Non-finite inputs give unspecified values, never a fault.
#pragma once

#include <cstdint>

namespace shoal::quants {

void q4_0_to_f32(const void* src, float* dst, int64_t n);
void q4_1_to_f32(const void* src, float* dst, int64_t n);
void q5_0_to_f32(const void* src, float* dst, int64_t n);
void q5_1_to_f32(const void* src, float* dst, int64_t n);
void q8_0_to_f32(const void* src, float* dst, int64_t n);
void q2_k_to_f32(const void* src, float* dst, int64_t n);
void q3_k_to_f32(const void* src, float* dst, int64_t n);
void q4_k_to_f32(const void* src, float* dst, int64_t n);
void q5_k_to_f32(const void* src, float* dst, int64_t n);
void q6_k_to_f32(const void* src, float* dst, int64_t n);

void q4_0_from_f32(const float* src, void* dst, int64_t n);
void q4_1_from_f32(const float* src, void* dst, int64_t n);
void q5_0_from_f32(const float* src, void* dst, int64_t n);
void q5_1_from_f32(const float* src, void* dst, int64_t n);
void q8_0_from_f32(const float* src, void* dst, int64_t n);
void q2_k_from_f32(const float* src, void* dst, int64_t n);
void q3_k_from_f32(const float* src, void* dst, int64_t n);
void q4_k_from_f32(const float* src, void* dst, int64_t n);
void q5_k_from_f32(const float* src, void* dst, int64_t n);
void q6_k_from_f32(const float* src, void* dst, int64_t n);

}  // namespace shoal::quants
