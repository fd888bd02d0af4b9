// Memory of a CPU device that stores weights packed: the rows of a matrix are interleaved in groups, in the order that
// matrix products read fastest (devices/cpu/kernels/packed_layout.h). It is an extra buffer type of the device,
// "CPU0_Packed". Setting a tensor packs it, and getting it unpacks it bit for bit, so that only kernels see the
// difference. Tensor::data does not have the standard layout, so this is not host memory.
//
// Only packable matrices are packed (is_packable); all other weights are stored as usual. mul_mat, mul_mat_id and
// get_rows read packed rows. For other ops, a plan unpacks the weights in each run.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "devices/cpu/cpu_buffer.h"
#include "graph/tensor.h"

namespace shoal::cpu {

class PackedBufferType final : public CpuBufferType {
 public:
  using CpuBufferType::CpuBufferType;
  std::string name() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t alloc_size(const Tensor& tensor) const override;
  bool is_host() const override { return false; }
};

/// Whether the tensor is a persistent weight with enough rows and a type that kernels read packed. Depends on the
/// tensor alone.
bool is_packable(const Tensor& tensor);

/// Whether the tensor, or the tensor that it is a view of, is stored packed.
bool is_packed(const Tensor& tensor);

/// The groups of a packed tensor, or of a view of whole groups.
struct PackedMatrices {
  const std::byte* first = nullptr;  ///< first group of the first matrix
  size_t group_bytes = 0;
  size_t matrix_bytes = 0;  ///< bytes from one matrix to the next, in the order of axes 2 and 3
};
/// Returns nullopt if the tensor is not packed, is empty, begins inside a group, or differs from its storage in row
/// length or strides.
std::optional<PackedMatrices> packed_matrices(const Tensor& tensor);

/// Unpacks rows [begin, end) of a packed tensor that is not a view. Row numbers count over axes 1 to 3. Row r is
/// written at byte r * strides[1] of `to`. Never fails or allocates.
void unpack_rows(const Tensor& packed, int64_t begin, int64_t end, std::byte* to);

/// Whether the node can read its packed source `index` without unpacking.
bool reads_packed(const Tensor& node, size_t index);

}  // namespace shoal::cpu
