// A tensor: dtype, 4-d shape and byte strides, the op that computes it, and the location of its bytes. A Graph owns its
// compute tensors and inputs. A TensorContext owns weights and caches. Plain pointers to tensors stay valid as long as
// the owner of the tensors exists. Graphs are built on one thread; while a graph runs, its tensors are read-only.
//
// shape[0] is the innermost axis, as in GGUF. strides[0] is the number of bytes of one block, which is one element in
// plain types. strides[i] is the number of bytes from one index of axis i to the next. A contiguous f32 [256, 4] has
// strides {4, 1024, 4096, 4096}; a q8_0 [256, 4], whose blocks have 32 elements and 34 bytes, has {34, 272, 1088,
// 1088}.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/dtype.h"
#include "graph/op.h"
#include "graph/placement.h"

namespace shoal {

inline constexpr int kMaxDims = 4;
using Shape = std::array<int64_t, kMaxDims>;
using Strides = std::array<size_t, kMaxDims>;

/// The purpose of a tensor. Leaves (Op::kNone) are kInput, kWeight or kCache.
enum class Role : uint8_t {
  kCompute,  ///< result of an op
  kInput,    ///< leaf written by the caller before each run (tokens, positions, masks)
  kWeight,   ///< persistent leaf, constant while graphs run
  kCache,    ///< persistent leaf that set_rows and set_slice may write (KV cache)
};

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape{1, 1, 1, 1};
  Strides strides{};
  Op op = Op::kNone;
  OpParams params;
  std::vector<Tensor*> src;  ///< nullptr for an absent optional source
  Role role = Role::kCompute;
  bool is_output = false;  ///< the bytes stay valid until the caller has read them; no op overwrites them in place
  int id = -1;             ///< index of a node in the graph's nodes, or of an input in the graph's inputs; -1 for other
                           ///< tensors
  /// For an input made by Graph::copy_of: the tensor of another graph or device whose bytes this input copies. The code
  /// that runs the graph copies the bytes.
  const Tensor* copied_from = nullptr;

  // A view's bytes begin at view_offset in the bytes of view_base. view_base is never itself a view.
  Tensor* view_base = nullptr;
  size_t view_offset = 0;

  // Placement, set by the allocator (see devices/buffer.h).
  Buffer* buffer = nullptr;
  std::byte* data = nullptr;       ///< address in the buffer; dereference it only if the buffer is in host memory
  std::byte* workspace = nullptr;  ///< scratch memory of this node during its run (Device::workspace_size bytes)
  PlacementLink placement;         ///< link in the list of tensors that the buffer unplaces when it is destroyed

  int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  int64_t rows() const { return shape[1] * shape[2] * shape[3]; }
  bool empty() const { return elements() == 0; }
  /// Number of bytes of all elements, without gaps.
  size_t bytes() const;
  /// Number of bytes from the start of the first element to the end of the last element, including gaps (== bytes() if
  /// contiguous).
  size_t span_bytes() const;
  bool is_contiguous() const;
  /// Whether the elements of each row (axis 0) are contiguous. The outer strides do not matter.
  bool is_row_contiguous() const;
  bool is_view() const { return view_base != nullptr; }
  bool is_leaf() const { return op == Op::kNone; }
  bool is_persistent() const { return role == Role::kWeight || role == Role::kCache; }
  /// The tensor that owns the bytes: view_base for a view, this tensor otherwise.
  const Tensor* storage() const { return view_base ? view_base : this; }
  Tensor* storage() { return view_base ? view_base : this; }
};

/// Strides of a contiguous tensor. Throws if shape[0] is not a whole number of blocks.
Strides contiguous_strides(DType dtype, const Shape& shape);
bool same_shape(const Tensor& a, const Tensor& b);
/// Returns a text such as "[256, 4]". Trailing axes of length 1 are omitted.
std::string to_string(const Shape& shape);
/// Returns a text for messages, such as "blk.0.attn_q q8_0 [256, 256]".
std::string describe(const Tensor& tensor);

}  // namespace shoal
