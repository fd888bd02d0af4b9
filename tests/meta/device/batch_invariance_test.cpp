// On a meta device, a row of a result has the same bits for any number of rows in the batch. The graphs contain
// products whose rows or whose sums are divided unevenly among the devices, all_reduce, residual sums and norms.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "meta/device/meta_backend.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

constexpr int64_t kWidth = 256, kHidden = 1536, kVocabulary = 300, kRows = 64;

/// A decoder layer without attention, and an output head.
std::string layer(int64_t rows, DType weights) {
  return fmt::format(R"(
input %x f32 [256, {0}]
weight %scale f32 [256]
weight %in {1} [256, 1536]
weight %out {1} [1536, 256]
weight %gate {1} [256, 1536]
weight %up {1} [256, 1536]
weight %down {1} [1536, 256]
weight %head {1} [256, 300]
%n0 = rms_norm(%x)
%n = mul(%n0, %scale)
%q = mul_mat(%in, %n)
%o = mul_mat(%out, %q)
%r = add(%x, %o)
%m0 = rms_norm(%r)
%m = mul(%m0, %scale)
%g = mul_mat(%gate, %m)
%u = mul_mat(%up, %m)
%h = glu(%g, %u)
%d = mul_mat(%down, %h)
%r2 = add(%r, %d)
%l0 = rms_norm(%r2)
%l = mul(%l0, %scale)
%logits = mul_mat(%head, %l)
output %r2
output %logits
)",
                     rows, name_of(weights));
}

/// The shares of the devices in units of 256 elements of the hidden axis, and the shares of the vocabulary.
struct Shares {
  std::vector<int64_t> hidden, vocabulary;
};

test::Layouts layouts_for(const Shares& shares) {
  std::vector<int64_t> hidden;
  for (const int64_t share : shares.hidden) hidden.push_back(256 * share);
  const Layout rows = Layout::split(1, Partition::from_shares(hidden));
  const Layout sums = Layout::split(0, Partition::from_shares(hidden));
  const Layout head = Layout::split(1, Partition::from_shares(shares.vocabulary));
  return {{"in", rows}, {"out", sums}, {"gate", rows}, {"up", rows}, {"down", sums}, {"head", head}};
}

std::vector<float> inputs() {
  std::vector<float> x(static_cast<size_t>(kWidth * kRows));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.37f) * (i % 61 == 0 ? 20.0f : 1.0f);
  return x;
}

/// A graph for batches of a fixed number of rows.
class Batches {
 public:
  Batches(test::CpuMesh& mesh, int64_t rows, DType weights, bool pack)
      : rows_(rows),
        loaded_(layer(rows, weights), pack ? mesh.device->weights_type() : mesh.device->buffer_type()),
        backend_(mesh.device->init("threads=1")),
        plan_(backend_->create_plan(loaded_.graph)) {
    loaded_.fill_inputs();
  }
  /// Returns the results of rows [first, first + rows) of `x`: for each row, the residual sum and the logits.
  std::vector<std::vector<float>> run(const std::vector<float>& x, int64_t first) {
    Tensor& input = *loaded_.graph.find("x");
    tensor_set(input, x.data() + first * kWidth, 0, input.bytes());
    backend_->compute_async(*plan_);
    backend_->synchronize();
    std::vector<std::vector<float>> results(static_cast<size_t>(rows_));
    for (const auto& [name, length] : {std::pair("r2", kWidth), {"logits", kVocabulary}}) {
      const std::vector<float> values = test::read_floats(*loaded_.graph.find(name));
      for (int64_t row = 0; row < rows_; ++row) {
        const auto at = values.begin() + row * length;
        results[static_cast<size_t>(row)].insert(results[static_cast<size_t>(row)].end(), at, at + length);
      }
    }
    return results;
  }

 private:
  int64_t rows_;
  test::Loaded loaded_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GraphPlan> plan_;
};

class MetaBatchInvariance : public testing::TestWithParam<DType> {};

TEST_P(MetaBatchInvariance, RowsDoNotDependOnTheBatch) {
  const std::vector<float> x = inputs();
  for (const Shares& shares :
       {Shares{{4, 2}, {200, 100}}, {{3, 2, 1}, {150, 101, 49}}, {{3, 1, 1, 1}, {120, 60, 59, 61}}}) {
    const auto ranks = static_cast<int>(shares.hidden.size());
    test::CpuMesh mesh(ranks, layouts_for(shares));
    for (const bool pack : {false, true}) {
      std::vector<std::vector<float>> alone;
      Batches single(mesh, 1, GetParam(), pack);
      for (int64_t row = 0; row < kRows; ++row) alone.push_back(single.run(x, row).at(0));
      for (const float value : alone[0]) ASSERT_TRUE(std::isfinite(value));
      for (const int64_t rows : {2, 3, 4, 5, 6, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64}) {
        const int64_t first = rows < 32 ? rows : 0;
        const auto batch = Batches(mesh, rows, GetParam(), pack).run(x, first);
        for (size_t row = 0; row < batch.size(); ++row) {
          const std::vector<float>& expected = alone[static_cast<size_t>(first) + row];
          ASSERT_EQ(std::memcmp(batch[row].data(), expected.data(), expected.size() * sizeof(float)), 0)
              << ranks << " devices, " << rows << " rows, row " << row << (pack ? ", packed" : "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MetaBatchInvariance,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ8_0,
                                         DType::kQ4_K, DType::kQ6_K),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::meta
