// A loaded model whose engine runs in a thread of its own, for the Python package (python/). Any thread may use a
// Service.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/engine/engine_thread.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {

class Service {
 public:
  /// Loads a model. `arguments` are the flags of EngineFlags (engine_flags.h), such as {"-m", "m.gguf", "--devices",
  /// "CPU0,CPU1"}. Threads of the loader call `progress`. An exception of `progress` stops the loading. Throws
  /// InvalidArgument for wrong flags, a wrong file or an unsupported tokenizer, and the errors of resolve() and load().
  Service(const std::vector<std::string>& arguments, const models::LoadProgress& progress);

  const models::Model& model() const { return *deployment_.model; }
  const models::Placement& placement() const { return *deployment_.placement; }
  const models::Tokenizer& tokenizer() const { return tokenizer_; }
  models::EngineThread& thread() { return *thread_; }
  /// Maximum number of tokens of a prompt and its answer.
  int64_t most_tokens() const { return deployment_.engine->most_tokens(); }
  /// Maximum number of requests that run at the same time.
  int64_t parallel() const { return deployment_.asked.session.sequences; }
  /// Maximum number of guessed tokens of a request per step.
  int64_t draft() const { return deployment_.asked.session.drafts; }
  /// The chosen split, such as shares and context.
  const tuning::Choice& choice() const { return deployment_.asked.fixed; }
  /// Planned memory of each simple device, with the free memory before the model was loaded.
  const std::vector<models::DeviceUse>& memory() const { return memory_; }
  /// Number of tokens in the cache of all requests.
  int64_t cache_tokens() const { return cache_tokens_; }
  /// The layouts and steps with which one token is generated.
  const std::string& plan() const { return plan_; }

 private:
  Deployment deployment_;
  models::Tokenizer tokenizer_;
  std::vector<models::DeviceUse> memory_;
  int64_t cache_tokens_ = 0;
  std::string plan_;
  std::unique_ptr<models::EngineThread> thread_;  // destroyed first
};

}  // namespace shoal::tools
