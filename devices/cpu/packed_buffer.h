// Memory of a CPU device in which weights are kept packed: the rows of matrices side by side in groups, as the kernels
// of matrix products read them fastest (devices/cpu/kernels/packed_layout.h). It is an extra buffer type of the device,
// "CPU0_Packed": what is set is packed on the way in, what is got is unpacked, bit for bit, so that only kernels
// sees a difference; only Tensor::data is not the standard layout, and so this is no host memory.
//
// Packed are matrices among the weights (is_packable); everything else lies here as anywhere. mul_mat, mul_mat_id and
// get_rows read packed rows; for other ops a plan unpacks them before each run.
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

/// A persistent weight with enough rows, of a type that kernels read packed; a function of the tensor alone.
bool is_packable(const Tensor& tensor);

/// Does the tensor, or what it is a view of, lie packed in its buffer?
bool is_packed(const Tensor& tensor);

/// The groups of a packed tensor, or of a view of whole groups.
struct PackedMatrices {
  const std::byte* first = nullptr;  ///< the first group of the first matrix
  size_t group_bytes = 0;
  size_t matrix_bytes = 0;  ///< from matrix to matrix (index over axes 2 and 3)
};
/// nullopt where the tensor is not packed, or begins inside a group, or has other rows than what it is a view of.
std::optional<PackedMatrices> packed_matrices(const Tensor& tensor);

/// All bytes of a packed tensor that is no view, in their usual order; rows [begin, end) of them, counted over axes 1
/// to
/// 3. Never fails, and allocates nothing.
void unpack_rows(const Tensor& packed, int64_t begin, int64_t end, std::byte* to);

/// Can the node read its source number `index`, which is packed, as it lies?
bool reads_packed(const Tensor& node, size_t index);

}  // namespace shoal::cpu
