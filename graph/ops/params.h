// Typed parameters of the ops, plain comparable values. `fields` lists each parameter once, with the name
// under which it is printed, parsed and compared; printing and parsing need nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "graph/dtype.h"

namespace shoal {

/// Indices [begin, begin + length) of a global index space.
struct IndexRange {
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const IndexRange&) const = default;
};

/// get_rows, set_rows, mul_mat_id: which global indices the rows (experts) of source 0 stand for.
/// Empty = all of them, index i is row i. Otherwise source 0 holds the ranges one after the other:
/// {10,2},{40,3} means that its 5 rows are the global rows 10, 11, 40, 41, 42. An index outside the ranges
/// gives zeros (get_rows, mul_mat_id) or is skipped (set_rows).
struct SelectParams {
  std::vector<IndexRange> ranges;
  bool operator==(const SelectParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("ranges", s.ranges);
  }
};

struct ScaleParams {
  float scale = 1.0f;
  float bias = 0.0f;
  bool operator==(const ScaleParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("scale", s.scale);
    v("bias", s.bias);
  }
};

enum class UnaryKind : uint8_t {
#define SHOAL_UNARY(id, name) k##id,
#include "graph/activations.def"
  kCount
};
struct UnaryParams {
  UnaryKind kind = UnaryKind::kRelu;
  bool operator==(const UnaryParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("kind", s.kind);
  }
};

struct ClampParams {
  float min = 0.0f;
  float max = 0.0f;
  bool operator==(const ClampParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("min", s.min);
    v("max", s.max);
  }
};

/// act(gate) * up, with act = silu, gelu (tanh), gelu_erf, gelu_quick, relu.
enum class GluKind : uint8_t {
#define SHOAL_GLU(id, name) k##id,
#include "graph/activations.def"
  kCount
};
struct GluParams {
  GluKind kind = GluKind::kSwiglu;
  bool operator==(const GluParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("kind", s.kind);
  }
};

struct NormParams {
  float eps = 1e-5f;
  bool operator==(const NormParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("eps", s.eps);
  }
};

struct SoftMaxParams {
  float scale = 1.0f;  ///< applied to x before the mask is added
  bool operator==(const SoftMaxParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("scale", s.scale);
  }
};

/// Which elements of a row are rotated together.
enum class RopeMode : uint8_t {
  kNeighbours,  ///< (2i, 2i+1): GGUF's llama files
  kHalves,      ///< (i, i + dims/2): "neox"
  kCount
};
/// Angle of pair i at position p: p * base^(-2i/dims) / freq_factors[i], then scaled as in YaRN
/// (Peng et al. 2023): interpolated by freq_scale, blended with the unscaled angle by ext_factor between
/// the dimensions where beta_fast and beta_slow turns fit into original_context, rounded outwards to whole pairs where
/// `truncate` says so.
struct RopeParams {
  int64_t dims = 0;  ///< the elements [offset, offset + dims) are rotated, the rest copied
  int64_t offset = 0;
  RopeMode mode = RopeMode::kNeighbours;
  float base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  int64_t original_context = 0;
  bool truncate = true;
  bool operator==(const RopeParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("dims", s.dims);
    v("offset", s.offset);
    v("mode", s.mode);
    v("base", s.base);
    v("freq_scale", s.freq_scale);
    v("ext_factor", s.ext_factor);
    v("attn_factor", s.attn_factor);
    v("beta_fast", s.beta_fast);
    v("beta_slow", s.beta_slow);
    v("original_context", s.original_context);
    v("truncate", s.truncate);
  }
};

struct TopKParams {
  int64_t k = 1;
  bool operator==(const TopKParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("k", s.k);
  }
};

struct ArgsortParams {
  bool descending = false;
  bool operator==(const ArgsortParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("descending", s.descending);
  }
};

struct AttentionParams {
  float scale = 1.0f;    ///< applied to q.k
  float softcap = 0.0f;  ///< c > 0: scores become c * tanh(score / c) before masking
  bool causal = false;   ///< needs positions: query t sees the kv rows s <= positions[t]
  int64_t window = 0;    ///< w > 0 (needs positions): only the rows s > positions[t] - w
  /// n > 0: batches of k are some of n parts of a text's rows, to be merged (merge_attention), and a row of the result
  /// has one more element: the logarithm of the sum of e^score
  int64_t parts = 0;
  bool operator==(const AttentionParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("scale", s.scale);
    v("softcap", s.softcap);
    v("causal", s.causal);
    v("window", s.window);
    v("parts", s.parts);
  }
};

/// Which of g key heads serves head x of h: x / (h / g), the heads of a key head being neighbours, or, tiled, x % g.
struct GatedDeltaParams {
  bool tiled = false;
  bool operator==(const GatedDeltaParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("tiled", s.tiled);
  }
};

struct CastParams {
  DType dtype = DType::kF32;
  bool operator==(const CastParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("dtype", s.dtype);
  }
};

struct ConcatParams {
  int axis = 0;
  bool operator==(const ConcatParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("axis", s.axis);
  }
};

struct RepeatParams {
  std::array<int64_t, 4> shape{1, 1, 1, 1};  ///< of the result; each axis a multiple of the source's
  bool operator==(const RepeatParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("shape", s.shape);
  }
};

struct FillParams {
  DType dtype = DType::kF32;  ///< f32, f16, bf16, i32 or i64
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  float value = 0.0f;
  bool operator==(const FillParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("dtype", s.dtype);
    v("shape", s.shape);
    v("value", s.value);
  }
};

struct ReshapeParams {
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  bool operator==(const ReshapeParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("shape", s.shape);
  }
};

struct SliceParams {
  int axis = 0;
  int64_t begin = 0;  ///< in elements; along axis 0 of a quantised tensor a multiple of the block
  int64_t length = 0;
  bool operator==(const SliceParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("axis", s.axis);
    v("begin", s.begin);
    v("length", s.length);
  }
};

struct PermuteParams {
  std::array<int, 4> axes{0, 1, 2, 3};  ///< result axis i is source axis axes[i]
  bool operator==(const PermuteParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("axes", s.axes);
  }
};

/// Flat collectives: every operand is contiguous and seen as one row of elements. What counts are: Extent in
/// graph/collective.h; kinds of whole messages have none.
struct CollectiveParams {
  int rank = 0;
  std::vector<int64_t> counts;
  bool operator==(const CollectiveParams&) const = default;
  template <class Self, class V>
  static void fields(Self& s, V&& v) {
    v("rank", s.rank);
    v("counts", s.counts);
  }
};

using NoParams = std::monostate;
using OpParams =
    std::variant<NoParams, SelectParams, ScaleParams, UnaryParams, ClampParams, GluParams, NormParams, SoftMaxParams,
                 RopeParams, TopKParams, ArgsortParams, AttentionParams, GatedDeltaParams, CastParams, ConcatParams,
                 RepeatParams, FillParams, ReshapeParams, SliceParams, PermuteParams, CollectiveParams>;

}  // namespace shoal
