// A tensor: dtype, 4-d shape and byte strides, the op that makes it, and where its bytes live.
// Tensors are owned by an arena (a Graph for compute tensors, a TensorContext for weights and caches)
// and referred to by plain pointers that stay valid for the arena's life. Building is single-threaded;
// a tensor whose graph is being run is read-only.
//
// shape[0] is the innermost axis, as in GGUF. strides[0] is the bytes of one block (for plain types one
// element), strides[i] bytes from one index of axis i to the next. A contiguous f32 [256, 4] has strides
// {4, 1024, 4096, 4096}; a q8_0 [256, 4] (34-byte blocks of 32) has {34, 272, 1088, 1088}.
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

/// What a tensor is for. Leaves (Op::kNone) are kInput, kWeight or kCache.
enum class Role : uint8_t {
  kCompute,  ///< made by an op
  kInput,    ///< leaf written by the caller before each run (tokens, positions, masks)
  kWeight,   ///< persistent leaf, constant while graphs run
  kCache,    ///< persistent leaf that set_rows may write (KV cache)
};

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape{1, 1, 1, 1};
  Strides strides{};
  Op op = Op::kNone;
  OpParams params;
  std::vector<Tensor*> src;  ///< nullptr where an optional source is absent
  Role role = Role::kCompute;
  bool is_output = false;  ///< kept until the caller has read it; never overwritten in place
  int id = -1;             ///< index in its graph's nodes or, for an input, inputs; else -1
  /// Of an input: what it is a copy of, in another graph or on another device (Graph::copy_of). What runs the graph
  /// writes it.
  const Tensor* copied_from = nullptr;

  // Views: this tensor's bytes are view_base's bytes from view_offset on. view_base is never a view itself.
  Tensor* view_base = nullptr;
  size_t view_offset = 0;

  // Placement, set by what allocates (see devices/buffer.h).
  Buffer* buffer = nullptr;
  std::byte* data = nullptr;       ///< address in the buffer; for a non-host buffer not to be dereferenced
  std::byte* workspace = nullptr;  ///< scratch of this node while it runs (Device::workspace_size bytes)
  PlacementLink placement;         ///< in the list of those that the buffer unplaces when it goes

  int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  int64_t rows() const { return shape[1] * shape[2] * shape[3]; }
  bool empty() const { return elements() == 0; }
  /// Bytes of the elements stored without gaps.
  size_t bytes() const;
  /// Bytes from the first to one past the last element, gaps included (== bytes() when contiguous).
  size_t span_bytes() const;
  bool is_contiguous() const;
  /// Rows (axis 0) are without gaps, whatever the outer strides are.
  bool is_row_contiguous() const;
  bool is_view() const { return view_base != nullptr; }
  bool is_leaf() const { return op == Op::kNone; }
  bool is_persistent() const { return role == Role::kWeight || role == Role::kCache; }
  /// The tensor that owns the bytes: view_base or this.
  const Tensor* storage() const { return view_base ? view_base : this; }
  Tensor* storage() { return view_base ? view_base : this; }
};

/// Strides of a contiguous tensor. Throws when shape[0] does not fill whole blocks.
Strides contiguous_strides(DType dtype, const Shape& shape);
bool same_shape(const Tensor& a, const Tensor& b);
/// "[256, 4]": trailing axes of length 1 are left out.
std::string to_string(const Shape& shape);
/// "blk.0.attn_q q8_0 [256, 256]", for messages.
std::string describe(const Tensor& tensor);

}  // namespace shoal
