// Partitions of a factor for the rule validator. Some partitions are even, uneven, random or divided into segments. In
// other partitions, some ranks are empty, the ranks are interleaved or in reverse order, or several ranks own the same
// elements.
#pragma once

#include <vector>

#include "meta/layout/partition.h"

namespace shoal::meta {

/// All boundaries in the returned partitions are multiples of `unit`. If `group` > 1, the result also contains
/// partitions in which all boundaries are multiples of `unit` * `group`.
std::vector<Partition> partitions_to_try(int ranks, int64_t length, int64_t unit, int64_t group);

/// Whether at least two ranks own elements, and a rank lacks some. Only such a partition tests the division of work.
bool divides_work(const Partition& partition);

}  // namespace shoal::meta
