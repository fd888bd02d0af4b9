#include "models/session/stop_text.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace shoal::models {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) require<InvalidArgument>(!stop.empty(), "a stop string must not be empty");
}

/// Finds the longest suffix of held_ that could be the beginning of a stop string. Returns the index of the first
/// character of this suffix, or the size of held_ if there is no such suffix.
size_t StopText::first_possible() const {
  const std::string_view held = held_;
  for (size_t begin = 0; begin < held.size(); ++begin) {
    const std::string_view end = held.substr(begin);
    const auto could_be = [&](const std::string& stop) { return stop.starts_with(end); };
    if (std::any_of(stops_.begin(), stops_.end(), could_be)) return begin;
  }
  return held.size();
}

std::string StopText::push(std::string_view text) {
  if (found_) return {};
  if (stops_.empty()) return std::string(text);
  std::string shown;
  for (const char c : text) {
    held_ += c;
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) {
      found_ = true;
      shown.append(held_, 0, held_.size() - longest);
      held_.clear();
      return shown;
    }
    const size_t possible = first_possible();
    shown.append(held_, 0, possible);
    held_.erase(0, possible);
  }
  return shown;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace shoal::models
