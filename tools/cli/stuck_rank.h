// A device that never comes back must not keep the program from ending: when a collective has timed out, the other
// devices stop what they are at, and the error is reported as any other. Where that does not happen within a moment,
// the thread that waits for the devices is stuck for good: another one writes what there is, and ends the process as it
// is.
#pragma once

#include <functional>
#include <string>

namespace shoal::tools {

class StuckRankWatch {
 public:
  /// `last_words` writes the results so far and the error, while the thread that makes this is stuck. Of several that
  /// live the latest counts. One thread makes them.
  explicit StuckRankWatch(std::function<void(const std::string& error)> last_words);
  /// Does not return when last words are being written.
  ~StuckRankWatch();
  StuckRankWatch(const StuckRankWatch&) = delete;
  StuckRankWatch& operator=(const StuckRankWatch&) = delete;

 private:
  using LastWords = std::function<void(const std::string& error)>;
  LastWords last_words_;
  LastWords* before_;  ///< of the watch that was made before
};

}  // namespace shoal::tools
