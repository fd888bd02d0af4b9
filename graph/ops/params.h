// Typed parameters of the ops: plain comparable values. The member `fields` of each type lists every parameter once,
// with its name in the text form. Printing, parsing and comparison use only this list.
#pragma once

#include <array>
#include <cstdint>
#include <string>
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

/// For set_slice: the indices [begin, begin + n) of axis `axis` of the cache are written; n is the length of this axis
/// of the new values. `ranges` has the meaning of SelectParams::ranges for the indices of this axis. An index outside
/// the ranges is skipped.
struct SetSliceParams {
  int axis = 1;
  int64_t begin = 0;
  std::vector<IndexRange> ranges;
  static constexpr auto fields() {
    return std::tuple(Param{"axis", &SetSliceParams::axis}, Param{"begin", &SetSliceParams::begin},
                      Param{"ranges", &SetSliceParams::ranges});
  }
};

struct ProductParams {
  DType dtype = DType::kF32;  ///< dtype of the result: f32, f16 or bf16; the sums are f32
  static constexpr auto fields() { return std::tuple(Param{"dtype", &ProductParams::dtype}); }
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
  DType dtype = DType::kF32;  ///< dtype of the result: f32, f16 or bf16; the norm is computed in f32
  static constexpr auto fields() {
    return std::tuple(Param{"eps", &NormParams::eps}, Param{"dtype", &NormParams::dtype});
  }
};

enum class CompareKind : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kCount };
struct CompareParams {
  CompareKind kind = CompareKind::kEqual;
  static constexpr auto fields() { return std::tuple(Param{"kind", &CompareParams::kind}); }
};

/// Parameters with two values refer to axis 0 (width) and axis 1 (height). `pads` has the numbers of zeros before and
/// after axis 0, then before and after axis 1. The output length of an axis is
/// (length + pads - dilation * (kernel - 1) - 1) / stride + 1, rounded down.
struct ConvParams {
  std::array<int64_t, 2> stride{1, 1};
  std::array<int64_t, 4> pads{0, 0, 0, 0};
  std::array<int64_t, 2> dilation{1, 1};
  int64_t groups = 1;  ///< input and output channels are divided into this number of groups, which do not interact
  static constexpr auto fields() {
    return std::tuple(Param{"stride", &ConvParams::stride}, Param{"pads", &ConvParams::pads},
                      Param{"dilation", &ConvParams::dilation}, Param{"groups", &ConvParams::groups});
  }
};

/// The output length of an axis is (length - 1) * stride - pads + dilation * (kernel - 1) + output_pad + 1. See
/// ConvParams for the order of the values.
struct ConvTransposeParams {
  std::array<int64_t, 2> stride{1, 1};
  std::array<int64_t, 4> pads{0, 0, 0, 0};  ///< numbers of output elements that are cut off
  std::array<int64_t, 2> dilation{1, 1};
  std::array<int64_t, 2> output_pad{0, 0};  ///< additional output elements after an axis; less than stride or dilation
  int64_t groups = 1;
  static constexpr auto fields() {
    return std::tuple(Param{"stride", &ConvTransposeParams::stride}, Param{"pads", &ConvTransposeParams::pads},
                      Param{"dilation", &ConvTransposeParams::dilation},
                      Param{"output_pad", &ConvTransposeParams::output_pad},
                      Param{"groups", &ConvTransposeParams::groups});
  }
};

enum class PoolKind : uint8_t { kMax, kAverage, kCount };
/// See ConvParams for the order of the values and the output lengths.
struct PoolParams {
  PoolKind kind = PoolKind::kMax;
  std::array<int64_t, 2> kernel{1, 1};
  std::array<int64_t, 2> stride{1, 1};
  std::array<int64_t, 4> pads{0, 0, 0, 0};  ///< a maximum ignores padding
  bool count_pads = false;                  ///< whether an average counts padding as zeros or ignores padding
  static constexpr auto fields() {
    return std::tuple(Param{"kind", &PoolParams::kind}, Param{"kernel", &PoolParams::kernel},
                      Param{"stride", &PoolParams::stride}, Param{"pads", &PoolParams::pads},
                      Param{"count_pads", &PoolParams::count_pads});
  }
};

