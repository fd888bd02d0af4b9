// Times of steps, learned from the steps so far. An engine uses them to choose the number of tokens in a step. Times
// depend mainly on the number of tokens after padding (BatchShape::tokens). Single-threaded value type.
#pragma once

#include <cstdint>
#include <map>

namespace shoal::models {

class StepTimes {
 public:
  /// Adds the time of a step with `tokens` padded tokens.
  void add(int64_t tokens, double seconds);
  /// Predicted seconds for a step of `tokens` padded tokens. Interpolates between known times. Outside the known times,
  /// the time is proportional to the number of tokens, or constant for fewer tokens. A step with more tokens takes at
  /// most proportionally more time, so a single slow step does not count forever. 0 if no time is known.
  double seconds(int64_t tokens) const;
  /// Whether there was a step with this number of tokens.
  bool knows(int64_t tokens) const { return known_.contains(tokens); }

 private:
  double interpolated(int64_t tokens) const;

  std::map<int64_t, double> known_;  ///< by the number of tokens
};

}  // namespace shoal::models
