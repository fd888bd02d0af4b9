// Values of tensors in tests: encoding, random leaves that fit their role, running a graph on any backend, comparing.
// Values are dense, in the order of a contiguous tensor, as double whatever the dtype. Single-threaded.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "devices/backend.h"
#include "graph/graph.h"

namespace shoal::test {

using Values = std::vector<double>;
using TensorValues = std::unordered_map<const Tensor*, Values>;

/// Stored bytes of values (as many as the dtype's blocks need), and back.
std::vector<std::byte> encode(DType dtype, const Values& values);
Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements);
/// What remains of values after they were stored in the dtype.
Values rounded(DType dtype, const Values& values);

/// Whole tensors, placed in any buffer; views too.
void write_values(Tensor& tensor, const Values& values);
Values read_values(const Tensor& tensor);

/// Random values for every leaf of a graph, a function of seed and the leaf's name, rounded to its dtype. What a leaf
/// is used for decides: ids are in range (some are foreign when the op has ranges), cache rows are distinct, positions
/// ascend and fit into the KV rows, masks are -infinity at places, divisors and frequency factors stay away from 0,
/// anything else lies in [-1, 1] (quantised in blocks of 256: blocks drawn from a few). Of ops with a state, positions
/// begin texts and are padding at places, decays lie in [-1, 0], betas in [0, 1], and keys have about length 1.
TensorValues random_leaves(const Graph& graph, uint64_t seed);

/// A graph with memory on a backend, which is full of NaN where nothing was written. Places leaves that have none,
/// writes their values, and takes all of it back at the end, so that the same graph can run on the next backend.
/// Encoding a quantised leaf again may change it: from then on `leaves` has what is stored.
class GraphRun {
 public:
  /// `weights`: memory for weights, of the device's own type if nullptr.
  GraphRun(Backend& backend, Graph& graph, TensorValues& leaves, BufferType* weights = nullptr);
  ~GraphRun();
  /// Once more with what the caches hold now. Throws what the backend reports.
  void run();
  /// Of the outputs and, as they are now, of the caches.
  TensorValues results() const;
  GraphPlan& plan() { return *plan_; }

 private:
  Backend& backend_;
  Graph& graph_;
  std::vector<Tensor*> placed_;
  std::unique_ptr<Buffer> weights_, memory_;
  std::unique_ptr<GraphPlan> plan_;
};

/// Results of one run. `leaves` as in GraphRun.
TensorValues run_graph(Backend& backend, Graph& graph, TensorValues& leaves);

struct Difference {
  double nmse = 0;     ///< sum of squared differences / sum of squared expected values
  double max_abs = 0;  ///< largest difference; infinite when NaN or infinities do not agree
  size_t worst = 0;    ///< where
};
/// Both must be of one size. Equal infinities and NaN beside NaN count as no difference.
Difference compare(const Values& got, const Values& expected);

struct Tolerance {
  double nmse = 1e-10;
  double max_abs = std::numeric_limits<double>::max();
};
/// EXPECT_TRUE(close_to(got, expected, tolerance)): sizes, NMSE and largest difference.
::testing::AssertionResult close_to(const Values& got, const Values& expected, const Tolerance& tolerance);

}  // namespace shoal::test
