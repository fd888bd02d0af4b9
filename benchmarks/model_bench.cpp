// Benchmarks of a whole model on CPU devices, which divide the cores of the machine. The benchmarks time prompts and
// generation through a session, and compare the loading of a model with the reading of its file. First, a check
// evaluates a prompt in one batch, and also token by token on one device. It compares the logits of the two
// evaluations.
//
// `shoal bench` times prompts and generation on any devices, in the format of llama-bench. The results here are
// relative to the limits of the cores (benchmarks/machine.h).
//
//   prompt, generate   tokens/s. `generate` also prints the rate of weight reads in GB/s, and as %bw in percent of the
//                      read bandwidth. Models of the repository fit into a cache, so their %bw may be over 100.
//   shared_prompt      time to the first token of a request of an engine, after a request with the same first 2,000
//                      tokens and another end. x_first: speed-up relative to the earlier request
//   load               uses the weights directly from the mapped file. GB/s: bytes of the file per second;
//                      x_read: time relative to `read`
//   load_copied        copies the weights without repacking
//   load_packed        repacks the weights for the device (the default of shoal)
//   read               one thread reads the file into new small pages; malloc returns such pages for large sizes
//
// During all loads and reads, the file is in the page cache.
//
//   model_bench --model=model.gguf --benchmark_filter=load
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "benchmarks/machine.h"
#include "devices/buffer.h"
#include "devices/cpu/cpu_device.h"
#include "models/engine/engine.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/session.h"

namespace shoal::models {
namespace {

constexpr int64_t kChecked = 32;    ///< number of prompt tokens that are evaluated before the logits are compared
constexpr int64_t kGenerated = 64;  ///< number of generated tokens after which the session rewinds
constexpr size_t kShared = 2000;    ///< number of tokens that two prompts have in common
constexpr size_t kOwn = 32;         ///< number of tokens after the common tokens

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Device*> make_devices(int count) {
  cpu::configure(fmt::format("devices={}", count));
  std::vector<Device*> devices;
  for (int i = 0; i < count; ++i) devices.push_back(&Registry::instance().device(fmt::format("CPU{}", i)));
  return devices;
}

/// Memory that the process has not used before. The pages are small even if the system enables huge pages.
class FreshMemory {
 public:
  explicit FreshMemory(size_t size)
      : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    require<DeviceError>(data_ != MAP_FAILED, "cannot map {} bytes", size);
    madvise(data_, size, MADV_NOHUGEPAGE);  // may fail, but only on a system without huge pages
  }
  ~FreshMemory() { munmap(data_, size_); }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  size_t size_;
  void* data_;
};

/// A model that is loaded on some devices.
struct Loaded {
  Loaded(const std::string& path, int devices, const LoadOptions& options = {})
      : members(make_devices(devices)), model(open_model(path)), placement(*model, members) {
    load_weights(*model, placement, {}, options);
  }
  ~Loaded() { unload_weights(*model); }

  int threads() const {
    return std::accumulate(members.begin(), members.end(), 0,
                           [](int sum, Device* device) { return sum + cpu::default_threads(*device); });
  }
  /// Bytes of weights that one token reads. Unused experts do not count. The embedding table counts only if it is also
  /// the output head. Otherwise, a token reads only one row of the table.
  double bytes_per_token() const {
    const Hparams& hparams = model->hparams;
    double bytes = 0;
    for (const ModelTensor& tensor : model->split_tensors()) {
      const TensorRole role = tensor.spec->role;
      if (role == TensorRole::kLookup || (role == TensorRole::kEmbedding && !model->is_tied())) continue;
      const double used = role == TensorRole::kExperts
                              ? static_cast<double>(hparams.experts_used) / static_cast<double>(tensor.spec->shape[2])
                              : 1;
      bytes += used * static_cast<double>(model->weights.find(tensor.spec->name)->bytes());
    }
    return bytes;
  }
  /// The buffer type of all weights. There is only one buffer type, because the placement has one device.
  const BufferType& weights_in() const { return model->weights.tensors().front()->buffer->type(); }

  std::vector<Device*> members;
  std::unique_ptr<Model> model;
  Placement placement;
};

struct Running {
  Running(const std::string& path, int devices, const LoadOptions& options = {})
      : loaded(path, devices, options),
        context(std::min<int64_t>(loaded.model->hparams.context, 512)),
        session(*loaded.model, loaded.placement, loaded.placement.init(), {.context = context}) {}

  std::vector<int32_t> tokens(int64_t count) const {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      ids[static_cast<size_t>(i)] = static_cast<int32_t>((1 + i * 7919) % loaded.model->hparams.vocab);
    }
    return ids;
  }
  /// Logits after kChecked tokens, which are evaluated in batches of `step` tokens.
  std::vector<float> logits(int64_t step) {
    const std::vector<int32_t> all = tokens(kChecked);
    session.rewind(0);
    for (int64_t i = 0; i < kChecked; i += step) session.evaluate({all.data() + i, static_cast<size_t>(step)});
    const std::span<const float> values = session.logits();
    return {values.begin(), values.end()};
  }

