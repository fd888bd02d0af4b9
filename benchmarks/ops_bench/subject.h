// One op that ops_bench times. The graph contains several nodes with this op, which run one after another as in a
// model. Their leaves have known values. If each node has its own weights, the nodes together read more memory than the
// caches can store, like the layers of a model. Before the timing, some elements of the last node are verified against
// float64. One thread at a time may use a subject.
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

/// The backend that runs the ops, and the limits of its cores.
struct Target {
  std::unique_ptr<Backend> backend;
  BufferType* weights = nullptr;  ///< buffer type for the matrices of products and for tables of rows
  size_t working_set = 0;         ///< number of weight bytes that a graph reads before it reads the same weight again
  double bandwidth = 0;           ///< bytes per second; the peak rates below are operations per second; 0: not measured
  double f32_peak = 0;
  double int16_peak = 0;
  double int8_peak = 0;
  std::shared_ptr<Current> current = {};  ///< the latest benchmark
};

/// Random rows in two forms: encoded in a dtype, and as f32 values. The number of rows is a prime, so a wrong row
/// hardly ever contains the expected data.
struct Pool {
  static constexpr int64_t kRows = 67;
  std::vector<std::byte> bytes;
  std::vector<float> values;  ///< values in [-1, 1]
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

/// The expected value of the element `index` of a contiguous tensor.
struct Sample {
  int64_t index;
  double expected;
};

enum class Arithmetic : uint8_t { kF32, kInt16, kInt8 };

/// Cost of one node, and samples that verify the node.
struct Cost {
  double bytes = 0;  ///< number of bytes read and written, each byte counted once
  double ops = 0;    ///< number of multiplications plus number of additions
  Arithmetic arithmetic = Arithmetic::kF32;
  double tolerance = 1e-10;  ///< largest allowed quotient: sum of squared errors / sum of squared samples
  std::vector<Sample> samples = {};
};

class Subject {
 public:
  explicit Subject(Target& target) : target_(target) {}

  Target& target() { return target_; }
  Graph& graph() { return graph_; }
  /// Adds a leaf in the buffer type `type`. If `type` is nullptr, uses the default buffer type of the device.
  const Leaf& leaf(DType dtype, Shape shape, Role role = Role::kWeight, BufferType* type = nullptr);
  Tensor* ints(const std::vector<int32_t>& values, Shape shape);
  /// Adds a node to the timed nodes. The last node is verified.
  void node(Tensor* tensor) {
    last_ = tensor;
    ++nodes_;
  }
  int nodes() const { return nodes_; }

  /// Makes the plan. Throws if the device cannot run the plan.
  void compile();
  void run();
  /// Returns a description of the error in the last node, or an empty string if the node is correct.
  std::string verify(const Cost& cost) const;

 private:
  const Pool& pool(DType dtype, int64_t length);
  Tensor* add(DType dtype, Shape shape, Role role, BufferType* type);

  Target& target_;
  Graph graph_;
  TensorContext context_;
  std::map<std::pair<DType, int64_t>, Pool> pools_;  ///< key: dtype and row length
  std::deque<Leaf> leaves_;
  std::vector<std::pair<Tensor*, std::vector<int32_t>>> ints_;
  std::map<BufferType*, std::vector<Tensor*>> by_type_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::unique_ptr<GraphPlan> plan_;
  Tensor* last_ = nullptr;
  int nodes_ = 0;
};

/// Adds a benchmark. `build` makes the nodes and returns the cost of one node. The first run of the benchmark calls
/// `build`.
void add_benchmark(Target& target, const std::string& name, std::function<Cost(Subject&)> build);

/// Number of leaves, each with `bytes` bytes, that together fill the working set. At least 1.
int64_t leaves_for(const Target& target, double bytes);

// Each of these functions adds the benchmarks of one source file.
void add_products(Target& target);
void add_rows(Target& target);
void add_elementwise(Target& target);
void add_attention(Target& target);
void add_states(Target& target);
void add_images(Target& target);

}  // namespace shoal::bench
