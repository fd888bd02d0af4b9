// Memory of a CPU device in which weights are packed. The rows of a packed matrix are interleaved in groups. Matrix
// products read the matrix fastest in this layout (devices/cpu/kernels/packed_layout.h). The buffer type is an extra
// type of the device, with a name such as "CPU0_Packed". Setting a tensor packs it. Getting a tensor unpacks it bit for
// bit. So only kernels see the packed layout. Tensor::data does not have the standard layout, so the type is not host
// memory.
//
// Only packable matrices are packed (is_packable). All other weights have the standard layout. mul_mat, mul_mat_id and
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

/// Whether the tensor is contiguous, is not a view, has enough rows, and has a type that the kernels in use can read in
/// packed layout. The result does not depend on the placement of the tensor.
bool is_packable(const Tensor& tensor);

/// Whether the tensor is stored packed. A view counts as packed if its base is stored packed.
bool is_packed(const Tensor& tensor);

/// The groups of a packed tensor, or of a view that consists of whole groups.
struct PackedMatrices {
  const std::byte* first = nullptr;  ///< first group of the first matrix
  size_t group_bytes = 0;
  size_t matrix_bytes = 0;  ///< bytes between the starts of successive matrices, which are in the order of axes 2 and 3
};
/// Returns nullopt if the tensor is not packed, is empty, or begins in the middle of a group. Also returns nullopt if
/// the tensor differs from its storage in row length or strides.
std::optional<PackedMatrices> packed_matrices(const Tensor& tensor);

/// Unpacks rows [begin, end) of a packed tensor that is not a view. Rows are numbered over axes 1 to 3. Row r is
/// written to byte r * strides[1] of `to`. Never fails or allocates.
void unpack_rows(const Tensor& packed, int64_t begin, int64_t end, std::byte* to);

/// Whether the node can read its source number `index` in packed layout.
bool reads_packed(const Tensor& node, size_t index);

}  // namespace shoal::cpu
