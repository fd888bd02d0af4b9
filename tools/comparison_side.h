// One side of a comparison: the model on one device or several, with graphs that keep the result of every node. Owns
// all it loads; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/model_plan.h"
#include "models/placement.h"
#include "models/session.h"

namespace shoal::tools {

class ComparisonSide {
 public:
  /// Opens and plans, and starts the threads; loads nothing. The context must be named.
  ComparisonSide(const std::string& path, std::vector<Device*> devices, const models::PlacementOptions& placement,
                 const models::SessionOptions& options, int64_t prompt_tokens);
  ~ComparisonSide();
  ComparisonSide(const ComparisonSide&) = delete;
  ComparisonSide& operator=(const ComparisonSide&) = delete;

  /// What each device will need for weights, caches and both graphs.
  std::vector<models::DeviceUse> memory() const;
  void load();
  /// Appends the tokens: first the prompt, all of it, then one token.
  void run(std::span<const int32_t> tokens);

  /// Of the graph that ran last.
  std::span<Tensor* const> nodes() const { return graph_.graph->nodes(); }
  const Tensor& logits() const { return *graph_.logits; }
  std::string layout(const Tensor& node) const;
  std::span<Tensor* const> caches() const { return cache_.context.tensors(); }
  std::string cache_layout(const Tensor& cache) const;

 private:
  models::DecoderGraph build(int64_t tokens) const;
  meta::Layout stored_layout(const Tensor& tensor) const;

  std::unique_ptr<models::Model> model_;
  models::Placement placement_;
  std::unique_ptr<Backend> backend_;
  int64_t prompt_tokens_;
  models::KvCache cache_;
  std::unique_ptr<Buffer> cache_buffer_;
  int64_t position_ = 0;
  models::DecoderGraph graph_;
  std::unique_ptr<GraphPlan> plan_;
};

/// The values of a tensor as f32, whatever its type and wherever it lies.
std::vector<float> read_values(const Tensor& tensor);

}  // namespace shoal::tools
