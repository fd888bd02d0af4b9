// Measures how fast a model processes prompts and generates, what `shoal bench` prints: tests in the terms of
// llama-bench (pp512: a prompt of 512 tokens; tg128: 128 tokens generated one by one; "@ d1024": after 1024 tokens that
// are in the cache already). One thread; blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/startup/deployment.h"

namespace shoal::tools {

/// Devices as one value of --devices names them: "CPU0+CPU1,CPU2".
struct DeviceList {
  std::vector<std::string> names;
  std::vector<int> group_sizes;
  std::string label = {};  ///< in tables, in place of a long text()
  std::string text() const;
  std::string shown() const { return label.empty() ? text() : label; }
};

/// What a model is loaded with.
struct BenchSetup {
  std::string model;
  DeviceList devices;
  std::string ratio;  ///< "" for even
  int threads = 0;
};

/// Prompt processing or generation; the other count is 0.
struct BenchTest {
  int64_t prompt = 0;
  int64_t generate = 0;
  int64_t depth = 0;
  int64_t batch = 2048;
  int64_t ubatch = 512;

  int64_t tokens() const { return prompt + generate; }
  int64_t context() const { return depth + tokens(); }
  std::string name() const;  ///< "pp512 @ d1024"
};

struct BenchOptions {
  int repetitions = 5;
  bool warmup = true;
};

/// Times of the repetitions of one test.
struct BenchSamples {
  int64_t tokens = 0;  ///< of each repetition
  std::vector<int64_t> ns;

  std::vector<double> rates() const;  ///< tokens per second
  int64_t avg_ns() const;
  int64_t stddev_ns() const;  ///< of the sample (n - 1); 0 for a single one
  double avg_rate() const;    ///< mean of rates()
  double stddev_rate() const;
};

/// Fills the cache to the test's depth, runs once without a clock, then the repetitions, each from that depth, in a
/// session of these options on what is loaded; its tracer sees the runs on a row called "bench". The deployment's plan
/// and backends are dropped. `stop`: asked between runs and, where all devices are CPUs, within them; true throws
/// Interrupted.
BenchSamples measure(Deployment& deployment, const BenchTest& test, const models::SessionOptions& options,
                     const BenchOptions& bench, const std::function<bool()>& stop = {});

/// Valid token ids, always the same ones.
std::vector<int32_t> bench_tokens(int64_t count, int64_t vocabulary);

}  // namespace shoal::tools
