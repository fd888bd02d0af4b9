// Tests of causal_conv and gated_delta with StateSlots. A batch contains tokens of several sequences, and each sequence
// reads its state from a slot of any index. The results must match the reference. They must also have the same bits as
// the results of each sequence alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/same_bits.h"

namespace shoal::test {
namespace {

/// Consecutive tokens of a sequence. The first token has the position `position`. A negative position means padding.
struct Part {
  int64_t sequence, position, count;
};
/// Parts of sequences in the order of the batch. `slots` contains the slot of each sequence.
struct Batch {
  const char* name;
  std::vector<Part> parts;
  std::vector<int64_t> slots;
};

constexpr int64_t kSlots = 6;

// Slots 6 and -1 do not exist, so the states of their sequences are zeros.
const Batch kBatches[] = {
    {"one sequence", {{0, 7, 3}}, {4}},
    {"single tokens", {{3, 5, 1}, {1, 90, 1}, {0, 3, 1}, {4, 0, 1}, {2, 1, 1}}, {5, 0, 3, 2, 1}},
    {"single tokens and prompts", {{2, 40, 1}, {0, 0, 37}, {1, 17, 1}, {4, 6, 20}, {3, 900, 2}}, {1, 6, 0, -1, 3}},
    {"padding", {{0, -1, 2}, {1, 3, 5}, {0, -1, 20}, {1, 8, 2}, {0, -1, 1}, {2, 0, 1}, {0, -1, 3}}, {2, 3, 5}},
    {"sequences that begin in the batch", {{1, 5, 2}, {1, 0, 4}, {0, 0, 1}, {2, 30, 18}, {2, 0, 2}}, {0, 1, 2}},
    {"sequences without tokens", {{1, 2, 2}, {5, 2, 1}}, {0, 1, 2, 3, -1, 5, 2}},
    {"equal slots", {{2, 2, 1}, {0, 9, 3}, {1, 4, 2}}, {3, 3, 3}},
    {"only padding", {{0, -1, 4}}, {1, 2}},
    {"tokens of sequences that do not exist",
     {{7, 4, 1}, {0, 3, 2}, {2, 0, 3}, {0, 5, 4}, {-1, 9, 2}, {1, 0, 3}},
     {2, 3}},
};

/// An op with a state. `build` computes the tokens [first, first + count) of the sources of the batch.
struct Op {
  const char* name;
  int64_t state_rows;  ///< number of rows of the new state of a sequence
  std::function<Tensor*(Graph&, int64_t tokens)> leaves;
  std::function<Tensor*(Graph&, int64_t first, int64_t count, const StateSlots& slots)> build;
};

Tensor* f32(Graph& g, const char* name, const Shape& shape) {
  return g.input(name, DType::kF32, shape);
}
Tensor* part_of(Graph& g, const char* name, int axis, int64_t first, int64_t count) {
  return slice(g, g.find(name), {axis, first, count});
}

Op conv(int64_t channels, int64_t taps) {
  return {"causal_conv", taps - 1,
          [=](Graph& g, int64_t tokens) {
            f32(g, "weight", {taps, channels, 1, 1});
            f32(g, "state", {channels, (taps - 1) * kSlots, 1, 1});
            return f32(g, "x", {channels, tokens, 1, 1});
          },
          [](Graph& g, int64_t first, int64_t count, const StateSlots& slots) {
            return causal_conv(g, part_of(g, "x", 1, first, count), g.find("weight"), g.find("state"),
                               part_of(g, "positions", 0, first, count), {}, slots);
          }};
}
Op delta(int64_t size, int64_t key_heads, int64_t heads) {
  return {"gated_delta", size,
          [=](Graph& g, int64_t tokens) {
            f32(g, "state", {size, size * kSlots, heads, 1});
            for (const char* name : {"q", "k"}) f32(g, name, {size, key_heads, tokens, 1});
            for (const char* name : {"decay", "beta"}) f32(g, name, {heads, tokens, 1, 1});
            return f32(g, "v", {size, heads, tokens, 1});
          },
          [](Graph& g, int64_t first, int64_t count, const StateSlots& slots) {
            const auto part = [&](const char* name, int axis) { return part_of(g, name, axis, first, count); };
            return gated_delta(g, part("q", 2), part("k", 2), part("v", 2), part("decay", 1), part("beta", 1),
                               g.find("state"), part("positions", 0), {}, {}, slots);
          }};
}

/// The rows [first, first + count) on axis 1 of a result.
Values rows(const Values& values, const Shape& shape, int64_t first, int64_t count) {
  Values result;
  for (int64_t plane = 0; plane < shape[2]; ++plane) {
    const auto from = values.begin() + (plane * shape[1] + first) * shape[0];
    result.insert(result.end(), from, from + count * shape[0]);
  }
  return result;
}

/// Runs a batch, and each sequence of the batch alone.
class SlotRun {
 public:
  SlotRun(const Op& op, const Batch& batch) : op_(op), batch_(batch) {
    for (const Part& part : batch.parts) {
      for (int64_t i = 0; i < part.count; ++i) {
        positions_.push_back(static_cast<double>(part.position < 0 ? -1 : part.position + i));
        sequences_.push_back(static_cast<double>(part.position < 0 ? 1000 : part.sequence));
      }
    }
    const auto count = static_cast<int64_t>(batch.slots.size());
    input("positions", tokens()), input("sequences", tokens()), input("slots", count), input("only", tokens());
    op.leaves(graph_, tokens());
    whole_ = graph_.output(op.build(graph_, 0, tokens(), {graph_.find("sequences"), graph_.find("slots")}));
    for (int64_t y = 0; y < count; ++y) {
      const auto [first, length] = range_of(y);
      const StateSlots slots{part_of(graph_, "only", 0, first, length), part_of(graph_, "slots", 0, y, 1)};
      alone_.push_back(graph_.output(op.build(graph_, first, length, slots)));
    }
    leaves_ = random_leaves(graph_, 5);
    for (auto& [leaf, values] : leaves_) {
      for (double& x : values) {
        if (leaf->name == "q" || leaf->name == "k") x *= 0.2;
        if (leaf->name == "beta") x = std::abs(x);
        if (leaf->name == "decay") x = -std::abs(x) / 2;
      }
    }
    leaves_[graph_.find("positions")] = positions_;
    leaves_[graph_.find("sequences")] = sequences_;
    leaves_[graph_.find("slots")] = Values(batch.slots.begin(), batch.slots.end());
    Values only = sequences_;  // of a batch with one sequence
    for (double& sequence : only) {
      if (sequence >= 0 && sequence < static_cast<double>(count)) sequence = 0;
    }
    leaves_[graph_.find("only")] = only;
  }

