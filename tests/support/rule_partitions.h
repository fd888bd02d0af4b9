// The partitions of a factor that the rule validator tries: even, uneven, with empty shares, in segments, interleaved,
// in reversed order, with runs that have several owners, and random ones.
#pragma once

#include <vector>

#include "meta/layout/partition.h"

namespace shoal::test {

/// All boundaries are multiples of `unit`. If `group` > 1, the result also contains partitions that keep groups of
/// `group` elements together.
std::vector<meta::Partition> partitions_to_try(int ranks, int64_t length, int64_t unit, int64_t group);

/// Whether at least two ranks have elements, so that a trial really tests dividing.
bool divides_work(const meta::Partition& partition);

}  // namespace shoal::test
