// One op as ops_bench times it. The graph contains a number of nodes with this op, which run one after the other as in
// a model, on leaves with known values. If nodes have their own weights, they read more memory than the caches can
// hold, as the layers of a model do. Before timing, a sample of the last node's elements is verified against float64.
// Used by one thread at a time.
//
//   add_benchmark(target, "add/f32/rows:512", [](Subject& s) {
//     const Leaf& x = s.leaf(DType::kF32, {2048, 512, 1, 1});
//     for (int i = 0; i < 8; ++i) s.node(add(s.graph(), x.tensor, x.tensor));
//     return Cost{.bytes = 3.0 * x.tensor->bytes(), .samples = {{7, 2.0 * x.at(7, 0)}}};
//   });
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "devices/backend.h"
#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::bench {

struct Current;

/// The backend that the ops run on, and its limits.
struct Target {
  std::unique_ptr<Backend> backend;
  BufferType* weights = nullptr;  ///< for matrices of products and tables of rows
  size_t working_set = 0;         ///< bytes of weights that are read before a weight is used again
  double bandwidth = 0;           ///< see benchmarks/machine.h; 0 if not measured
  double f32_peak = 0;
  double int16_peak = 0;
  double int8_peak = 0;
  std::shared_ptr<Current> current = {};  ///< the benchmark that ran last
};

/// Random rows, in stored form and as values. The number of rows is a prime, so that an access to a wrong row hardly
/// ever finds equal data.
struct Pool {
  static constexpr int64_t kRows = 67;
  std::vector<std::byte> bytes;
  std::vector<float> values;  ///< in [-1, 1]
};

/// A persistent tensor that repeats the rows of a pool.
struct Leaf {
  Tensor* tensor = nullptr;
  const Pool* pool = nullptr;
  int64_t shift = 0;  ///< row r is row (r + shift) % kRows of the pool

  float at(int64_t i, int64_t row) const {
    return pool->values[static_cast<size_t>((row + shift) % Pool::kRows * tensor->shape[0] + i)];
  }
};

/// The expected value of element `index`, in the order of a contiguous tensor.
struct Sample {
  int64_t index;
  double expected;
};

enum class Arithmetic : uint8_t { kF32, kInt16, kInt8 };

/// Cost of one node, and samples to verify it.
struct Cost {
  double bytes = 0;  ///< number of bytes read and written, each byte counted once
  double ops = 0;    ///< number of multiplications and additions
  Arithmetic arithmetic = Arithmetic::kF32;
  double tolerance = 1e-10;  ///< limit of: sum of squared errors / sum of squared samples
  std::vector<Sample> samples = {};
};

class Subject {
 public:
  explicit Subject(Target& target) : target_(target) {}

  Target& target() { return target_; }
  Graph& graph() { return graph_; }
  /// If `type` is nullptr, uses the device's own buffer type.
  const Leaf& leaf(DType dtype, Shape shape, Role role = Role::kWeight, BufferType* type = nullptr);
  Tensor* ints(const std::vector<int32_t>& values, Shape shape);
  /// Counts a node as timed. The last node is verified.
  void node(Tensor* tensor) {
    last_ = tensor;
    ++nodes_;
  }
  int nodes() const { return nodes_; }

  /// Makes the plan. Throws if the device cannot run it.
  void compile();
  void run();
  /// Describes an error of the last node. Returns an empty string if the node is correct.
  std::string verify(const Cost& cost) const;

 private:
  const Pool& pool(DType dtype, int64_t length);
  Tensor* add(DType dtype, Shape shape, Role role, BufferType* type);

  Target& target_;
  Graph graph_;
  TensorContext context_;
  std::map<std::pair<DType, int64_t>, Pool> pools_;  ///< by dtype and row length
  std::deque<Leaf> leaves_;
  std::vector<std::pair<Tensor*, std::vector<int32_t>>> ints_;
  std::map<BufferType*, std::vector<Tensor*>> by_type_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::unique_ptr<GraphPlan> plan_;
  Tensor* last_ = nullptr;
  int nodes_ = 0;
};

/// `build` makes the nodes and returns the cost of one node. It is called when the benchmark first runs.
void add_benchmark(Target& target, const std::string& name, std::function<Cost(Subject&)> build);

/// Number of leaves of this many bytes that fill the working set; at least one.
int64_t leaves_for(const Target& target, double bytes);

// Each of these functions adds the ops of one file.
void add_products(Target& target);
void add_rows(Target& target);
void add_elementwise(Target& target);
void add_attention(Target& target);
void add_states(Target& target);

}  // namespace shoal::bench
