// Helpers for tests of products that are fused with the following all_reduce and norm. Each rank has its own matrix and
// column. For comparison, a rank can use two kernels: one for the product, and one for all_reduce and norm.
#pragma once

#include <cmath>
#include <random>

#include "collectives/p2p/product_norm.h"
#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/mul_mat_vec.h"
#include "graph/ops/ops.h"
#include "tests/cuda/p2p_rig.h"
#include "tests/support/tensors.h"

namespace shoal::collectives::p2p {

/// The product of one rank, with memory for all operands and results of the call.
class RankProduct {
 public:
  /// `shift` is the misalignment of the residual and the results, in floats.
  RankProduct(const Rig& rig, int rank, DType dtype, int64_t k, int64_t row, size_t shift = 0)
      : context_{rig.stream(rank),
                 {.gpu = rig.gpu(rank),
                  .compute_capability = 90,
                  .processors = 8,
                  .shared_bytes_per_block = 227 * 1024}},
        row_(row),
        shift_(shift) {
    const cuda::CurrentGpu current(rig.gpu(rank));
    product_ = mul_mat(graph_, weights_.add("a", dtype, {k, row, 1, 1}), graph_.input("b", DType::kF32, {k, 1, 1, 1}));
    const auto add = [&](size_t bytes) { return memory_.emplace_back(rig.gpu(rank), bytes).data(); };
    const cuda::OpKernel& kernel = cuda::kernel_for(Op::kMulMat);
    std::mt19937 random(static_cast<uint32_t>(rank + 1));
    const auto fill = [&](DType type, int64_t count) {
      std::normal_distribution<float> normal;
      std::vector<float> numbers(static_cast<size_t>(count));
      for (float& number : numbers) number = normal(random);
      const Bytes bytes = test::encode(type, {numbers.begin(), numbers.end()});
      add(bytes.size() + 256);
      memory_.back().set(bytes);
      return memory_.back().data();
    };
    product_->src[0]->data = fill(dtype, k * row);
    product_->src[1]->data = fill(DType::kF32, k);
    context_.record_memory = add(cuda::kRecordBytes);
    product_->data = add(product_->bytes());
    if (kernel.workspace) product_->workspace = add(kernel.workspace(*product_, context_.gpu));
    random.seed(99);  // all ranks get the same residual and weight
    residual_ = reinterpret_cast<float*>(fill(DType::kF32, row + 1)) + shift;
    weight_ = reinterpret_cast<float*>(fill(DType::kF32, row));
    sum_ = reinterpret_cast<float*>(add((static_cast<size_t>(row) + shift) * 4)) + shift;
    normed_ = reinterpret_cast<float*>(add((static_cast<size_t>(row) + shift) * 4)) + shift;
  }

