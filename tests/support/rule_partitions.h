// The partitions of a factor that the rule validator tries: even, uneven, with empty shares, in segments,
// interleaved, in reversed order, with runs of several owners, and random ones.
#pragma once

#include <vector>

#include "meta/layout/partition.h"

namespace shoal::test {

/// All cuts are multiples of `unit`. `group` > 1: also partitions that keep groups of `group` elements together.
std::vector<meta::Partition> partitions_to_try(int ranks, int64_t length, int64_t unit, int64_t group);

/// Two ranks or more have elements: what a rule says about dividing is put to the test.
bool divides_work(const meta::Partition& partition);

}  // namespace shoal::test
