// Runs a graph on a meta device with every combination of leaf layouts, and compares the results with the results on
// one device. The rule validator tries one split at a time, and the layouts of all sources match this split. Here, each
// source has an independent layout. So strategies, redistributions and lowering must convert layouts.
//
// Each leaf is tried with a mirrored layout and, if the dtype can be summed, with a Partial layout. For each axis, the
// trials also include an even split, an uneven split, a split with an empty rank, and a split in which several ranks
// own one range. If there are too many combinations, each layout is first tried while all other leaves are mirrored.
// Then a random sample of combinations is tried. The sample is the same in every run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// The legal layouts that are tried for the leaf, without duplicates.
std::vector<meta::Layout> layouts_to_try(const Tensor& leaf, int ranks);

class LayoutTrials {
 public:
  /// The meta device has the first `ranks` CPU devices.
  explicit LayoutTrials(int ranks, const meta::RuleLookup& rules = meta::rule_text);

  struct Outcome {
    int trials = 0;
    std::string problem;  ///< describes the first trial with a wrong result; "" if there is none
  };
  /// Tries all combinations if there are at most `most` combinations. Otherwise, first tries each layout of each leaf
  /// once, and then tries random combinations until `most` trials have run. `text` is a graph (graph/text.h) with an
  /// output. All leaves must be weights or caches.
  Outcome run(const std::string& text, int most);

 private:
  using Layouts = std::map<std::string, meta::Layout>;
  /// Values of leaves before a run, or of outputs and caches after a run. The key is the tensor's name.
  using Named = std::map<std::string, Values>;

  std::string try_one(const std::string& text, const Named& leaves, const Named& expected);

  int ranks_;
  Layouts layouts_;  ///< layouts that the split-state callback returns in this trial
  std::unique_ptr<meta::MetaDevice> device_;
  std::unique_ptr<Backend> backend_, alone_;
};

}  // namespace shoal::test
