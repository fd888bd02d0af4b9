// Whether a probe had the machine to itself: what other programs used of its cores meanwhile, and whether devices that
// say the same of themselves are as fast as each other. Used by machine/probe.cpp. All functions but other_programs()
// are pure.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

namespace shoal::machine {

/// CPU seconds in which these hardware threads were at work or taken away by a hypervisor since the system started,
/// from the text of /proc/stat. nullopt where it says nothing of one of them.
std::optional<double> busy_seconds(std::string_view stat, std::span<const int> threads, double ticks_per_second);

/// CPU seconds that others than this process have used of the hardware threads that it may use, from any beginning; 0
/// where the system does not say. Of a process with a quota, what lies beyond that quota does not count: others may use
/// it.
double other_programs();

/// A stretch of time, and the CPU seconds that other programs used in it.
struct Stretch {
  double seconds = 0;
  double others = 0;

  double cores() const;  ///< that they kept busy on the average
  /// More than what runs on any machine at rest.
  bool is_disturbed() const;
};

class StretchClock {
 public:
  explicit StretchClock(const std::function<double()>& others) : others_(others), first_(others()) {}
  Stretch stop() const;

 private:
  const std::function<double()>& others_;
  double first_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The same work on two devices that say the same of themselves, one after the other.
struct TwinRound {
  double one = 0, other = 0;  ///< seconds
  bool is_disturbed = false;
};
enum class Likeness {
  kAlike,      ///< both can do it in the same time, as the quickest rounds show
  kUncertain,  ///< they differ, but no more than the rounds do, or other programs were at work
  kDifferent,  ///< one is slower in every round while nothing else runs
};
/// Of one round or more.
Likeness compare_twins(std::span<const TwinRound> rounds);

}  // namespace shoal::machine
