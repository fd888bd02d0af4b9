#include "meta/machine.h"

#include <algorithm>
#include <limits>

#include "graph/error.h"
#include "meta/cost.h"

namespace shoal::meta {
namespace {

/// How often a rank sends its message, if what it sends is spread over as many ranks as possible.
double traffic_of(Op kind, int ranks) {
  return (kind == Op::kAllReduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

double seconds_of(const CollectiveTable& table, double bytes) {
  const auto& points = table.points;
  const auto above = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](double value, const auto& point) { return value < point.bytes; });
  if (above == points.begin() || points.size() == 1) return points.front().seconds;
  const auto right = above == points.end() ? above - 1 : above;
  const auto left = right - 1;
  const double slope = (right->seconds - left->seconds) / (right->bytes - left->bytes);
  // Noise may let the last points fall: no message is faster for being longer than all that were measured.
  if (above == points.end()) return right->seconds + std::max(slope, 0.0) * (bytes - right->bytes);
  return left->seconds + slope * (bytes - left->bytes);
}

double seconds_of(const CollectiveAlgorithm& algorithm, Op kind, int ranks, double bytes) {
  const double traffic = algorithm.one_shot ? ranks - 1 : traffic_of(kind, ranks);
  return algorithm.latency + algorithm.latency_per_rank * (ranks - 1) + traffic * bytes / algorithm.bandwidth;
}

double default_seconds(Op kind, int ranks, double bytes) {
  const CostModel model;
  const double phases = kind == Op::kAllReduce ? 2 : 1;
  return phases * model.latency + traffic_of(kind, ranks) * bytes / model.link_bandwidth;
}

}  // namespace

double ProductModel::seconds(double columns, bool in_cache) const {
  const auto& points = (in_cache && !cached.empty()) || streamed.empty() ? cached : streamed;
  check(!points.empty(), "a product model without points");
  const auto above = std::upper_bound(
      points.begin(), points.end(), columns,
      [](double value, const ProductPoint& point) { return value < static_cast<double>(point.columns); });
  if (above == points.begin()) return above->seconds;
  const ProductPoint& left = *(above - 1);
  const double from = static_cast<double>(left.columns);
  if (above == points.end()) return left.seconds * columns / from;
  const double part = (columns - from) / (static_cast<double>(above->columns) - from);
  return left.seconds + part * (above->seconds - left.seconds);
}

int MachineModel::index(std::string_view device) const {
  std::string known;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name == device) return static_cast<int>(i);
    known += (known.empty() ? "" : ", ") + devices[i].name;
  }
  fail<InvalidArgument>("machine {} has no device '{}'; it has {}", name, device, known.empty() ? "none" : known);
}

double MachineModel::run_seconds(std::span<const int> members) const {
  double seconds = 0;
  for (const int member : members) seconds = std::max(seconds, devices[static_cast<size_t>(member)].run_seconds);
  for (const RunCost& run : runs) {
    const auto is_member = [&](const std::string& name, int member) {
      return name == devices[static_cast<size_t>(member)].name;
    };
    if (std::equal(run.members.begin(), run.members.end(), members.begin(), members.end(), is_member)) {
      return run.seconds;
    }
  }
  return seconds;
}

double MachineModel::collective_seconds(Op kind, std::span<const int> members, double bytes) const {
  const int ranks = static_cast<int>(members.size());
  if (ranks <= 1) return 0;
  const CollectiveTable* other = nullptr;
  for (const CollectiveTable& table : collectives) {
    const auto is_member = [&](const std::string& name, int member) {
      return name == devices[static_cast<size_t>(member)].name;
    };
    if (table.points.empty() ||
        !std::equal(table.members.begin(), table.members.end(), members.begin(), members.end(), is_member)) {
      continue;
    }
    if (table.kind == kind) return seconds_of(table, bytes);
    other = &table;
  }
  double best = std::numeric_limits<double>::infinity();
  for (const CollectiveAlgorithm& algorithm : algorithms) {
    best = std::min(best, seconds_of(algorithm, kind, ranks, bytes));
  }
  if (!algorithms.empty()) return best;
  if (other == nullptr) return default_seconds(kind, ranks, bytes);
  return seconds_of(*other, bytes) * traffic_of(kind, ranks) / traffic_of(other->kind, ranks);
}

}  // namespace shoal::meta