  Loaded loaded;
  int64_t context;
  Session session;
};

/// Allowed relative error of the logits. Products with quantised weights round the columns to 8 bits, and several
/// devices add the parts of a product in another order.
constexpr double kTolerance = 0.02;

void verify(const std::vector<float>& expected, const std::vector<float>& actual) {
  require<DeviceError>(expected.size() == actual.size(), "got {} logits, expected {}", actual.size(), expected.size());
  double errors = 0, squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    errors += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    squares += std::pow(expected[i], 2);
  }
  require<DeviceError>(errors <= kTolerance * squares, "the logits are wrong: error {:.3g}", errors / squares);
}

/// The benchmarks of one file. Google Benchmark calls each benchmark several times, so the object stores the last model
/// and session.
class Subject {
 public:
  explicit Subject(std::string path) : path_(std::move(path)) {}

  std::string name() const { return std::filesystem::path(path_).stem().string(); }
  void drop() { running_.reset(); }

  void prompt(benchmark::State& state) {
    Running& running = on(state);
    const std::vector<int32_t> tokens = running.tokens(running.context / 2);
    const auto start = std::chrono::steady_clock::now();
    while (state.KeepRunning()) {
      running.session.rewind(0);
      running.session.evaluate(tokens);
      benchmark::DoNotOptimize(running.session.logits());
    }
    const auto count = static_cast<double>(state.iterations()) * static_cast<double>(tokens.size());
    state.counters["tokens"] = static_cast<double>(tokens.size());
    state.counters["tokens/s"] = count / seconds_since(start);
  }

  void generate(benchmark::State& state) {
    Running& running = on(state);
    const std::vector<int32_t> tokens = running.tokens(kGenerated);
    const double bandwidth = bench::read_bandwidth(running.loaded.threads());
    const auto start = std::chrono::steady_clock::now();
    while (state.KeepRunningBatch(kGenerated)) {
      running.session.rewind(0);
      for (const int32_t& token : tokens) {
        running.session.evaluate({&token, 1});
        benchmark::DoNotOptimize(running.session.logits());
      }
    }
    const double rate = static_cast<double>(state.iterations()) / seconds_since(start);
    state.counters["tokens/s"] = rate;
    state.counters["GB/s"] = rate * running.loaded.bytes_per_token() / 1e9;
    state.counters["%bw"] = 100 * rate * running.loaded.bytes_per_token() / bandwidth;
  }

