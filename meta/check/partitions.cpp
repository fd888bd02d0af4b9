#include "meta/check/partitions.h"

#include <algorithm>
#include <random>

namespace shoal::meta {
namespace {

Partition from_owners(int ranks, const std::vector<Owners>& owners) {
  std::vector<Run> runs;
  for (const Owners& of_one : owners) runs.push_back({1, of_one});
  return Partition(ranks, std::move(runs));
}

/// Returns the partition in which element i belongs to owner(i).
template <class F>
Partition by_element(int ranks, int64_t length, F owner) {
  std::vector<Owners> owners;
  for (int64_t i = 0; i < length; ++i) owners.push_back(owner(i));
  return from_owners(ranks, owners);
}

/// Partitions to try for `length` elements.
std::vector<Partition> of_pieces(int ranks, int64_t length) {
  std::mt19937 random(static_cast<unsigned>(length * 31 + ranks));
  const int last = ranks - 1;
  std::vector<Partition> partitions{
      Partition::even(ranks, length),
      by_element(ranks, length, [&](int64_t i) { return Owners{i == 0 ? 0 : last}; }),
      by_element(ranks, length, [&](int64_t) { return Owners{last}; }),
      by_element(ranks, length, [&](int64_t i) { return Owners{static_cast<int>(i % ranks)}; }),
      by_element(ranks, length, [&](int64_t i) { return Owners{static_cast<int>(last - i * ranks / length)}; }),
      by_element(ranks, length,
                 [&](int64_t i) {
                   return i == 0 ? Owners{0} : Owners{0, last};
                 }),
      by_element(ranks, length,
                 [&](int64_t) {
                   return Owners{0, last};
                 }),
  };
  if (ranks > 2) partitions.push_back(by_element(ranks, length, [](int64_t i) { return Owners{i % 2 ? 2 : 0}; }));
  if (length % 2 == 0) partitions.push_back(Partition::even(ranks, length / 2).tile(2));
  for (int trial = 0; trial < 3; ++trial) {
    partitions.push_back(by_element(ranks, length, [&](int64_t) {
      return trial == 0 ? Owners{static_cast<int>(random() % ranks), static_cast<int>(random() % ranks)}
                        : Owners{static_cast<int>(random() % ranks)};
    }));
  }
  return partitions;
}

}  // namespace

std::vector<Partition> partitions_to_try(int ranks, int64_t length, int64_t unit, int64_t group) {
  std::vector<Partition> partitions;
  for (const int64_t piece : {unit, unit * group}) {
    if (length % piece != 0) continue;
    for (const Partition& partition : of_pieces(ranks, length / piece)) {
      Partition scaled = partition.scale_up(piece);
      const bool known = std::find(partitions.begin(), partitions.end(), scaled) != partitions.end();
      if (!known) partitions.push_back(std::move(scaled));
    }
  }
  return partitions;
}

bool divides_work(const Partition& partition) {
  int working = 0;
  bool divides = false;
  for (int rank = 0; rank < partition.devices(); ++rank) {
    const int64_t length = partition.local_length(rank);
    working += length > 0;
    divides |= length > 0 && length < partition.length();
  }
  return working > 1 && divides;
}

}  // namespace shoal::meta
