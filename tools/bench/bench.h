// Measures prompt and generation speed for `shoal bench`. Tests are named as in llama-bench: pp512 evaluates a prompt
// of 512 tokens, and tg128 generates 128 tokens one by one. The suffix "@ d1024" means that the cache already holds
// 1024 tokens. All functions block and must be called from one thread.
#pragma once

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

/// A test of prompt processing or of generation. One of the two token counts is 0.
struct BenchTest {
  int64_t prompt = 0;
  int64_t generate = 0;
  int64_t depth = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;

  int64_t tokens() const { return prompt + generate; }
  int64_t context() const { return depth + tokens(); }
  std::string name() const;  ///< such as "pp512 @ d1024"
};

struct BenchOptions {
  int repetitions = 5;
  bool warmup = true;
};

/// Times of the repetitions of one test.
struct BenchSamples {
  int64_t tokens = 0;  ///< number of tokens in each repetition
  std::vector<int64_t> ns;

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

/// Valid token ids. Every call returns the same ids.
std::vector<int32_t> bench_tokens(int64_t count, int64_t vocabulary);

}  // namespace shoal::tools
