// Shares of devices by memory alone, without predictions of speed: those that leave most room. Memory grows evenly with
// the context and with a device's share, so that shares in proportion to what each has room for are close to the best;
// from there a little is moved from the tightest to others for as long as a larger context fits.
//
//   RTX4090 (24 GB), L40S (48 GB):  even shares have room for 37000 tokens, 0.34,0.66 for 90100
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tuning/predict.h"

namespace shoal::tuning {

class MemoryShares {
 public:
  /// `candidate`: devices and mode; its shares do not count. The scenario must outlive this.
  MemoryShares(const Scenario& scenario, const Candidate& candidate, const models::SessionOptions& session);

  struct Fit {
    int64_t context = 0;
    std::vector<double> shares;  ///< empty: even
  };
  /// The largest context, at most `asked`, with any shares; nullopt where none fits or where it can hardly be more than
  /// `more_than`. Weights may lie as they are in the file (needs_no_repack). Throws what ModelPlan throws.
  std::optional<Fit> largest(int64_t asked, int64_t more_than = 0) const;
  /// Shares in proportion to what each has room for, whether that is enough or not.
  std::vector<double> balanced(int64_t context) const;

  std::vector<models::DeviceUse> memory(int64_t context, const std::vector<double>& shares) const;
  /// The candidate with shares, written as shortly as possible.
  Candidate with(const std::vector<double>& shares) const;
  /// Does it fit with the weights as they are in the file only?
  bool needs_no_repack(const Fit& fit) const;

 private:
  models::Placement placement(const std::vector<double>& shares) const;
  std::optional<Fit> fit_of(const std::vector<double>& shares, int64_t asked) const;
  bool improve(std::optional<Fit>& best, const std::vector<models::DeviceUse>& even, int64_t asked) const;
  double room_of(std::span<const models::DeviceUse> uses, size_t sharer) const;
  double possible_context(std::span<const models::DeviceUse> uses, int64_t context) const;
  std::vector<double> balanced(std::span<const models::DeviceUse> uses, const std::vector<double>& shares) const;
  std::vector<double> in_layers(const std::vector<double>& shares) const;
  std::vector<double> rounded(std::vector<double> shares) const;
  std::vector<double> changed(const std::vector<models::DeviceUse>& uses, const std::vector<double>& shares) const;
  std::vector<double> even() const;

  const Scenario& scenario_;
  Candidate candidate_;
  models::SessionOptions session_;
  std::vector<std::vector<Device*>> sharers_;
  int64_t layers_ = 0;  ///< that are divided
};

}  // namespace shoal::tuning
