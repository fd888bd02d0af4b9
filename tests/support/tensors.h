// Helpers for the values of tensors in tests. They encode and compare values, create random values for leaves, and run
// a graph on any backend. For every dtype, values are doubles in the order of a contiguous tensor. Single-threaded.
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

/// encode() converts values to the stored bytes of the dtype. The values must fill whole blocks. decode() converts
/// bytes to values.
std::vector<std::byte> encode(DType dtype, const Values& values);
Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements);
/// Encodes the values to the dtype, and returns the decoded values.
Values rounded(DType dtype, const Values& values);

/// These functions write or read all values of a tensor in any buffer. The tensor may be a view.
void write_values(Tensor& tensor, const Values& values);
Values read_values(const Tensor& tensor);

/// Random values for every leaf of a graph. The values depend only on the seed and on the leaf's name, are rounded to
/// the leaf's dtype, and suit the use of the leaf:
/// - If the op has no index ranges, all ids are valid. If the op has index ranges, some ids are in none of the ranges.
/// - Indices of cache rows are distinct.
/// - Positions ascend and are less than the number of KV rows. For ops with a state, some positions start sequences or
///   are padding. All tokens of a sequence are consecutive. Several sequences may read the same slot, and some slots do
///   not exist.
/// - Some mask values are -infinity.
/// - Divisors and frequency factors are not close to 0.
/// - Decays are in [-1, 0] and betas in [0, 1]. Keys of ops with a state have a norm of about 1.
/// - All other values are in [-1, 1]. For types with blocks of 256 elements, the values consist of a few repeated
///   blocks.
TensorValues random_leaves(const Graph& graph, uint64_t seed);

/// A graph with memory on a backend. The constructor first allocates memory for leaves without memory and fills all
/// memory with NaN. Then the constructor writes the values of all leaves. The destructor detaches the new memory from
/// these leaves, so that the graph can run on another backend. Encoding may change the values of a quantised leaf.
/// `leaves` then contains the stored values.
class GraphRun {
 public:
  /// `weights` is the buffer type of weights. If it is nullptr, weights use the default type of the device.
  GraphRun(Backend& backend, Graph& graph, TensorValues& leaves, BufferType* weights = nullptr);
  ~GraphRun();
  /// Runs the graph once with the current caches. Throws the errors of the backend.
  void run();
  /// Returns the values of the outputs and of the current caches.
  TensorValues results() const;
  GraphPlan& plan() { return *plan_; }

 private:
  Backend& backend_;
  Graph& graph_;
  std::vector<Tensor*> placed_;
  std::unique_ptr<Buffer> weights_, memory_;
  std::unique_ptr<GraphPlan> plan_;
};

/// Creates a GraphRun, runs the graph once and returns the results.
TensorValues run_graph(Backend& backend, Graph& graph, TensorValues& leaves);

struct Difference {
  double nmse = 0;     ///< (sum of squared differences) / (sum of squared expected values)
  double max_abs = 0;  ///< largest difference; infinite if a NaN or infinity does not match
  size_t worst = 0;    ///< index of the largest difference
};
/// Both arrays must have the same size. Equal infinities count as equal, and NaN counts as equal to NaN.
Difference compare(const Values& got, const Values& expected);

struct Tolerance {
  double nmse = 1e-10;
  double max_abs = std::numeric_limits<double>::max();
};
/// Whether the sizes are equal and the differences are within the tolerance. Usage: EXPECT_TRUE(close_to(got, expected,
/// tolerance)).
::testing::AssertionResult close_to(const Values& got, const Values& expected, const Tolerance& tolerance);

}  // namespace shoal::test