  void shared_prompt(benchmark::State& state) {
    drop();
    const Loaded loaded(path_, static_cast<int>(state.range(0)));
    const size_t shared = std::min(kShared, static_cast<size_t>(loaded.model->hparams.context / 2));
    Engine engine(*loaded.model, loaded.placement, loaded.placement.init(),
                  engine_options({.context = static_cast<int64_t>(2 * (shared + kOwn)), .candidates = 1}));
    uint32_t random = 1;
    const auto append = [&](std::vector<int32_t> tokens, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        random = random * 1664525u + 1013904223u;
        tokens.push_back(static_cast<int32_t>((random >> 8) % static_cast<uint32_t>(loaded.model->hparams.vocab)));
      }
      return tokens;
    };
    const auto seconds_of = [&](std::vector<int32_t> prompt) {
      const auto start = std::chrono::steady_clock::now();
      engine.submit(std::move(prompt), {.most_tokens = 1, .junction = static_cast<int64_t>(shared)});
      while (engine.step()) continue;
      return seconds_since(start);
    };
    double first = 0, second = 0;
    seconds_of(append({}, shared + kOwn));  // makes the graphs
    while (state.KeepRunning()) {
      const std::vector<int32_t> begin = append({}, shared);
      first += seconds_of(append(begin, kOwn));
      const double seconds = seconds_of(append(begin, kOwn));
      second += seconds;
      state.SetIterationTime(seconds);
    }
    state.counters["shared"] = static_cast<double>(shared);
    state.counters["x_first"] = first / second;
  }

  void load(benchmark::State& state, const LoadOptions& options) {
    {
      const Loaded& loaded = on(state, options).loaded;  // loads and verifies the model
      const BufferType& packed = loaded.placement.device().weights_type();
      require<DeviceError>(!options.repack || &loaded.weights_in() == &packed,
                           "weights are in {}, because {} has too little memory for them", loaded.weights_in().name(),
                           packed.name());
      state.SetLabel(fmt::format("in {}; x_read: time relative to read() into new pages", loaded.weights_in().name()));
    }
    drop();
    const auto devices = static_cast<int>(state.range(0));
    double loading = 0, reading = 0;
    read_file();  // fills the page cache; also uses the free pages that the system has already cleared
    while (state.KeepRunning()) {
      read_file();  // reading and loading alternate, so other programs slow down both equally
      reading += read_seconds_;
      const auto start = std::chrono::steady_clock::now();
      auto loaded = std::make_unique<Loaded>(path_, devices, options);
      const double seconds = seconds_since(start);
      loading += seconds;
      state.SetIterationTime(seconds);
    }
    const double bytes = static_cast<double>(std::filesystem::file_size(path_));
    state.counters["GB/s"] = bytes * static_cast<double>(state.iterations()) / loading / 1e9;
    state.counters["x_read"] = loading / reading;
  }

  void read(benchmark::State& state) {
    state.SetLabel("read() into new small pages");
    double seconds = 0;
    read_file();
    while (state.KeepRunning()) {
      read_file();
      seconds += read_seconds_;
      state.SetIterationTime(read_seconds_);
    }
    const double bytes = static_cast<double>(std::filesystem::file_size(path_));
    state.counters["GB/s"] = bytes * static_cast<double>(state.iterations()) / seconds / 1e9;
  }

 private:
  Running& on(const benchmark::State& state, const LoadOptions& options = {}) {
    const auto devices = static_cast<int>(state.range(0));
    if (expected_.empty()) {
      drop();
      expected_ = Running(path_, 1).logits(1);
    }
    const std::array<bool, 2> flags{options.use_mapping, options.repack};
    if (running_ == nullptr || devices_ != devices || flags_ != flags) {
      drop();
      auto next = std::make_unique<Running>(path_, devices, options);
      verify(expected_, next->logits(kChecked));
      running_ = std::move(next);
      devices_ = devices;
      flags_ = flags;
    }
    return *running_;
  }

  void read_file() {
    const auto start = std::chrono::steady_clock::now();
    const size_t size = std::filesystem::file_size(path_);
    const FreshMemory memory(size);
    const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    require<InvalidArgument>(file >= 0, "cannot open {}", path_);
    size_t done = 0;
    for (ssize_t got = 1; got > 0 && done < size; done += static_cast<size_t>(std::max<ssize_t>(got, 0))) {
      got = ::read(file, memory.data() + done, size - done);
    }
    close(file);
    require<DeviceError>(done == size, "{}: read only {} bytes", path_, done);
    benchmark::DoNotOptimize(memory.data()[size - 1]);
    read_seconds_ = seconds_since(start);
  }

  std::string path_;
  std::vector<float> expected_;
  std::unique_ptr<Running> running_;
  int devices_ = 0;
  std::array<bool, 2> flags_ = {};  ///< values of LoadOptions::use_mapping and LoadOptions::repack
  double read_seconds_ = 0;
};

template <class Body>
benchmark::internal::Benchmark* add(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(name.c_str(), [body](benchmark::State& state) {
    try {
      body(state);
    } catch (const Error& error) {
      state.SkipWithError(error.what());
    }
  });
}

void add_all(Subject& subject) {
  const auto on_devices = [&](const std::string& what, auto body) {
    return add(what + "/" + subject.name(), body)->ArgName("devices")->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);
  };
  on_devices("prompt", [&](benchmark::State& s) { subject.prompt(s); })->UseRealTime();
  on_devices("generate", [&](benchmark::State& s) { subject.generate(s); })->UseRealTime();
  on_devices("shared_prompt", [&](benchmark::State& s) { subject.shared_prompt(s); })->UseManualTime();
  on_devices("load_packed", [&](benchmark::State& s) { subject.load(s, {}); })->UseManualTime();
  on_devices("load", [&](benchmark::State& s) { subject.load(s, {.repack = false}); })->UseManualTime();
  add("load_copied/" + subject.name(),
      [&](benchmark::State& s) { subject.load(s, {.use_mapping = false, .repack = false}); })
      ->ArgName("devices")
      ->Arg(1)
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime();
  add("read/" + subject.name(),
      [&](benchmark::State& s) {
        subject.drop();
        subject.read(s);
      })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime();
}

void run(const std::vector<std::string>& files) {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const std::string& file : files) add_all(*subjects.emplace_back(std::make_unique<Subject>(file)));
  benchmark::RunSpecifiedBenchmarks();
}

}  // namespace
}  // namespace shoal::models

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App app("Times whole models. Also accepts the flags of Google Benchmark");
  std::vector<std::string> files;
  app.add_option("-m,--model", files, "GGUF files; default: small models of the repository")->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  if (files.empty()) {
    for (const char* type : {"q4_k_m", "q8_0"}) {
      files.push_back(fmt::format("{}/data/models/tiny-kjv-5m-{}.gguf", SHOAL_SOURCE_DIR, type));
    }
  }
  try {
    shoal::models::run(files);
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
