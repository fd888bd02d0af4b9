#include "tools/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/processes.h"

namespace shoal::tools {
namespace {

template <class T>
double mean_of(const std::vector<T>& values) {
  if (values.empty()) return 0.0;
  return static_cast<double>(std::accumulate(values.begin(), values.end(), T{})) / static_cast<double>(values.size());
}

template <class T>
double deviation(const std::vector<T>& values) {
  if (values.size() < 2) return 0.0;
  const double middle = mean_of(values);
  double sum = 0.0;
  for (const T value : values) sum += (static_cast<double>(value) - middle) * (static_cast<double>(value) - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

/// If `together`, evaluates the tokens as one batch. Otherwise evaluates the tokens one by one. Waits for the results.
void run(models::Session& session, std::span<const int32_t> tokens, bool together) {
  const size_t step = together ? tokens.size() : 1;
  for (size_t done = 0; done < tokens.size(); done += step) {
    session.evaluate(tokens.subspan(done, step));
    session.selects() ? void(session.candidates()) : void(session.logits());
  }
}

}  // namespace

double mean(const std::vector<int64_t>& values) {
  return mean_of(values);
}
double mean(const std::vector<double>& values) {
  return mean_of(values);
}

int64_t percentile(std::vector<int64_t> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<ptrdiff_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto found = values.begin() + std::clamp<ptrdiff_t>(rank - 1, 0, std::ssize(values) - 1);
  std::nth_element(values.begin(), found, values.end());
  return *found;
}

void let_stop(sched::Scheduler& scheduler, const models::Placement& placement, const std::function<bool()>& stop) {
  const auto members = placement.members();
  const bool cpus =
      std::all_of(members.begin(), members.end(), [](Device* one) { return one->type() == DeviceType::kCpu; });
  if (!stop || !cpus || processes() != nullptr) return;  // all processes must stop after the same run
  for (int i = 0; i < scheduler.backends(); ++i) scheduler.backend(i).set_abort_callback(stop);
}

std::string DeviceList::text() const {
  std::string text;
  size_t next = 0;
  for (const int size : group_sizes) {
    for (int i = 0; i < size; ++i) {
      text += (text.empty() ? "" : i == 0 ? "," : "+") + names[next++];
    }
  }
  return text;
}

std::string BenchTest::name() const {
  const std::string what = parallel > 0 ? fmt::format("np{} pp{} tg{}", parallel, prompt, generate)
                           : prompt > 0 ? fmt::format("pp{}", prompt)
                                        : fmt::format("tg{}", generate);
  return depth > 0 ? fmt::format("{} @ d{}", what, depth) : what;
}

std::vector<double> BenchSamples::rates() const {
  std::vector<double> rates;
  for (const int64_t one : ns) rates.push_back(static_cast<double>(tokens) * 1e9 / static_cast<double>(one));
  return rates;
}
int64_t BenchSamples::avg_ns() const {
  return std::llround(mean(ns));
}
int64_t BenchSamples::stddev_ns() const {
  return std::llround(deviation(ns));
}
double BenchSamples::avg_rate() const {
  return mean(rates());
}
double BenchSamples::stddev_rate() const {
  return deviation(rates());
}

std::vector<int32_t> bench_tokens(int64_t count, int64_t vocabulary, uint32_t seed) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint32_t state = seed;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocabulary));
  }
  return tokens;
}

BenchSamples measure(Deployment& deployment, const BenchTest& test, const models::SessionOptions& options,
                     const BenchOptions& bench, const std::function<bool()>& stop) {
  deployment.backends.clear();
  deployment.plan.reset();
  models::Model& model = *deployment.model;
  models::Placement& placement = *deployment.placement;
  const auto go_on = [&] {
    if (stop && stop()) throw Interrupted();
  };
  const std::vector<int32_t> all = bench_tokens(test.length(), model.hparams.vocab);
  const std::span<const int32_t> filled = std::span(all).first(static_cast<size_t>(test.depth));
  const std::span<const int32_t> tokens = std::span(all).subspan(filled.size());
  BenchSamples samples{test.tokens(), {}};
  const TraceRowUse row = options.tracer != nullptr ? options.tracer->row("bench") : nullptr;
  try {
    models::Session session(model, placement, placement.init(), options);
    let_stop(session.scheduler(), placement, stop);
    // Rewinds the session to the depth of the test. If this rewind is not possible, fills the cache from position 0 to
    // this depth.
    const auto go_to_depth = [&] {
      if (session.position() > 0 && session.can_rewind(test.depth)) return session.rewind(test.depth);
      session.rewind(0);
      for (size_t done = 0; done < filled.size(); done += static_cast<size_t>(session.batch())) {
        go_on();
        session.evaluate(filled.subspan(done, std::min(filled.size() - done, static_cast<size_t>(session.batch()))));
        session.synchronize();
      }
    };
    go_to_depth();
    if (bench.warmup) {
      go_on();
      const TraceScope scope(row.get(), TraceKind::kHost, {test.name(), " warm-up"});
      const int64_t count = test.prompt > 0 ? test.prompt : std::min(kWarmupTokens, test.generate);
      run(session, tokens.first(static_cast<size_t>(count)), test.prompt > 0);
    }
    for (int i = 0; i < bench.repetitions; ++i) {
      go_on();
      go_to_depth();
      const TraceScope scope(row.get(), TraceKind::kHost, {test.name(), " run ", std::to_string(i + 1)});
      const auto start = std::chrono::steady_clock::now();
      run(session, tokens, test.prompt > 0);
      const auto time = std::chrono::steady_clock::now() - start;
      samples.ns.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    }
  } catch (const Aborted&) {
    throw Interrupted();
  }
  return samples;
}

}  // namespace shoal::tools
