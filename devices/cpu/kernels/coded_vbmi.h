// Kernels for packed rows of the types with codebooks. The kernels need processors that can look up bytes in a
// 128-byte table with one instruction (AVX-512 VBMI). No instruction-set level includes VBMI. On processors without
// VBMI, rows of these types are not packed.
#pragma once

#include "devices/cpu/kernels/kernels.h"

namespace shoal::cpu {

struct CodedPacked {
  DType dtype;
  PackedKernels packed;
  void (*panel_from_packed)(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel);
};

namespace avx512vbmi {
inline constexpr int kCodedPackedCount = 5;
extern const CodedPacked kCodedPacked[kCodedPackedCount];
}  // namespace avx512vbmi

}  // namespace shoal::cpu
