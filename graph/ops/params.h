// Typed parameters of the ops: plain comparable values. The member `fields` of each type lists every parameter once,
// with its name in the text form. Printing, parsing and comparison use only this list.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "graph/dtype.h"

namespace shoal {

/// A parameter's name in the text form and a pointer to its member.
template <class Place>
struct Param {
  std::string_view name;
  Place place;
};
template <class Place>
Param(std::string_view, Place) -> Param<Place>;  // Clang 14 cannot deduce arguments of aggregates
template <class Params>
  requires requires { Params::fields(); }
constexpr bool operator==(const Params& a, const Params& b) {
  return std::apply([&](const auto&... field) { return ((a.*field.place == b.*field.place) && ...); },
                    Params::fields());
}

/// Indices [begin, begin + length) of a global index space.
struct IndexRange {
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const IndexRange&) const = default;
};

/// For get_rows, set_rows and mul_mat_id: the global indices of the rows (experts) of source 0. If there are no ranges,
/// index i is row i. Otherwise source 0 holds the rows of the ranges in order: with the ranges {10,2},{40,3}, the 5
/// rows of source 0 are the global rows 10, 11, 40, 41, 42. An index outside the ranges gives zeros (get_rows,
/// mul_mat_id) or is skipped (set_rows).
struct SelectParams {
  std::vector<IndexRange> ranges;
  static constexpr auto fields() { return std::tuple(Param{"ranges", &SelectParams::ranges}); }
};

struct ScaleParams {
  float scale = 1.0f;
  float bias = 0.0f;
  static constexpr auto fields() {
    return std::tuple(Param{"scale", &ScaleParams::scale}, Param{"bias", &ScaleParams::bias});
  }
};

enum class UnaryKind : uint8_t {
#define SHOAL_UNARY(id, name) k##id,
#include "graph/activations.def"
  kCount
};
struct UnaryParams {
  UnaryKind kind = UnaryKind::kRelu;
  static constexpr auto fields() { return std::tuple(Param{"kind", &UnaryParams::kind}); }
};

struct ClampParams {
  float min = 0.0f;
  float max = 0.0f;
  static constexpr auto fields() {
    return std::tuple(Param{"min", &ClampParams::min}, Param{"max", &ClampParams::max});
  }
};

/// act(gate) * up; act is silu, gelu (tanh), gelu_erf, gelu_quick or relu.
enum class GluKind : uint8_t {
#define SHOAL_GLU(id, name) k##id,
#include "graph/activations.def"
  kCount
};
struct GluParams {
  GluKind kind = GluKind::kSwiglu;
  static constexpr auto fields() { return std::tuple(Param{"kind", &GluParams::kind}); }
};

struct NormParams {
  float eps = 1e-5f;
  static constexpr auto fields() { return std::tuple(Param{"eps", &NormParams::eps}); }
};

struct SoftMaxParams {
  float scale = 1.0f;  ///< factor of x; the mask is added after the scaling
  static constexpr auto fields() { return std::tuple(Param{"scale", &SoftMaxParams::scale}); }
};

/// The pairs of elements of a row that rope rotates.
enum class RopeMode : uint8_t {
  kNeighbours,  ///< (2i, 2i+1): llama models in GGUF files
  kHalves,      ///< (i, i + dims/2): the mode "neox" of llama.cpp
  kCount
};
/// The angle of pair i at position p is p * base^(-2i/dims) / freq_factors[i], scaled as in YaRN (Peng et al. 2023).
/// YaRN multiplies the angle by freq_scale. For a range of pairs, ext_factor blends the scaled angle with the unscaled
/// angle. Over original_context positions, the first pair of the range makes beta_fast rotations, and the last pair
/// makes beta_slow rotations. `truncate` rounds the ends of this range outwards to whole pairs.
struct RopeParams {
  int64_t dims = 0;  ///< the elements [offset, offset + dims) are rotated, the other elements are copied
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
  static constexpr auto fields() {
    return std::tuple(
        Param{"dims", &RopeParams::dims}, Param{"offset", &RopeParams::offset}, Param{"mode", &RopeParams::mode},
        Param{"base", &RopeParams::base}, Param{"freq_scale", &RopeParams::freq_scale},
        Param{"ext_factor", &RopeParams::ext_factor}, Param{"attn_factor", &RopeParams::attn_factor},
        Param{"beta_fast", &RopeParams::beta_fast}, Param{"beta_slow", &RopeParams::beta_slow},
        Param{"original_context", &RopeParams::original_context}, Param{"truncate", &RopeParams::truncate});
  }
};

