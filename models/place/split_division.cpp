#include "models/place/split_division.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace shoal::models {
namespace {

// Differences below kTie between deficits or costs come from rounding, so these differences do not decide between
// devices.
constexpr double kTie = 1e-6;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Decides whether one device may own a range of heads. A range begins and ends at unit boundaries. The constructor
/// computes the KV groups at each boundary once, because fill_table() calls has() for all pairs of boundaries.
class Ranges {
 public:
  Ranges(int64_t units, int64_t group, int64_t unit) {
    for (int64_t p = 0; p <= units; ++p) {
      begins_group_.push_back(p * unit % group == 0);
      group_of_.push_back(p * unit / group);
      group_before_.push_back(p == 0 ? -1 : (p * unit - 1) / group);
    }
  }
  bool has(int64_t from, int64_t to) const {
    const auto f = static_cast<size_t>(from), t = static_cast<size_t>(to);
    const bool whole_groups = begins_group_[f] != 0 && begins_group_[t] != 0;
    return from == to || whole_groups || group_of_[f] == group_before_[t];
  }

 private:
  std::vector<char> begins_group_;
  std::vector<int64_t> group_of_, group_before_;  ///< KV groups of the heads after and before each unit boundary
};

double square(double x) {
  return x * x;
}

/// best[d][p] is the least cost of giving the first p units to devices 0..d-1. from[d][p] is the first unit of device
/// d-1 in the division with this cost.
struct Table {
  std::vector<std::vector<double>> best;
  std::vector<std::vector<int64_t>> from;
};

Table fill_table(const ShareLedger& ledger, const std::vector<double>& wanted, int64_t units, int64_t group,
                 int64_t unit) {
  int n = ledger.devices();
  Table t{std::vector(n + 1, std::vector(units + 1, kNever)), std::vector(n + 1, std::vector<int64_t>(units + 1))};
  t.best[0][0] = 0.0;
  const Ranges ranges(units, group, unit);
  for (int d = 0; d < n; ++d) {
    for (int64_t to = 0; to <= units; ++to) {
      for (int64_t from = ledger.share(d) > 0.0 ? 0 : to; from <= to; ++from) {
        if (t.best[d][from] == kNever || !ranges.has(from, to)) continue;
        double cost = t.best[d][from] + square(wanted[d] - static_cast<double>((to - from) * unit));
        if (cost >= t.best[d + 1][to] - kTie) continue;
        t.best[d + 1][to] = cost;
        t.from[d + 1][to] = from;
      }
    }
  }
  return t;
}

}  // namespace

std::vector<double> ShareLedger::wanted(double amount) const {
  std::vector<double> out(shares_.size());
  for (size_t d = 0; d < out.size(); ++d) out[d] = shares_[d] * (total_ + amount) - given_[d];
  return out;
}

void ShareLedger::add(const ShareLedger& other) {
  for (int d = 0; d < other.devices(); ++d) give(d, other.given_[d]);
}

std::vector<int64_t> divide_units(const ShareLedger& ledger, std::vector<double> wanted, int64_t length, int64_t unit) {
  std::vector<int64_t> out(wanted.size());
  double tie = kTie * static_cast<double>(unit);
  for (int64_t left = length; left > 0;) {
    int most = -1;
    for (int d = 0; d < ledger.devices(); ++d) {
      if (ledger.share(d) > 0.0 && (most < 0 || wanted[d] > wanted[most] + tie)) most = d;
    }
    check(most >= 0, "no device has a share above 0");
    int64_t amount = std::min(unit, left);
    out[most] += amount;
    wanted[most] -= static_cast<double>(amount);
    left -= amount;
  }
  return out;
}

std::vector<int64_t> divide_groups(const ShareLedger& ledger, const std::vector<double>& wanted, int64_t heads,
                                   int64_t group, int64_t unit) {
  check(group % unit == 0 && heads % group == 0,
        "the head count {} must be a multiple of the group size {}; the unit {} must divide the group size", heads,
        group, unit);
  int64_t units = heads / unit;
  Table t = fill_table(ledger, wanted, units, group, unit);
  check(t.best[ledger.devices()][units] != kNever, "{} heads cannot be divided among the devices", heads);
  std::vector<int64_t> out(wanted.size());
  for (int64_t d = ledger.devices(), to = units; d > 0; --d) {
    int64_t from = t.from[d][to];
    out[d - 1] = (to - from) * unit;
    to = from;
  }
  return out;
}

}  // namespace shoal::models
