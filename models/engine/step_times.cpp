#include "models/engine/step_times.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace shoal::models {

void StepTimes::add(int64_t tokens, double seconds) {
  constexpr double kNew = 0.25;  // share of the newest time, so that a single slow step has little influence
  const auto [known, is_new] = known_.emplace(tokens, seconds);
  if (!is_new) known->second += kNew * (seconds - known->second);
}

double StepTimes::seconds(int64_t tokens) const {
  if (known_.empty()) return 0;
  double most = std::numeric_limits<double>::infinity();
  for (const auto& [less, time] : known_) {
    if (less >= tokens) break;
    most = std::min(most, time * static_cast<double>(tokens) / static_cast<double>(less));
  }
  return std::min(most, interpolated(tokens));
}

double StepTimes::interpolated(int64_t tokens) const {
  const auto above = known_.lower_bound(tokens);
  if (above == known_.end()) {
    const auto& [most, time] = *std::prev(above);
    return time * static_cast<double>(tokens) / static_cast<double>(most);
  }
  if (above->first == tokens || above == known_.begin()) return above->second;
  const auto& [low, low_time] = *std::prev(above);
  const double part = static_cast<double>(tokens - low) / static_cast<double>(above->first - low);
  return low_time + part * (above->second - low_time);
}

}  // namespace shoal::models
