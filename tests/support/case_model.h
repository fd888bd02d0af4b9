// The expected results of a random case over several runs, by the float64 reference. Inputs change from run to run;
// caches keep the values written into them.
#pragma once

#include <map>
#include <string>

#include "tests/support/case_leaves.h"

namespace shoal::test {

class CaseModel {
 public:
  /// `one` must outlive the model.
  explicit CaseModel(const RandomCase& one);

  /// Evaluates a run on its own inputs and on the caches as of the last done().
  void evaluate(uint64_t run);
  /// Confirms the run: caches now hold the values that it wrote.
  void done();

  /// The leaf's values before the run.
  const Values& leaf(const std::string& name) const { return leaves_.at(by_name_.at(name)); }
  /// The node's values at the time of its computation. Later nodes may have written to caches.
  const Values& node(const std::string& name) const { return seen_.at(name); }
  /// The results after the run.
  const Results& results() const { return results_; }

 private:
  const RandomCase& one_;
  TensorContext weights_;
  Graph graph_;
  std::map<std::string, const Tensor*> by_name_;
  TensorValues leaves_, after_;
  std::map<std::string, Values> seen_;
  Results results_;
};

}  // namespace shoal::test
