// A session: one text going through a model on one device (a meta device included). Owns the stream of work, the KV
// cache and the compiled graphs: one for single tokens and one for the latest other batch size, so that prompts and
// generation can alternate without rebuilding. One thread at a time may use it; the model and the device must outlive
// it.
//
//   Session session(model, placement.device(), placement.init(), {.context = 512});
//   session.evaluate(prompt);                         // in batches of at most options.batch tokens
//   for (...) session.evaluate(std::array{sample(session.logits())});
//
// evaluate() queues work and returns; logits() waits for it and throws what failed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"
#include "models/model.h"

namespace shoal::models {

struct SessionOptions {
  int64_t context = 0;  ///< tokens that fit; 0: what the model was trained for
  int64_t batch = 512;  ///< most tokens in one run of a graph
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
};

/// What the options mean for a model: the context it gets and its largest batch.
struct SessionSize {
  int64_t context = 0;
  int64_t batch = 0;
};
/// Throws InvalidArgument for a batch or context below 1.
SessionSize session_size(const Hparams& hparams, const SessionOptions& options);

class Session {
 public:
  /// Allocates the cache. The model's weights must be loaded on `device`.
  Session(const Model& model, Device& device, std::unique_ptr<Backend> backend, const SessionOptions& options = {});
  ~Session();

  int64_t context() const { return size_.context; }
  /// Most tokens in one run of a graph.
  int64_t batch() const { return size_.batch; }
  /// Tokens in the cache.
  int64_t position() const { return position_; }
  /// Appends tokens and keeps the logits of the last `outputs` of them (of its last batch). Throws InvalidArgument when
  /// the context is full, a token is outside the vocabulary, or more outputs are asked for than the last batch has.
  void evaluate(std::span<const int32_t> tokens, int64_t outputs = 1);
  /// Logits of the latest evaluate: vocab values for each output, oldest first. Waits. Valid until the next call.
  std::span<const float> logits();
  /// Forgets all tokens from `position` on.
  void rewind(int64_t position);

  Backend& backend() { return *backend_; }
  const Buffer& cache_buffer() const { return *cache_buffer_; }
  /// The compiled graphs at hand, for tools and tests.
  std::vector<const GraphPlan*> plans() const;

 private:
  struct Compiled;
  Compiled& compiled(BatchShape shape);
  void run_batch(Compiled& compiled, int64_t begin, const int32_t* out_ids);

  const Model& model_;
  SessionSize size_;
  KvCache cache_;
  std::unique_ptr<Buffer> cache_buffer_;
  std::unique_ptr<Backend> backend_;          // after the buffers: its queue must end before they go
  std::unique_ptr<Compiled> single_, other_;  // one token with one output; any other shape
  Compiled* latest_ = nullptr;
  int64_t position_ = 0;
  std::vector<int32_t> tokens_, positions_, out_ids_;  // inputs of queued work: unchanged until it is done
  std::vector<float> logits_;
};

}  // namespace shoal::models
