// Runs a graph on a meta device with every combination of layouts of its leaves, and compares the results with one
// device. The rule validator tries one split at a time, to which all sources conform. Here every source has its own
// layout, so that strategies, redistributions and lowering must reconcile the layouts.
//
// Leaf layouts: mirrored, Partial if the dtype can be summed, and for each axis an even split, an uneven split, a split
// with an empty rank, and a split with shared owners. If there are too many combinations, each layout is tried with all
// other leaves mirrored, then a random sample of combinations, which is the same in every run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// Distinct layouts that are legal for the leaf.
std::vector<meta::Layout> layouts_to_try(const Tensor& leaf, int ranks);

class LayoutTrials {
 public:
  /// The ranks are the first CPU devices.
  explicit LayoutTrials(int ranks, const meta::RuleLookup& rules = meta::rule_text);

  struct Outcome {
    int trials = 0;
    std::string problem;  ///< the first trial with a wrong result; "" if there is none
  };
  /// Tries up to `most` combinations, or one for each layout if that is more. `text` is a graph (graph/text.h) with an
  /// output; all leaves are weights or caches.
  Outcome run(const std::string& text, int most);

 private:
  using Layouts = std::map<std::string, meta::Layout>;
  /// Values by name: of leaves, or of outputs and caches after a run.
  using Named = std::map<std::string, Values>;

  std::string try_one(const std::string& text, const Named& leaves, const Named& expected);

  int ranks_;
  Layouts layouts_;  ///< the layouts that the split-state callback currently returns
  std::unique_ptr<meta::MetaDevice> device_;
  std::unique_ptr<Backend> backend_, alone_;
};

}  // namespace shoal::test