  Tensor& product() { return *product_; }
  const cuda::LaunchContext& context() const { return context_; }
  /// Makes later calls also store the norm as 8-bit records in the given forms (column_record.h).
  void want_records(const cuda::ColumnForms& forms) { wanted_ = forms; }
  NormReduction reduction() const {
    return {.in = reinterpret_cast<const float*>(product_->data),
            .residual = residual_,
            .weight = weight_,
            .sum = sum_,
            .normed = normed_,
            .row = row_,
            .rows = 1,
            .epsilon = 1e-5f,
            .record = context_.record(wanted_)};
  }
  /// Makes later calls read the product's column from a record, and overwrites the column itself. Returns false if the
  /// product does not read records.
  bool take_record() {
    Tensor* const nodes[] = {product_};
    context_.reads = cuda::mul_mat_forms(nodes, context_.gpu);
    if (!context_.reads.any()) return false;
    const cuda::ColumnRecord record = context_.record(context_.reads);
    Tensor& b = *product_->src[1];
    if (record.two) quantize(b, DType::kQ8_0, record.two);
    if (record.four) quantize(b, DType::kQ6_K, record.four);
    check_cuda(cudaMemsetAsync(b.data, 0xff, b.bytes(), context_.stream));
    check_cuda(cudaStreamSynchronize(context_.stream));
    return true;
  }
  /// Returns two records of the norm. The call stored the first record, and a separate kernel computes the second
  /// record.
  std::pair<Bytes, Bytes> record(DType weights) {
    const int groups = weights == DType::kQ6_K ? 4 : 2;
    const auto size = static_cast<size_t>(cuda::column_bytes(row_, groups));
    const cuda::ColumnRecord all = context_.record({true, true});
    const DeviceBytes own(context_.gpu.gpu, size);
    own.set(Bytes(size));
    Graph graph("norm");
    Tensor* const column = graph.input("normed", DType::kF32, {row_, 1, 1, 1});
    column->data = reinterpret_cast<std::byte*>(normed_);
    quantize(*column, weights, own.data());
    check_cuda(cudaStreamSynchronize(context_.stream));
    column->data = nullptr;
    Bytes left(size);
    check_cuda(cudaMemcpy(left.data(), groups == 4 ? all.four : all.two, size, cudaMemcpyDeviceToHost));
    return {left, own.get()};
  }
  void launch_joined(P2pCommunicator& communicator, int rank) {
    communicator.launch(rank, reduction(), "x", product_, context_);
  }
  void launch_apart(P2pCommunicator& communicator, int rank) {
    cuda::kernel_for(Op::kMulMat).run(context_, *product_);
    communicator.launch(rank, reduction(), "x");
  }
  /// Returns the sum, followed by its norm.
  std::vector<float> results() const {
    std::vector<float> values(2 * static_cast<size_t>(row_));
    for (const float* from : {sum_, normed_}) {
      float* const to = values.data() + (from == sum_ ? 0 : row_);
      check_cuda(cudaMemcpy(to, from, static_cast<size_t>(row_) * 4, cudaMemcpyDeviceToHost));
    }
    return values;
  }
  void clear() const {
    for (float* at : {sum_, normed_}) check_cuda(cudaMemset(at, 0xff, static_cast<size_t>(row_) * 4));
    if (!context_.reads.any()) check_cuda(cudaMemset(context_.record_memory, 0, cuda::kRecordBytes));
    check_cuda(cudaStreamSynchronize(nullptr));
  }

 private:
  void quantize(const Tensor& column, DType weights, std::byte* to) const {
    TensorContext tensors;
    prepare_columns(context_, *tensors.add("a", weights, {column.elements(), 1, 1, 1}), column, to);
  }

  cuda::LaunchContext context_;
  const int64_t row_;
  const size_t shift_;
  TensorContext weights_;
  Graph graph_{"product"};
  Tensor* product_ = nullptr;
  std::vector<DeviceBytes> memory_;
  cuda::ColumnForms wanted_;
  float *residual_ = nullptr, *weight_ = nullptr, *sum_ = nullptr, *normed_ = nullptr;
};

inline std::vector<std::unique_ptr<RankProduct>> products_of(const Rig& rig, DType dtype, int64_t k, int64_t row,
                                                             size_t shift = 0) {
  std::vector<std::unique_ptr<RankProduct>> products;
  for (int rank = 0; rank < rig.size(); ++rank) {
    products.push_back(std::make_unique<RankProduct>(rig, rank, dtype, k, row, shift));
  }
  return products;
}

/// Runs all ranks and returns their results. Rank r uses the fused kernel if bit r of `joined` is set. Otherwise, rank
/// r uses two kernels.
inline std::vector<std::vector<float>> run(Rig& rig, std::vector<std::unique_ptr<RankProduct>>& products,
                                           uint32_t joined) {
  for (const auto& product : products) product->clear();
  for (int rank = 0; rank < rig.size(); ++rank) {
    RankProduct& own = *products[static_cast<size_t>(rank)];
    (joined >> rank & 1) != 0 ? own.launch_joined(rig.communicator(), rank)
                              : own.launch_apart(rig.communicator(), rank);
  }
  rig.synchronize_and_check();
  std::vector<std::vector<float>> results;
  for (const auto& product : products) results.push_back(product->results());
  for (const float value : results[0]) EXPECT_TRUE(std::isfinite(value));
  return results;
}

}  // namespace shoal::collectives::p2p
