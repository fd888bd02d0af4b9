// Times of steps, learned from earlier steps. An engine uses them to choose the number of tokens in a step. Times
// depend mainly on the number of tokens after padding (BatchShape::tokens). Single-threaded value type.
#pragma once

#include <cstdint>
#include <map>

namespace shoal::models {

class StepTimes {
 public:
  /// Adds the time of a step with `tokens` tokens after padding. The step must not overlap another step.
  void add(int64_t tokens, double seconds);
  /// Predicted seconds for a step of `tokens` tokens after padding; 0 if no time is known. Interpolates between known
  /// times. Above the known numbers of tokens, the time is proportional to the number of tokens. Below these numbers,
  /// the time is constant. The time per token is at most the time per token of each smaller known step. So an engine
  /// tries a size again after a single slow step of this size.
  double seconds(int64_t tokens) const;
  /// Whether the time of a step with this number of tokens was added.
  bool knows(int64_t tokens) const { return known_.contains(tokens); }

 private:
  double interpolated(int64_t tokens) const;

  std::map<int64_t, double> known_;  ///< by the number of tokens
};

}  // namespace shoal::models
