// Values of tensors in tests: encoding, random values for leaves, running a graph on any backend, comparison. Values
// are dense, in the order of a contiguous tensor, and of type double for every dtype. Single-threaded.
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

/// encode() converts values (whole blocks of the dtype) to stored bytes; decode() converts them back.
std::vector<std::byte> encode(DType dtype, const Values& values);
Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements);
/// The values after a round trip through the dtype.
Values rounded(DType dtype, const Values& values);

/// Write and read the values of a whole tensor in any buffer. The tensor may be a view.
void write_values(Tensor& tensor, const Values& values);
Values read_values(const Tensor& tensor);

/// Random values for every leaf of a graph, determined by the seed and the leaf's name, and rounded to its dtype. The
/// values suit the leaf's use. Ids are in range (some are foreign if the op has ranges). Cache rows are distinct.
/// Positions ascend and are within the KV rows. Some mask values are -infinity. Divisors and frequency factors are not
/// close to 0. All other values are in [-1, 1]; for types with blocks of 256 they come from a few blocks. For ops with
/// a state, some positions start sequences or are padding, decays are in [-1, 0], betas in [0, 1], and keys have a norm
/// of about 1.
TensorValues random_leaves(const Graph& graph, uint64_t seed);

/// A graph with memory on a backend; unwritten memory is full of NaN. The constructor places leaves that have no memory
/// and writes their values. The destructor unplaces these leaves, so that the same graph can run on the next backend.
/// Encoding a quantised leaf may change its values; `leaves` then holds the stored values.
class GraphRun {
 public:
  /// `weights`: buffer type for weights; nullptr selects the device's default type.
  GraphRun(Backend& backend, Graph& graph, TensorValues& leaves, BufferType* weights = nullptr);
  ~GraphRun();
  /// Runs the graph once on the current caches. Throws the errors of the backend.
  void run();
  /// Values of the outputs and the current caches.
  TensorValues results() const;
  GraphPlan& plan() { return *plan_; }

 private:
  Backend& backend_;
  Graph& graph_;
  std::vector<Tensor*> placed_;
  std::unique_ptr<Buffer> weights_, memory_;
  std::unique_ptr<GraphPlan> plan_;
};

/// Makes a GraphRun, runs it once and returns the results.
TensorValues run_graph(Backend& backend, Graph& graph, TensorValues& leaves);

struct Difference {
  double nmse = 0;     ///< (sum of squared differences) / (sum of squared expected values)
  double max_abs = 0;  ///< largest difference; infinite if NaN or infinities do not match
  size_t worst = 0;    ///< index of the largest difference
};
/// Both arrays must have the same size. Two equal infinities or two NaNs count as equal.
Difference compare(const Values& got, const Values& expected);

struct Tolerance {
  double nmse = 1e-10;
  double max_abs = std::numeric_limits<double>::max();
};
/// Compares sizes, NMSE and largest difference. Use: EXPECT_TRUE(close_to(got, expected, tolerance)).
::testing::AssertionResult close_to(const Values& got, const Values& expected, const Tolerance& tolerance);

}  // namespace shoal::test
