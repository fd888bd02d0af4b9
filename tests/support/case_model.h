// Computes the expected results of a random case over several runs in float64. Each run has new inputs. Caches keep the
// values that earlier runs have written.
#pragma once

#include <map>
#include <string>

#include "tests/support/case_leaves.h"

namespace shoal::test {

class CaseModel {
 public:
  /// `one` must outlive this object.
  explicit CaseModel(const RandomCase& one);

  /// Evaluates run number `run`. The run starts with the caches of the last confirmed run.
  void evaluate(uint64_t run);
  /// Confirms the last evaluated run: the caches get the values that the run wrote.
  void done();

  /// The leaf's values before the evaluated run.
  const Values& leaf(const std::string& name) const { return leaves_.at(by_name_.at(name)); }
  /// The node's values directly after its computation. Later nodes may have changed the caches.
  const Values& node(const std::string& name) const { return seen_.at(name); }
  /// The outputs and caches after the evaluated run.
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
