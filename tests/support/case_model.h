// What a random case gives run after run, by the float64 reference: inputs change from run to run, caches keep what was
// written into them.
#pragma once

#include <map>
#include <string>

#include "tests/support/case_leaves.h"

namespace shoal::test {

class CaseModel {
 public:
  /// `one` must outlive it.
  explicit CaseModel(const RandomCase& one);

  /// Evaluates a run with its own inputs, on the caches as the last run that is done left them.
  void evaluate(uint64_t run);
  /// The run happened: caches hold what it wrote.
  void done();

  /// Before the run.
  const Values& leaf(const std::string& name) const { return leaves_.at(by_name_.at(name)); }
  /// What the node gave when it was computed; caches may have been written since.
  const Values& node(const std::string& name) const { return seen_.at(name); }
  /// After the run.
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
