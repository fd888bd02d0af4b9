// The arithmetic of the split policy: units to devices. Pure functions and one small value class.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::models {

/// Keeps account of what each device got and what it should have got.
class ShareLedger {
 public:
  explicit ShareLedger(std::span<const double> shares) : shares_(shares.begin(), shares.end()), given_(shares.size()) {}
  int devices() const { return static_cast<int>(shares_.size()); }
  double share(int device) const { return shares_[device]; }
  std::span<const double> given() const { return given_; }
  /// What each device should get of the next `amount`, earlier errors made good; may be negative.
  std::vector<double> wanted(double amount) const;
  void give(int device, double amount) { given_[device] += amount, total_ += amount; }
  /// Enters all that another account has.
  void add(const ShareLedger& other);

 private:
  std::vector<double> shares_, given_;
  double total_ = 0.0;
};

/// Divides `length` in units (the last one may be shorter): each unit goes to the device that wants most, which
/// minimises the sum of squares of what is left wanting. `wanted` is in elements. Devices without a share get nothing.
///   length 768, unit 256, wanted {384, 384} -> {512, 256}
std::vector<int64_t> divide_units(const ShareLedger& ledger, std::vector<double> wanted, int64_t length, int64_t unit);

/// Divides `heads` query heads, in groups of `group` that share a KV head, into consecutive ranges in device order,
/// each a multiple of `unit` heads (`unit` divides `group`): whole groups, or part of one group. Minimises the sum of
/// squares of what is left wanting, exactly (dynamic programming over devices and heads).
///   8 heads in groups of 2, unit 1, 5 devices that want 1.6 each -> {1, 1, 2, 2, 2} (sum of squares 1.2)
std::vector<int64_t> divide_groups(const ShareLedger& ledger, const std::vector<double>& wanted, int64_t heads,
                                   int64_t group, int64_t unit);

}  // namespace shoal::models
