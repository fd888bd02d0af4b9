// The arithmetic of the split policy: assigns units to devices. Pure functions and one small value class.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::models {

/// Tracks two amounts for each device: the amount assigned so far, and the amount that corresponds to the device's
/// share.
class ShareLedger {
 public:
  explicit ShareLedger(std::span<const double> shares) : shares_(shares.begin(), shares.end()), given_(shares.size()) {}
  int devices() const { return static_cast<int>(shares_.size()); }
  double share(int device) const { return shares_[device]; }
  std::span<const double> given() const { return given_; }
  /// Returns the part of the next `amount` that each device should get, corrected for earlier rounding errors. A part
  /// may be negative.
  std::vector<double> wanted(double amount) const;
  void give(int device, double amount) { given_[device] += amount, total_ += amount; }
  /// Adds the amounts of another ledger.
  void add(const ShareLedger& other);

 private:
  std::vector<double> shares_, given_;
  double total_ = 0.0;
};

/// Divides `length` elements into units. The last unit may be shorter. Each unit goes to the device with the largest
/// deficit (wanted minus assigned elements). This order minimises the sum of squares of the deficits. Devices without a
/// share get nothing.
///   length 768, unit 256, wanted {384, 384} -> {512, 256}
std::vector<int64_t> divide_units(const ShareLedger& ledger, std::vector<double> wanted, int64_t length, int64_t unit);

/// Divides `heads` query heads into consecutive ranges in device order. Each group of `group` query heads shares a KV
/// head. The length of each range is a multiple of `unit`, which divides `group`. Each range has whole groups, or a
/// part of one group. The sum of squares of the deficits is the exact minimum (dynamic programming over devices and
/// heads).
///   8 heads in groups of 2, unit 1, 5 devices that want 1.6 each -> {1, 1, 2, 2, 2} (sum of squares 1.2)
std::vector<int64_t> divide_groups(const ShareLedger& ledger, const std::vector<double>& wanted, int64_t heads,
                                   int64_t group, int64_t unit);

}  // namespace shoal::models
