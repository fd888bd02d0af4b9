// The collectives: the enumeration and what is decided once per kind for local graphs, communicators, costs and
// benchmarks. Both come from the list graph/collectives.def. Plain data and functions, thread-safe.
//
//   all_gather of 3 ranks, counts 4 6 0: rank 1 reads its 6 elements (elements_in) and writes all 10 (elements_out),
//   the 4 of rank 0 (elements_between 0 and 1) first; on average 2/3 of the 10 must come from others (bus_factor).
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

/// What a rank reads or writes; `count`, `counts` and `root` are those of Amounts.
enum class Extent : uint8_t {
  kMessage,    ///< count elements
  kOfRoot,     ///< count elements on the root, nothing on the others
  kOwnPart,    ///< counts[rank]
  kAllParts,   ///< the n counts added up, in rank order
  kPartsTo,    ///< counts[rank * n + to], for ranks 0..n-1 in order
  kPartsFrom,  ///< counts[from * n + rank], from ranks 0..n-1 in order
};

/// Where a rank's input may lie in its output.
enum class InPlace : uint8_t {
  kNever,
  kFirst,    ///< they may be the same
  kOwnPart,  ///< where the rank's own part is
};

struct CollectiveInfo {
  Collective kind;
  std::string_view name;  ///< as printed and parsed: "all_reduce"
  Op node;                ///< of local graphs; kNone: no plan uses it
  bool sums;              ///< adds the ranks' elements, in rank order: dtypes are kSummable
  Extent in, out;
  InPlace in_place;
  int phases;  ///< how often one waits for all: an all_reduce is a reduce_scatter and an all_gather

  bool has_root() const { return in == Extent::kOfRoot || out == Extent::kOfRoot; }
  bool is_pairwise() const { return in == Extent::kPartsTo; }
  /// Amounts::counts has this many.
  size_t counts(int ranks) const;
};
const CollectiveInfo& info(Collective kind);

/// Half types are added in f32.
inline constexpr std::initializer_list<DType> kSummable{DType::kF32, DType::kF16, DType::kBF16, DType::kI32};
bool is_summable(DType dtype);

std::string_view name_of(Collective kind);
std::optional<Collective> collective_from_name(std::string_view name);
/// The collective that a node of a local graph is.
Collective collective_of(Op op);

/// How much one collective moves: in elements; the same on every rank.
struct Amounts {
  int ranks = 1;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  int root = 0;
};
/// Elements that a rank reads, and writes.
int64_t elements_in(Collective kind, const Amounts& amounts, int rank);
int64_t elements_out(Collective kind, const Amounts& amounts, int rank);
/// Elements that one rank gives another, or itself; of kinds that do not sum.
int64_t elements_between(Collective kind, const Amounts& amounts, int from, int to);

/// What each rank must move at least, in messages (the larger of what a rank reads and writes): phases * (n - 1) / n,
/// and 1 where one rank has or gets all of it.
double bus_factor(Collective kind, int ranks);

}  // namespace shoal