  void check() {
    SCOPED_TRACE(fmt::format("{}, {}", op_.name, batch_.name));
    CudaRun cuda(graph_, leaves_);
    cuda.run();
    cuda.expect(*whole_, {1e-11});
    const Values all = cuda.values(*whole_);
    for (int64_t y = 0; y < static_cast<int64_t>(alone_.size()); ++y) {
      const auto [first, length] = range_of(y);
      const Tensor& one = *alone_[y];
      const Values values = cuda.values(one);
      EXPECT_TRUE(same_bits(rows(all, whole_->shape, first, length), rows(values, one.shape, 0, length))) << y;
      EXPECT_TRUE(same_bits(rows(all, whole_->shape, tokens() + y * op_.state_rows, op_.state_rows),
                            rows(values, one.shape, length, op_.state_rows)))
          << "state of " << y;
    }
  }

 private:
  int64_t tokens() const { return static_cast<int64_t>(positions_.size()); }
  void input(const char* name, int64_t count) { graph_.input(name, DType::kI32, {count, 1, 1, 1}); }
  /// First token of a sequence, and number of tokens up to the last token, including padding.
  std::pair<int64_t, int64_t> range_of(int64_t sequence) const {
    int64_t first = 0, end = 0;
    for (int64_t i = 0; i < tokens(); ++i) {
      if (positions_[i] < 0 || sequences_[i] != static_cast<double>(sequence)) continue;
      if (end == 0) first = i;
      end = i + 1;
    }
    return {first, end - first};
  }

  const Op& op_;
  const Batch& batch_;
  Values positions_, sequences_;
  Graph graph_;
  Tensor* whole_ = nullptr;
  std::vector<Tensor*> alone_;
  TensorValues leaves_;
};

TEST(CudaStateSlots, ConvolutionsOfSequencesMatchReferenceAndSingleSequences) {
  for (const Op& op : {conv(37, 4), conv(300, 2), conv(5, 11), conv(20, 1)}) {
    for (const Batch& batch : kBatches) SlotRun(op, batch).check();
  }
}

TEST(CudaStateSlots, GatedDeltaOfSequencesMatchesReferenceAndSingleSequences) {
  for (const Op& op : {delta(64, 1, 2), delta(17, 2, 2), delta(128, 1, 1)}) {
    for (const Batch& batch : kBatches) SlotRun(op, batch).check();
  }
}

}  // namespace
}  // namespace shoal::test
