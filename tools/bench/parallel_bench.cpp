#include "tools/bench/parallel_bench.h"

#include <chrono>
#include <string>

#include "base/error.h"
#include "models/session/orders.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/processes.h"

namespace shoal::tools {
namespace {

using Clock = std::chrono::steady_clock;

// A cache that is divided into n parts has pages of at most 63 + n tokens (page_rows()), and the number of parts
// depends on the placement. This constant is sufficient for up to 65 parts.
constexpr int64_t kLargestPage = 128;

int64_t ns_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count();
}

double rate(int64_t tokens, int64_t ns) {
  return ns > 0 ? static_cast<double>(tokens) * 1e9 / static_cast<double>(ns) : 0;
}

}  // namespace

int64_t cache_tokens(const BenchTest& test, const models::Hparams& hparams, size_t devices) {
  const bool may_be_divided = devices > 1 && models::has_latent_cache(hparams);
  if (may_be_divided) return test.parallel * (test.length() + kLargestPage - 1);
  const int64_t page = models::page_rows(1);
  return test.parallel * ((test.length() + page - 1) / page * page);
}

ParallelBench::ParallelBench(Deployment& deployment, int64_t batch)
    : placement_(*deployment.placement),
      vocab_(deployment.model->hparams.vocab),
      batch_(batch),
      tracer_(deployment.asked.session.tracer) {
  models::SessionOptions options = deployment.asked.session;
  const bool is_planned = deployment.plan != nullptr && options.batch == batch;
  options.batch = batch;
  std::shared_ptr<models::ModelPlan> plan;
  std::vector<std::unique_ptr<Backend>> backends = std::move(deployment.backends);
  if (is_planned) plan = std::move(deployment.plan);
  if (backends.empty()) backends = deployment.placement->init();
  options = models::engine_options(options);
  if (!is_leader()) {
    models::Runner runner(*deployment.model, placement_, std::move(backends), options, std::move(plan));
    models::follow(runner, *processes());
    return;
  }
  engine_ =
      std::make_unique<models::Engine>(*deployment.model, placement_, std::move(backends), options, std::move(plan));
  if (processes() != nullptr) engine_->runner().lead(*processes());
}

void ParallelBench::extend(Prompts& prompts, int64_t count) {
  for (std::vector<int32_t>& prompt : prompts) {
    const std::vector<int32_t> tokens = bench_tokens(count, vocab_, ++streams_);
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
}

void ParallelBench::run(const Prompts& prompts, models::RequestOptions options, const std::function<void()>& go_on,
                        BenchSamples& samples) {
  const auto requests = static_cast<int64_t>(prompts.size());
  std::vector<Clock::time_point> latest(prompts.size());  // time of the latest token of each request
  int64_t started = 0, generated = 0;
  int64_t in_prompt_phase = 0;  // tokens
  const auto begin = Clock::now();
  auto prompt_end = begin, now = begin;
  models::RequestId first = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    const models::RequestId id = engine_->submit(prompt, options);
    if (first == 0) first = id;
    ++options.sampling.seed;
  }
  while (engine_->step()) {
    go_on();
    now = Clock::now();
    for (const models::Output& output : engine_->take_outputs()) {
      require<DeviceError>(output.finish != models::Finish::kFailed, "a request failed: {}", output.error);
      if (output.token < 0) continue;
      Clock::time_point& last = latest[static_cast<size_t>(output.request - first)];
      const bool is_first = last == Clock::time_point();
      (is_first ? samples.requests.first_ns : samples.requests.between_ns)
          .push_back(ns_between(is_first ? begin : last, now));
      last = now;
      ++generated;
      started += is_first;
    }
    if (prompt_end == begin && started == requests) prompt_end = now, in_prompt_phase = generated;
  }
  RequestTimes& times = samples.requests;
  samples.ns.push_back(ns_between(begin, now));
  times.prompt_ns.push_back(ns_between(begin, prompt_end));
  times.generation_ns.push_back(ns_between(prompt_end, now));
  const int64_t prompt_tokens = samples.tokens - requests * options.most_tokens;
  times.prompt_rates.push_back(rate(prompt_tokens, times.prompt_ns.back()));
  times.generation_rates.push_back(rate(generated - in_prompt_phase, times.generation_ns.back()));
}

BenchSamples ParallelBench::measure(const BenchTest& test, const BenchOptions& bench,
                                    const std::function<bool()>& stop) {
  if (engine_ == nullptr) return {test.tokens(), {}};
  require<InvalidArgument>(test.length() <= engine_->most_tokens(),
                           "{}: each request needs {} tokens, but the cache has only {}; use a larger context (-c) or "
                           "fewer tokens (-p, -n, -d)",
                           test.name(), test.length(), engine_->most_tokens());
  const auto go_on = [&] {
    if (stop && stop()) throw Interrupted();
  };
  let_stop(engine_->runner().scheduler(), placement_, stop);
  const TraceRowUse row = tracer_ != nullptr ? tracer_->row("bench") : nullptr;
  BenchSamples samples{test.tokens(), {}}, unused;
  try {
    const auto answer = [&bench](int64_t tokens) {
      return models::RequestOptions{.sampling = bench.sampling, .most_tokens = tokens};
    };
    Prompts filled(static_cast<size_t>(test.parallel));
    extend(filled, test.depth);
    if (test.depth > 0) run(filled, answer(0), go_on, unused);
    if (bench.warmup) {
      go_on();
      const TraceScope scope(row.get(), TraceKind::kHost, {test.name(), " warm-up"});
      Prompts prompts = filled;
      extend(prompts, test.prompt);
      run(prompts, answer(std::min(kWarmupTokens, test.generate)), go_on, unused);
    }
    const int64_t preemptions = engine_->stats().preemptions;
    for (int i = 0; i < bench.repetitions; ++i) {
      go_on();
      Prompts prompts = filled;
      extend(prompts, test.prompt);
      const TraceScope scope(row.get(), TraceKind::kHost, {test.name(), " run ", std::to_string(i + 1)});
      run(prompts, answer(test.generate), go_on, samples);
    }
    samples.requests.preemptions = engine_->stats().preemptions - preemptions;
  } catch (const Aborted&) {
    throw Interrupted();
  }
  return samples;
}

}  // namespace shoal::tools
