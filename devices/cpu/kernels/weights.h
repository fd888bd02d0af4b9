// Declares the kernels of weights as templates. The template parameter is a format (formats.h) or a type of float rows
// (half.h). A comment after a declaration names a .cpp file. This file defines and instantiates the declared function
// and the functions after it, up to the next such comment. table.cpp puts all these functions into a table.
#pragma once

#include "devices/cpu/kernels/formats.h"
#include "devices/cpu/kernels/kernels.h"

namespace shoal::cpu::SHOAL_ISA {

/// Largest number of columns for which the product of packed groups is faster without panels. Up to this number, each
/// weight is decoded once for all columns.
inline constexpr int kDotColumns = 6;

/// Member of WeightKernels.
template <class Format>
void dot(const DotArgs& args);  // dot_rows.cpp

/// Members of PackedKernels.
template <class Format>
size_t packed_bytes(int64_t k);  // packed.cpp
template <class Format>
void pack(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group);
template <class Format>
void unpack(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to);
template <class Rows>
size_t packed_row_bytes(int64_t k);
template <class Rows>
void pack_rows(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group);
template <class Rows>
void unpack_row(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to);
template <class Format>
void packed_dot(const DotArgs& args);  // packed_dot.cpp
template <class Rows>
void packed_dot_rows(const DotArgs& args);  // packed_dot_words.cpp; only for rows of f16 and bf16

/// Members of PanelKernels. The size of a panel is the same for all quantised formats with the same kGroups and kAdds.
template <class Format>
void panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel);  // panel_pack.cpp
template <class Format>
void panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel);
template <class Format>
void multiply(const PanelArgs& args);  // panel_quantized.cpp
template <int kGroups, bool kAdds>
size_t panel_bytes(int64_t k);

void float_panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k,
                           std::byte* panel);  // panel_float.cpp; panels of f32
void float_panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel);
void multiply_floats(const PanelArgs& args);
size_t float_panel_bytes(int64_t k);

template <class Rows>
void word_panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k,
                          std::byte* panel);  // panel_words.cpp
template <class Rows>
void word_panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel);
void multiply_words(const PanelArgs& args);
template <class Rows>
void add_outliers(const DotArgs& args);
template <class Rows>
void add_packed_outliers(const DotArgs& args);
size_t word_panel_bytes(int64_t k);

template <class Format>
void to_f32(const void* src, float* dst, int64_t n);  // to_f32.cpp
template <class Rows>
void rows_to_f32(const void* src, float* dst, int64_t n);

/// Members of VectorKernels, in vector.cpp.
float exp_sum(const float* x, float shift, float* y, int64_t n);
float largest(const float* x, int64_t n);

/// Instantiates a template for every type of float rows. graph/dtypes.def lists the quantised formats.
#define SHOAL_FOR_ROWS(declaration, arguments) \
  declaration<RowsF32> arguments;              \
  declaration<RowsF16> arguments;              \
  declaration<RowsBF16> arguments;

}  // namespace shoal::cpu::SHOAL_ISA
