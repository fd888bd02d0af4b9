// Answers many requests at the same time with one model. Requests join and leave between two steps. Each step is one
// batch: one token of each request that generates, and a part of the prompts that wait. On CPU devices, the tokens of a
// request do not depend on other requests, on the division of its prompt, or on cached beginnings (docs/engine.md).
//
//   Engine engine(model, placement, placement.init(), engine_options({.context = 8192, .sequences = 8}), nullptr,
//                 &tokenizer);
//   engine.submit(prompt, {.most_tokens = 100});
//   for (bool runs = true; runs;) {
//     runs = engine.step();
//     for (const Output& output : engine.take_outputs()) ...
//   }
//
// Order: requests run in the order of their arrival. A priority of p moves a request forward by 100 p places, so each
// request is the first one after a finite number of arrivals. The first prompt gets half of the prompt tokens of a
// step, and the shortest prompts get the rest. So a short prompt does not wait for a long one. While some request
// generates, the number of prompt tokens is limited, so that a step takes about `token_seconds` (step_times.h).
//
// Memory: all requests share the cache of options.context tokens. A request starts when its prompt fits. If the cache
// is full, the request that is last in the order loses its memory, waits, and later computes its tokens again. A
// request never ends because others need memory. Cached beginnings of finished requests remain until the memory is
// needed (cache_memory.h).
//
// submit() and cancel() may be called by any thread. All other functions must be called by one thread at a time.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "models/engine/cache_memory.h"
#include "models/engine/request.h"
#include "models/engine/step_times.h"
#include "models/session/runner.h"
#include "models/tokenizer/tokenizer.h"

namespace shoal::models {

struct EngineStats {
  int64_t running = 0, waiting = 0;  ///< numbers of requests
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  ///< prompt tokens that were computed, including tokens that were computed again
  int64_t cached_tokens = 0;  ///< prompt tokens that were in the cache
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;  ///< how often a request lost its memory
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  int64_t used_tokens = 0;  ///< number of tokens of running requests in the cache, without cached beginnings
};

class Engine {
 public:
  /// `options` are the result of engine_options(). For `plan`, see Runner. The tokenizer is needed for texts and stop
  /// strings; nullptr: outputs have no text.
  Engine(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
         const SessionOptions& options, std::shared_ptr<ModelPlan> plan = nullptr,
         const Tokenizer* tokenizer = nullptr);
  ~Engine();

  /// Throws InvalidArgument if the prompt is empty or too long, a token is outside the vocabulary, or an option is out
  /// of range.
  RequestId submit(std::vector<int32_t> prompt, const RequestOptions& options = {});
  /// Ends a request before the next step. No-op for an unknown request.
  void cancel(RequestId request);
  /// Runs one step. Returns false if there are no requests. Throws the errors of devices, also of earlier steps; the
  /// engine is then unusable. A step without outputs may still run when the call returns.
  bool step();
  /// Returns the outputs since the last call, in order.
  std::vector<Output> take_outputs();

  /// Maximum number of tokens of a prompt and its answer.
  int64_t most_tokens() const { return most_tokens_; }
  EngineStats stats() const;
  /// Target for the time between two tokens of a request, in seconds.
  void set_token_seconds(double seconds) { token_seconds_ = seconds; }
  const CacheMemory& memory() const { return memory_; }
  Runner& runner() { return runner_; }

 private:
  struct Request;
  struct Part;
  using Requests = std::list<std::unique_ptr<Request>>;

  void receive();
  void insert(std::unique_ptr<Request> request);
  void add_generating(std::vector<Part>& parts);
  void add_prompts(std::vector<Part>& parts);
  bool start(Request& request);
  void preempt(Request& request);
  Request* last_running() const;
  /// Number of tokens between positions whose states are kept; 0: the model has no states.
  int64_t state_page() const { return memory_.has_states() ? memory_.page() : 0; }
  int64_t prompt_budget(int64_t generating) const;
  int64_t draft_length(const Request& request, int64_t most, int64_t tokens) const;
  void run(std::vector<Part>& parts);
  void finish_part(Part& part, std::span<const TokenLogit> best);
  /// Chooses the token after output `row` of the latest batch, adds it to the request, and reports it.
  void add_token(Request& request, std::span<const TokenLogit> best, int64_t row);
  static void list_logits(const Request& request, std::span<const float> logits, Output& output);
  void list_prompt(const Part& part, int64_t begin);
  /// Reports that `computed` tokens of the request are computed, if the request asks for reports.
  void report(const Request& request, int64_t computed);
  int32_t choose(Request& request, std::span<const TokenLogit> best, int64_t row, Output& output);
  std::string text_of(Request& request, int32_t token) const;
  void end(Request& request, Finish finish, const std::string& error = {});

  const Model& model_;
  const Tokenizer* tokenizer_;
  int64_t most_sequences_, most_drafts_, most_outputs_;
  Runner runner_;
  CacheMemory memory_;
  int64_t most_tokens_;
  double token_seconds_ = 0.05;
  StepTimes times_;
  bool is_busy_ = false;  // whether the latest step may still run
  Requests requests_;     // in order
  std::vector<Output> outputs_;
  std::vector<uint32_t> mask_;
  EngineStats stats_;

  std::mutex mutex_;  // guards the next members
  std::vector<std::unique_ptr<Request>> submitted_;
  std::vector<RequestId> cancelled_;
  RequestId last_id_ = 0;
};

}  // namespace shoal::models
