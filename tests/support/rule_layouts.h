// A graph under every combination of layouts of its leaves: planned and run on a meta device and compared with one
// device. Where the rule validator takes one split at a time, with all sources following it, this one lets every source
// lie in its own way, so that strategies, redistributions and lowering have to bring them together.
//
// Leaf layouts: mirrored, Partial where the dtype can be added, and each axis evenly, unevenly, with an empty rank and
// with owners that share all of it. Where there are too many combinations, each layout is tried with the others
// mirrored, and then a sample, the same in every run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// All of them are legal for the leaf and differ.
std::vector<meta::Layout> layouts_to_try(const Tensor& leaf, int ranks);

class LayoutTrials {
 public:
  /// Ranks are the first CPU devices.
  explicit LayoutTrials(int ranks, const meta::RuleLookup& rules = meta::rule_text);

  struct Outcome {
    int trials = 0;
    std::string problem;  ///< of the first trial that differs; "" when there is none
  };
  /// `text` (graph/text.h) has an output; all its leaves are weights or caches. Up to `most` combinations, or one for
  /// each layout if that is more.
  Outcome run(const std::string& text, int most);

 private:
  using Layouts = std::map<std::string, meta::Layout>;
  /// By name: values of the leaves, or outputs and caches after a run.
  using Named = std::map<std::string, Values>;

  std::string try_one(const std::string& text, const Named& leaves, const Named& expected);

  int ranks_;
  Layouts layouts_;  ///< what the callback answers now
  std::unique_ptr<meta::MetaDevice> device_;
  std::unique_ptr<Backend> backend_, alone_;
};

}  // namespace shoal::test
