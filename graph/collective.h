// The collectives: an enumeration, and a table with the properties of each kind. Both are generated from
// graph/collectives.def. Local graphs, communicators, costs and benchmarks use this table. All functions are
// thread-safe.
//
//   Example: an all_gather of 3 ranks with counts 4 6 0. Rank 1 reads its own 6 elements (elements_in) and writes
//   all 10 elements (elements_out). The first 4 elements come from rank 0 (elements_between 0 and 1). On average,
//   each rank receives 2/3 of the 10 elements (bus_factor).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "graph/op.h"

namespace shoal {

enum class Collective : uint8_t {
#define SHOAL_COLLECTIVE(id, ...) k##id,
#include "graph/collectives.def"
  kCount
};
inline constexpr std::array kCollectives{
#define SHOAL_COLLECTIVE(id, ...) Collective::k##id,
#include "graph/collectives.def"
};

/// The elements that one rank reads or writes. `count`, `counts` and `root` are members of Amounts; n is the number of
/// ranks.
enum class Extent : uint8_t {
  kMessage,    ///< `count` elements
  kOfRoot,     ///< `count` elements on the root, no elements on other ranks
  kOwnPart,    ///< counts[rank] elements
  kAllParts,   ///< the parts of all n ranks, in rank order
  kPartsTo,    ///< counts[rank * n + target] elements for each rank `target`, in rank order
  kPartsFrom,  ///< counts[source * n + rank] elements from each rank `source`, in rank order
};

/// Whether a rank's input may be inside its output buffer.
enum class InPlace : uint8_t {
  kNever,
  kFirst,    ///< input and output may be the same buffer
  kOwnPart,  ///< the input may be the rank's own part of the output
};

struct CollectiveInfo {
  Collective kind;
  std::string_view name;  ///< as printed and parsed: "all_reduce"
  Op node;                ///< op of the collective's nodes in local graphs; kNone if plans do not use this collective
  bool sums;              ///< whether the collective adds the elements of all ranks, in rank order; if so, the dtype
                          ///< must be in kSummable
  Extent in, out;
  InPlace in_place;
  int phases;  ///< number of times that a rank waits for all ranks; 2 for an all_reduce (reduce_scatter, then
               ///< all_gather)

  bool has_root() const { return in == Extent::kOfRoot || out == Extent::kOfRoot; }
  bool is_pairwise() const { return in == Extent::kPartsTo; }
  /// Length of Amounts::counts.
  size_t counts(int ranks) const;
};
const CollectiveInfo& info(Collective kind);

/// The dtypes that can be summed. f16 and bf16 are added in f32.
inline constexpr std::initializer_list<DType> kSummable{DType::kF32, DType::kF16, DType::kBF16, DType::kI32};
bool is_summable(DType dtype);

std::string_view name_of(Collective kind);
std::optional<Collective> collective_from_name(std::string_view name);
/// The collective that a node with this op runs.
Collective collective_of(Op op);

/// Size of one collective, in elements. All ranks pass the same values.
struct Amounts {
  int ranks = 1;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  int root = 0;
};
/// Number of elements that a rank reads (elements_in) and writes (elements_out).
int64_t elements_in(Collective kind, const Amounts& amounts, int rank);
int64_t elements_out(Collective kind, const Amounts& amounts, int rank);
/// Number of elements that rank `from` sends to rank `to`; the two ranks may be equal. Not defined for collectives that
/// sum.
int64_t elements_between(Collective kind, const Amounts& amounts, int from, int to);

/// Minimum traffic of each rank, as a multiple of the message size: phases * (n - 1) / n, or 1 for collectives with a
/// root. The message size is the larger of a rank's input and output.
double bus_factor(Collective kind, int ranks);

}  // namespace shoal
