// Measures requests that run at the same time, for `shoal bench -np`. All requests are submitted at once. Each request
// has a prompt of its own, so the cache contains no prompt. With a depth of d, the cache contains the first d tokens of
// each prompt, rounded down to whole pages. With several processes, process 0 has the engine, and the other processes
// follow its runner.
#pragma once

#include <functional>
#include <memory>

#include "models/engine/engine.h"
#include "tools/bench/bench.h"

namespace shoal::tools {

/// Number of tokens in the cache of an engine, enough for all requests of a test. `devices`: number of devices of the
/// model.
int64_t cache_tokens(const BenchTest& test, const models::Hparams& hparams, size_t devices);

/// An engine for tests with the same batch size. The deployment must outlive the object.
class ParallelBench {
 public:
  /// Makes an engine with the options deployment.asked.session, which are the result of engine_options(), but with a
  /// batch of `batch` tokens. If the deployment has a plan for this batch, the engine takes the plan and the backends.
  /// In other processes than process 0, returns after the last measurement, and measure() returns no times.
  ParallelBench(Deployment& deployment, int64_t batch);

  int64_t batch() const { return batch_; }
  const models::Engine& engine() const { return *engine_; }
  /// Measures a test. Fills the cache to the test's depth and runs a warm-up. The tracer records each repetition like
  /// measure(). Polls `stop` between steps and, if all devices are CPUs, also within steps. Throws Interrupted when
  /// `stop` returns true. Throws InvalidArgument if the cache is too small for one request.
  BenchSamples measure(const BenchTest& test, const BenchOptions& bench, const std::function<bool()>& stop = {});

 private:
  using Prompts = std::vector<std::vector<int32_t>>;
  /// Adds `count` new tokens to each prompt. All tokens differ from the tokens of earlier calls.
  void extend(Prompts& prompts, int64_t count);
  /// Runs one request per prompt. Adds the times of the requests to `samples`.
  void run(const Prompts& prompts, models::RequestOptions options, const std::function<void()>& go_on,
           BenchSamples& samples);

  const models::Placement& placement_;
  int64_t vocab_;
  int64_t batch_;
  Tracer* tracer_;
  std::unique_ptr<models::Engine> engine_;  ///< nullptr in other processes than process 0
  uint32_t streams_ = 0;                    ///< number of token sequences that were made
};

}  // namespace shoal::tools
