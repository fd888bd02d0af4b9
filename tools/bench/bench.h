// Measures prompt and generation speed for `shoal bench`. Tests are named as in llama-bench: pp512 evaluates a prompt
// of 512 tokens, and tg128 generates 128 tokens one by one. The suffix "@ d1024" means that the cache already holds
// 1024 tokens. "np8 pp512 tg128" runs 8 requests at the same time, each with a prompt of 512 tokens and an answer of
// 128 tokens (parallel_bench.h). All functions block and must be called from one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/startup/deployment.h"

namespace shoal::tools {

/// The devices of one --devices list, such as "CPU0+CPU1,CPU2".
struct DeviceList {
  std::vector<std::string> names;
  std::vector<int> group_sizes;
  std::string label = {};  ///< name in tables; if empty, tables show text()
  std::string text() const;
  std::string shown() const { return label.empty() ? text() : label; }
};

/// A model, and the devices, shares and threads with which the model runs.
struct BenchSetup {
  std::string model;
  DeviceList devices;
  std::string ratio;  ///< "": even shares
  int threads = 0;
};

/// A test of prompt processing, of generation, or of requests that run at the same time. One of the two token counts is
/// 0, except for requests.
struct BenchTest {
  int64_t prompt = 0;
  int64_t generate = 0;
  int64_t depth = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;
  int64_t parallel = 0;  ///< number of requests; 0: the test has no requests

  /// Number of tokens in a repetition.
  int64_t tokens() const { return std::max<int64_t>(parallel, 1) * (prompt + generate); }
  /// Number of tokens of one sequence, with the cached tokens.
  int64_t length() const { return depth + prompt + generate; }
  std::string name() const;  ///< such as "pp512 @ d1024"
};

struct BenchOptions {
  int repetitions = 5;
  bool warmup = true;
  models::SamplerParams sampling = {};  ///< of requests; their seeds are 0, 1, 2, ...
};

/// Number of generated tokens in a warm-up. This number is enough to build the graphs and to run each graph again.
inline constexpr int64_t kWarmupTokens = 4;

/// Times of the requests of a test. The prompt phase of a repetition ends when each request has its first token.
struct RequestTimes {
  std::vector<int64_t> prompt_ns = {}, generation_ns = {};  ///< durations of the two phases in each repetition
  std::vector<double> prompt_rates = {};                    ///< prompt tokens per second of the prompt phase
  std::vector<double> generation_rates =
      {};                                ///< generated tokens per second of the other phase; 0 if this phase is empty
  std::vector<int64_t> first_ns = {};    ///< time to the first token, for each request of each repetition
  std::vector<int64_t> between_ns = {};  ///< time between two tokens of a request
  int64_t preemptions = 0;               ///< how often a request lost its memory
};

/// Times of the repetitions of one test.
struct BenchSamples {
  int64_t tokens = 0;  ///< number of tokens in each repetition
  std::vector<int64_t> ns;
  RequestTimes requests = {};  ///< empty for tests without requests

  std::vector<double> rates() const;  ///< tokens per second in each repetition
  int64_t avg_ns() const;
  int64_t stddev_ns() const;  ///< sample standard deviation (divisor n - 1); 0 for a single repetition
  double avg_rate() const;    ///< mean of rates()
  double stddev_rate() const;
};

/// Measures a test in a session with these options. Fills the cache to the test's depth and runs a warm-up. Each
/// repetition then starts from the same depth. The session's tracer records each repetition under the trace row
/// "bench". Destroys `deployment.plan` and `deployment.backends`. Polls `stop` between runs and, if all devices are
/// CPUs, also within runs. Throws Interrupted when `stop` returns true.
BenchSamples measure(Deployment& deployment, const BenchTest& test, const models::SessionOptions& options,
                     const BenchOptions& bench, const std::function<bool()>& stop = {});

/// Lets `stop` interrupt the computation of a node. Sets this callback only if all devices are CPUs, because the cost
/// of callbacks on other devices is unknown.
void let_stop(sched::Scheduler& scheduler, const models::Placement& placement, const std::function<bool()>& stop);

/// Valid token ids. Every call with the same `seed` returns the same ids.
std::vector<int32_t> bench_tokens(int64_t count, int64_t vocabulary, uint32_t seed = 1);

/// Arithmetic mean; 0 without values.
double mean(const std::vector<int64_t>& values);
double mean(const std::vector<double>& values);
/// The smallest value that is at least as large as `share` of all values (nearest rank); 0 without values.
///   percentile({10, 20, 30, 40}, 0.5) -> 20
int64_t percentile(std::vector<int64_t> values, double share);

}  // namespace shoal::tools