struct TopKParams {
  int64_t k = 1;
  static constexpr auto fields() { return std::tuple(Param{"k", &TopKParams::k}); }
};

struct AttentionParams {
  float scale = 1.0f;    ///< factor of the product of q and k
  float softcap = 0.0f;  ///< if c > 0, scores become c * tanh(score / c) before masking
  bool causal = false;   ///< needs positions: query t sees the kv rows s <= positions[t]
  int64_t window = 0;    ///< if w > 0 (needs positions), query t sees only the rows s > positions[t] - w
  /// If n > 0, the rows of a sequence are divided into n parts, and each batch of k holds one of these parts.
  /// merge_attention merges the results of the parts. Each row of the result then has an additional element, the
  /// logarithm of the sum of e^score.
  int64_t parts = 0;
  static constexpr auto fields() {
    return std::tuple(Param{"scale", &AttentionParams::scale}, Param{"softcap", &AttentionParams::softcap},
                      Param{"causal", &AttentionParams::causal}, Param{"window", &AttentionParams::window},
                      Param{"parts", &AttentionParams::parts});
  }
};

/// With h heads and g key heads, head x uses key head x / (h / g), so heads that share a key head are adjacent. If
/// `tiled`, head x uses key head x % g.
struct GatedDeltaParams {
  bool tiled = false;
  static constexpr auto fields() { return std::tuple(Param{"tiled", &GatedDeltaParams::tiled}); }
};

struct CastParams {
  DType dtype = DType::kF32;
  static constexpr auto fields() { return std::tuple(Param{"dtype", &CastParams::dtype}); }
};

struct ConcatParams {
  int axis = 0;
  static constexpr auto fields() { return std::tuple(Param{"axis", &ConcatParams::axis}); }
};

struct RepeatParams {
  std::array<int64_t, 4> shape{1, 1, 1, 1};  ///< result shape; each length is a multiple of the source's length on the
                                             ///< same axis
  static constexpr auto fields() { return std::tuple(Param{"shape", &RepeatParams::shape}); }
};

struct FillParams {
  DType dtype = DType::kF32;  ///< f32, f16, bf16, i32 or i64
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  float value = 0.0f;
  static constexpr auto fields() {
    return std::tuple(Param{"dtype", &FillParams::dtype}, Param{"shape", &FillParams::shape},
                      Param{"value", &FillParams::value});
  }
};

struct ReshapeParams {
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  static constexpr auto fields() { return std::tuple(Param{"shape", &ReshapeParams::shape}); }
};

struct SliceParams {
  int axis = 0;
  int64_t begin = 0;  ///< in elements; on axis 0 of a quantised tensor, a multiple of the block size
  int64_t length = 0;
  static constexpr auto fields() {
    return std::tuple(Param{"axis", &SliceParams::axis}, Param{"begin", &SliceParams::begin},
                      Param{"length", &SliceParams::length});
  }
};

struct PermuteParams {
  std::array<int, 4> axes{0, 1, 2, 3};  ///< result axis i is source axis axes[i]
  static constexpr auto fields() { return std::tuple(Param{"axes", &PermuteParams::axes}); }
};

/// Collectives are flat: every operand is contiguous and treated as one row of elements. Extent in graph/collective.h
/// defines the meaning of `counts`. `counts` is empty for collectives of whole messages.
struct CollectiveParams {
  int rank = 0;
  std::vector<int64_t> counts;
  static constexpr auto fields() {
    return std::tuple(Param{"rank", &CollectiveParams::rank}, Param{"counts", &CollectiveParams::counts});
  }
};

using NoParams = std::monostate;
using OpParams =
    std::variant<NoParams, SelectParams, ScaleParams, UnaryParams, ClampParams, GluParams, NormParams, SoftMaxParams,
                 RopeParams, TopKParams, AttentionParams, GatedDeltaParams, CastParams, ConcatParams, RepeatParams,
                 FillParams, ReshapeParams, SliceParams, PermuteParams, CollectiveParams>;

/// Calls visit(name, value) for each parameter in `params`.
template <class Variant, class Visit>
void for_each_param(Variant& params, Visit&& visit) {
  std::visit(
      [&](auto& alternative) {
        using Params = std::remove_cvref_t<decltype(alternative)>;
        if constexpr (!std::is_same_v<Params, NoParams>) {
          std::apply([&](const auto&... field) { (visit(field.name, alternative.*field.place), ...); },
                     Params::fields());
        }
      },
      params);
}

}  // namespace shoal