enum class PadMode : uint8_t {
  kConstant,
  kReflect,  ///< mirrors at the outermost element, which is not repeated; a pad is shorter than its axis
  kEdge,     ///< repeats the outermost element
  kCount
};
struct PadParams {
  std::array<int64_t, 4> before{0, 0, 0, 0};  ///< number of new elements before each axis
  std::array<int64_t, 4> after{0, 0, 0, 0};
  PadMode mode = PadMode::kConstant;
  float value = 0.0f;  ///< of the new elements in mode kConstant
  static constexpr auto fields() {
    return std::tuple(Param{"before", &PadParams::before}, Param{"after", &PadParams::after},
                      Param{"mode", &PadParams::mode}, Param{"value", &PadParams::value});
  }
};

enum class UpsampleMode : uint8_t {
  kNearest,   ///< element i of an axis is element floor(i * length / size) of the source
  kBilinear,  ///< interpolates at (i + 1/2) * length / size - 1/2, clamped to [0, length - 1]
  kCorners,   ///< interpolates at i * (length - 1) / (size - 1), so that the corners keep their values
  kCount
};
struct UpsampleParams {
  std::array<int64_t, 2> size{1, 1};  ///< lengths of axes 0 and 1 of the result
  UpsampleMode mode = UpsampleMode::kNearest;
  static constexpr auto fields() {
    return std::tuple(Param{"size", &UpsampleParams::size}, Param{"mode", &UpsampleParams::mode});
  }
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
  int64_t page = 0;  ///< number of kv rows per page; 0: the kv rows are the rows of one sequence, in order
  static constexpr auto fields() {
    return std::tuple(Param{"scale", &AttentionParams::scale}, Param{"softcap", &AttentionParams::softcap},
                      Param{"causal", &AttentionParams::causal}, Param{"window", &AttentionParams::window},
                      Param{"parts", &AttentionParams::parts}, Param{"page", &AttentionParams::page});
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
  int64_t step = 1;  ///< distance of the selected indices; at least 1; on axis 0 of a quantised tensor, only 1
  static constexpr auto fields() {
    return std::tuple(Param{"axis", &SliceParams::axis}, Param{"begin", &SliceParams::begin},
                      Param{"length", &SliceParams::length}, Param{"step", &SliceParams::step});
  }
};

struct PermuteParams {
  std::array<int, 4> axes{0, 1, 2, 3};  ///< result axis i is source axis axes[i]
  static constexpr auto fields() { return std::tuple(Param{"axes", &PermuteParams::axes}); }
};

/// The required layout of a node: "mirrored", "axis 1" (an even split over any number of devices), or runs with their
/// owners (meta/layout/partition.h): "axis 1 [3:{0} 2:{1}]", which plans print as "split 1 [3:{0} 2:{1}]".
struct ReshardParams {
  std::string layout = "mirrored";
  static constexpr auto fields() { return std::tuple(Param{"layout", &ReshardParams::layout}); }
};

/// An op that a program or plug-in has registered.
struct ExternalParams {
  std::string op;    ///< registered name
  std::string args;  ///< text that the functions of the op read; its format is defined by the op
  static constexpr auto fields() {
    return std::tuple(Param{"op", &ExternalParams::op}, Param{"args", &ExternalParams::args});
  }
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
    std::variant<NoParams, SelectParams, SetSliceParams, ProductParams, ScaleParams, UnaryParams, ClampParams, GluParams,
                 NormParams, CompareParams, SoftMaxParams, RopeParams, TopKParams, AttentionParams, ConvParams,
                 ConvTransposeParams, PoolParams, PadParams, UpsampleParams, GatedDeltaParams, CastParams, ConcatParams,
                 RepeatParams, FillParams, ExternalParams, ReshapeParams, SliceParams, PermuteParams, ReshardParams,
                 CollectiveParams>;

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
