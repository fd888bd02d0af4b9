// Partitions of a factor for the rule validator. Some are even, uneven, random or divided into segments. In others,
// ranks are empty, interleaved or in reverse order, or runs of elements have several owners.
#pragma once

#include <vector>

#include "meta/layout/partition.h"

namespace shoal::test {

/// All boundaries are multiples of `unit`. If `group` > 1, there are also partitions in which all boundaries are
/// multiples of `unit` * `group`.
std::vector<meta::Partition> partitions_to_try(int ranks, int64_t length, int64_t unit, int64_t group);

/// Whether at least two ranks own elements. Only such a partition tests the division of work.
bool divides_work(const meta::Partition& partition);

}  // namespace shoal::test
