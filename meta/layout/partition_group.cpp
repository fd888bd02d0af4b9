// Partition::group: heads to shared KV heads. Works on runs: groups that lie inside one run are taken in bulk,
// a group that a cut goes through is looked at alone, so the cost depends on the runs and not on the length.
//
//   1:{0} 2:{1} 5:{0} by 4:  group 0 is mixed: device 0 has 2 elements of it (0 and 3), device 1 has 2;
//                            group 1 lies in a run: device 0 has all 4.
//   Device 0 would need 2 elements per group in one place and 4 in another: not uniform, nullopt.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "meta/layout/partition.h"

namespace shoal::meta {
namespace {

/// `count` consecutive groups in which every owner has `elements` of each group.
struct GroupSpan {
  int64_t count = 0;
  std::map<int, int64_t> elements;
};

std::vector<GroupSpan> spans_of(std::span<const Run> runs, int64_t g) {
  std::vector<GroupSpan> spans;
  GroupSpan open;      // the mixed group being filled
  int64_t filled = 0;  // elements of it seen
  for (const Run& run : runs) {
    int64_t left = run.length;
    if (filled > 0) {
      const int64_t take = std::min(left, g - filled);
      for (int owner : run.owners) open.elements[owner] += take;
      filled += take;
      left -= take;
      if (filled < g) continue;
      spans.push_back(std::move(open));
      filled = 0;
    }
    if (left / g > 0) {
      GroupSpan bulk{left / g, {}};
      for (int owner : run.owners) bulk.elements[owner] = g;
      spans.push_back(std::move(bulk));
    }
    open = {1, {}};
    filled = left % g;
    if (filled > 0) {
      for (int owner : run.owners) open.elements[owner] = filled;
    }
  }
  return spans;
}

}  // namespace

std::optional<Partition> Partition::group(int64_t g) const {
  require<InvalidArgument>(g > 0, "group of a partition by {}", g);
  if (g == 1) return *this;
  if (length_ % g != 0) return std::nullopt;
  std::map<int, int64_t> per_group;  // elements of each of its groups that a device has
  std::vector<Run> runs;
  for (const GroupSpan& span : spans_of(this->runs(), g)) {
    Owners owners;
    for (const auto& [device, elements] : span.elements) {
      if (per_group.try_emplace(device, elements).first->second != elements) return std::nullopt;
      owners.push_back(device);
    }
    runs.push_back({span.count, std::move(owners)});
  }
  return Partition(devices_, std::move(runs));
}

}  // namespace shoal::meta
