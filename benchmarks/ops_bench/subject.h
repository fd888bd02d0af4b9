// One op as ops_bench times it: a graph with a number of nodes of it, which run one after the other as in a model, on
// leaves whose values are known. Nodes with weights of their own go through more memory than the caches hold, as
// the layers of a model do. Verified before it is timed: a sample of the last node's elements against float64.
// One thread at a time.
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

/// What the ops run on, and what that can do at most.
struct Target {
  std::unique_ptr<Backend> backend;
  BufferType* weights = nullptr;  ///< of matrices of products and tables of rows
  size_t working_set = 0;         ///< bytes of weights to go through before one is used again
  double bandwidth = 0;           ///< see benchmarks/machine.h; 0 where nothing was measured
  double f32_peak = 0;
  double int16_peak = 0;
  double int8_peak = 0;
  std::shared_ptr<Current> current = {};  ///< what was run last
};

/// Random rows, as they are stored and the values that these stand for. Their number is a prime, so that hardly any
/// mistake about rows finds the same row.
struct Pool {
  static constexpr int64_t kRows = 67;
  std::vector<std::byte> bytes;
  std::vector<float> values;  ///< in [-1, 1]
};

/// A persistent tensor in which the rows of a pool repeat.
struct Leaf {
  Tensor* tensor = nullptr;
  const Pool* pool = nullptr;
  int64_t shift = 0;  ///< row r is row (r + shift) % kRows of the pool

  float at(int64_t i, int64_t row) const {
    return pool->values[static_cast<size_t>((row + shift) % Pool::kRows * tensor->shape[0] + i)];
  }
};

/// Element `index`, in the order of a contiguous tensor, as it should be.
struct Sample {
  int64_t index;
  double expected;
};

enum class Arithmetic : uint8_t { kF32, kInt16, kInt8 };

/// Of one node.
struct Cost {
  double bytes = 0;  ///< read and written, each once
  double ops = 0;    ///< multiplications and additions
  Arithmetic arithmetic = Arithmetic::kF32;
  double tolerance = 1e-10;  ///< sum of the samples' squared errors / sum of their squares
  std::vector<Sample> samples = {};
};

class Subject {
 public:
  explicit Subject(Target& target) : target_(target) {}

  Target& target() { return target_; }
  Graph& graph() { return graph_; }
  /// type: nullptr for the device's own.
  const Leaf& leaf(DType dtype, Shape shape, Role role = Role::kWeight, BufferType* type = nullptr);
  Tensor* ints(const std::vector<int32_t>& values, Shape shape);
  /// Counts a node that is to be timed. The last one is verified.
  void node(Tensor* tensor) {
    last_ = tensor;
    ++nodes_;
  }
  int nodes() const { return nodes_; }

  /// Makes the plan. Throws where the device cannot run it.
  void compile();
  void run();
  /// What is wrong with the last node; empty when nothing is.
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

/// `build` makes the nodes and says what one of them costs. It is called when the benchmark is first run.
void add_benchmark(Target& target, const std::string& name, std::function<Cost(Subject&)> build);

/// How many leaves of this many bytes make up the working set; at least one.
int64_t leaves_for(const Target& target, double bytes);

// The ops, a file each.
void add_products(Target& target);
void add_rows(Target& target);
void add_elementwise(Target& target);
void add_attention(Target& target);
void add_states(Target& target);

}  // namespace shoal::bench
