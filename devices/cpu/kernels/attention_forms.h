// Declares the functions of AttentionKernels and builds their table.
#pragma once

#include "devices/cpu/kernels/attention.h"
#include "devices/cpu/kernels/attention_rows.h"

namespace shoal::cpu::SHOAL_ISA {

/// Kv is one of the KV row types in attention_rows.h.
template <class Kv>
void row_scores(const RowScores& args);  // attention_scores.cpp
template <class Kv>
void row_sums(const RowSums& args);            // attention_sums.cpp
void row_soft_max(const BlockSoftMax& args);   // attention_soft_max.cpp
void lane_soft_max(const BlockSoftMax& args);  // attention_soft_max.cpp
void lane_scores(const LaneScores& args);      // attention_lanes.cpp
void lane_sums(const LaneSums& args);          // attention_lanes.cpp
void pack_queries(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                  float* to);  // attention_lanes.cpp
void transpose_floats(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride);  // attention_lanes.cpp

template <class Kv>
inline constexpr AttentionKernels::Rows kRowsOf = {row_scores<Kv>, row_sums<Kv>};

inline constexpr AttentionKernels kAttentionKernels = {
    {
        kRowsOf<KvFloats<RowsF32>>,
        kRowsOf<KvFloats<RowsF16>>,
        kRowsOf<KvFloats<RowsBF16>>,
        {},
        {},  // i32, i64
        kRowsOf<KvBlocks<Q4_0>>,
        kRowsOf<KvBlocks<Q4_1>>,
        kRowsOf<KvBlocks<Q5_0>>,
        kRowsOf<KvBlocks<Q5_1>>,
        kRowsOf<KvQ8_0>,
        {},
        {},
        {},
        {},
        {},  // q2_K .. q6_K
        kRowsOf<KvBlocks<IQ4_NL>>,
    },
    row_soft_max,
    lane_scores,
    lane_sums,
    lane_soft_max,
    pack_queries,
    transpose_floats,
};
static_assert(static_cast<int>(DType::kQ8_0) == 9 && static_cast<int>(DType::kIQ4_NL) == 15,
              "the entries are in the order of the enumeration");

}  // namespace shoal::cpu::SHOAL_ISA
