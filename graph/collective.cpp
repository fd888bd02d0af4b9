// The table of collectives: the lines of graph/collectives.def as rows.
#include "graph/collective.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace shoal {
namespace {

constexpr CollectiveInfo kTable[] = {
#define SHOAL_COLLECTIVE(id, name, sums, in, out, in_place, phases) \
  {Collective::k##id, #name, Op::k##id, sums, Extent::in, Extent::out, InPlace::in_place, phases},
#define SHOAL_COLLECTIVE_WITHOUT_NODE(id, name, sums, in, out, in_place, phases) \
  {Collective::k##id, #name, Op::kNone, sums, Extent::in, Extent::out, InPlace::in_place, phases},
#include "graph/collectives.def"
};

int64_t elements(Extent extent, const Amounts& a, int rank) {
  int64_t total = 0;
  switch (extent) {
    case Extent::kMessage:
      return a.count;
    case Extent::kOfRoot:
      return rank == a.root ? a.count : 0;
    case Extent::kOwnPart:
      return a.counts[rank];
    case Extent::kAllParts:
      return std::accumulate(a.counts.begin(), a.counts.end(), int64_t{0});
    case Extent::kPartsTo:
      for (int to = 0; to < a.ranks; ++to) total += a.counts[rank * a.ranks + to];
      return total;
    case Extent::kPartsFrom:
      for (int from = 0; from < a.ranks; ++from) total += a.counts[from * a.ranks + rank];
      return total;
  }
  return total;
}

}  // namespace

const CollectiveInfo& info(Collective kind) {
  if (kind >= Collective::kCount) fail<InvalidArgument>("there is no collective number {}", static_cast<int>(kind));
  return kTable[static_cast<size_t>(kind)];
}

size_t CollectiveInfo::counts(int ranks) const {
  const size_t n = static_cast<size_t>(ranks);
  if (is_pairwise()) return n * n;
  return in == Extent::kOwnPart || in == Extent::kAllParts ? n : 0;
}

bool is_summable(DType dtype) {
  return std::find(kSummable.begin(), kSummable.end(), dtype) != kSummable.end();
}

std::string_view name_of(Collective kind) {
  return info(kind).name;
}

std::optional<Collective> collective_from_name(std::string_view name) {
  const auto found =
      std::find_if(kCollectives.begin(), kCollectives.end(), [&](Collective kind) { return info(kind).name == name; });
  return found != kCollectives.end() ? std::optional(*found) : std::nullopt;
}

Collective collective_of(Op op) {
  const auto found =
      std::find_if(kCollectives.begin(), kCollectives.end(), [&](Collective kind) { return info(kind).node == op; });
  check(is_collective(op) && found != kCollectives.end(), "{} is not a collective of a plan", name_of(op));
  return *found;
}

int64_t elements_in(Collective kind, const Amounts& amounts, int rank) {
  return elements(info(kind).in, amounts, rank);
}

int64_t elements_out(Collective kind, const Amounts& amounts, int rank) {
  return elements(info(kind).out, amounts, rank);
}

int64_t elements_between(Collective kind, const Amounts& amounts, int from, int to) {
  if (info(kind).is_pairwise()) return amounts.counts[from * amounts.ranks + to];
  return elements_in(kind, amounts, from);
}

double bus_factor(Collective kind, int ranks) {
  return info(kind).has_root() ? 1.0 : info(kind).phases * (static_cast<double>(ranks - 1) / ranks);
}

}  // namespace shoal
