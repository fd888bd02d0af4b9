#include "tuning/probe/probe_device.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/topology.h"
#include "graph/ops/ops.h"
#include "machine/costs.h"

namespace shoal::probe {
namespace {

/// Size of a working set that the device certainly reads from memory, as a multiple of the cache size.
constexpr size_t kBeyondCaches = 4;
constexpr size_t kLeastStreamed = 128 * kMega;
/// Rates count as equal if their ratio is below this factor.
constexpr double kSameRate = 1.1;
/// Assumed cache size of devices that do not report their cache size. No GPU has a larger cache.
constexpr size_t kMostOfGpus = 128 * kMega;

/// Number of rows and columns in the matrices of small models. This is the smallest number that all types of weights
/// allow.
constexpr int64_t kSmall = 256;
/// Target duration in seconds of a run with more than 8 columns. The run multiplies the number of matrices that fits
/// into this time, but at least one matrix. Runs are repeated, so longer runs are unnecessary.
constexpr double kLongEnough = 5e-3;

/// Number of rows and columns of the measured matrices. A GPU gets larger matrices, because only large products reach
/// its full speed.
int64_t side_for(const Device& device) {
  return device.type() == DeviceType::kCpu ? 2048 : 4096;
}

/// Adds the ops of one layer of a small model for a batch of `tokens` prompt tokens.
void add_layer(Graph& g, TrialLeaves& leaves, DType dtype, int64_t tokens) {
  constexpr int64_t kHidden = 3 * kSmall, kHead = 32, kHeads = kSmall / kHead, kKvHeads = kHeads / 2;
  const auto weight = [&](int64_t k, int64_t m) { return leaves.add(dtype, {k, m, 1, 1}, Role::kWeight); };
  const auto other = [&](DType type, Shape shape) { return leaves.add(type, shape, Role::kCache); };
  Tensor* x = other(DType::kF32, {kSmall, tokens, 1, 1});
  Tensor* scales = other(DType::kF32, {kSmall, 1, 1, 1});
  std::vector<int32_t> places(static_cast<size_t>(tokens));
  std::iota(places.begin(), places.end(), 0);
  Tensor* positions = leaves.ints(places);
  Tensor* in = mul(g, rms_norm(g, x, {}), scales);
  const auto heads = [&](int64_t count) {
    return reshape(g, mul_mat(g, weight(kSmall, count * kHead), in), {kHead, count, tokens, 1});
  };
  Tensor* q = permute(g, rope(g, heads(kHeads), positions, nullptr, {.dims = kHead}), {0, 2, 1, 3});
  Tensor* k = permute(g, rope(g, heads(kKvHeads), positions, nullptr, {.dims = kHead}), {0, 2, 1, 3});
  Tensor* v = permute(g, heads(kKvHeads), {0, 2, 1, 3});
  Tensor* keys = set_rows(g, other(DType::kF16, {kHead, tokens, kKvHeads, 1}), k, positions);
  Tensor* values = set_rows(g, other(DType::kF16, {kHead, tokens, kKvHeads, 1}), v, positions);
  Tensor* seen = attention(g, q, keys, values, positions, nullptr, nullptr, {.scale = 0.18f, .causal = true});
  Tensor* sum = add(g, x, mul_mat(g, weight(kSmall, kSmall), reshape(g, seen, {kSmall, tokens, 1, 1})));
  Tensor* normed = mul(g, rms_norm(g, sum, {}), scales);
  Tensor* up = mul_mat(g, weight(kSmall, kHidden), normed);
  Tensor* hidden = glu(g, mul_mat(g, weight(kSmall, kHidden), normed), up, GluKind::kSwiglu);
  g.output(add(g, sum, mul_mat(g, weight(kHidden, kSmall), hidden)));
}

}  // namespace

ProbeEffort probe_effort(bool quick) {
  if (quick) return {{1, 4, 32, 512}, 6e-3, 128 * kMega};
  return {{1, 2, 4, 8, 32, 128, 512}, 15e-3, 512 * kMega};
}

size_t most_cache(const Device& device) {
  if (device.type() == DeviceType::kCpu && device.reg().name() == "CPU") {
    return cpu::cache_bytes(cpu::cores_of(device));
  }
  return device.type() == DeviceType::kCpu ? 0 : kMostOfGpus;
}

size_t beyond_caches(const Device& device) {
  return kBeyondCaches * most_cache(device);
}

double memory_rate(std::span<const ReadRate> rates) {
  double rate = 0;
  for (const ReadRate& one : rates) {
    if (2 * one.bytes >= rates.back().bytes) rate = std::max(rate, one.rate);
  }
  return rate;
}

size_t least_beyond_caches(std::span<const ReadRate> rates) {
  const double most = kSameRate * memory_rate(rates);
  size_t first = rates.size() - 1;
  while (first > 0 && rates[first - 1].rate <= most) --first;
  return static_cast<size_t>(rates[first].bytes);
}

size_t least_memory(const Device& device, const ProbeEffort& effort, std::span<const DType> dtypes) {
  const int64_t side = side_for(device);
  size_t matrix = 0;
  for (const DType dtype : dtypes) matrix = std::max(matrix, bytes_for(dtype, side * side));
  return matrix + bytes_for(DType::kF32, side * effort.columns.back());
}

/// Weight matrices of one type, and the columns that a product multiplies by each matrix.
struct DeviceProbe::Matrices {
  std::unique_ptr<TrialLeaves> leaves;
  std::vector<Tensor*> weights;
  Tensor* columns = nullptr;  ///< tensor with the largest measured number of columns

  int64_t elements() const { return weights.front()->elements(); }
  size_t bytes() const { return weights.front()->bytes(); }
  /// Number of matrices, at least one, with a total size of about `wanted` bytes.
  size_t count_for(size_t wanted) const { return std::clamp<size_t>(wanted / bytes(), 1, weights.size()); }
};

DeviceProbe::DeviceProbe(Device& device, Backend& backend, const ProbeEffort& effort)
    : device_(device),
      backend_(backend),
      effort_(effort),
      streamed_bytes_(std::max(kLeastStreamed, beyond_caches(device))) {}

/// Returns `bytes`, but at most a third of the free memory.
size_t DeviceProbe::affordable(size_t bytes) const {
  return std::min(bytes, device_.memory().free / 3);
}

DeviceProbe::Matrices DeviceProbe::make_matrices(DType dtype, size_t bytes, int64_t k, int64_t m) {
  Matrices made;
  made.leaves = std::make_unique<TrialLeaves>(device_);
  const size_t count = std::max<size_t>(1, affordable(bytes) / bytes_for(dtype, k * m));
  for (size_t i = 0; i < count; ++i) made.weights.push_back(made.leaves->add(dtype, {k, m, 1, 1}, Role::kWeight));
  made.columns = made.leaves->add(DType::kF32, {k, effort_.columns.back(), 1, 1}, Role::kCache);
  made.leaves->place();
  return made;
}

double DeviceProbe::run_products(const Matrices& matrices, size_t count, int64_t columns, double budget) {
  Trial trial(backend_);
  Graph& g = trial.graph();
  Tensor* x = slice(g, matrices.columns, {.axis = 1, .begin = 0, .length = columns});
  for (size_t i = 0; i < count; ++i) mul_mat(g, matrices.weights[i], x);
  trial.compile();
  return trial.measure(budget);
}

void DeviceProbe::measure_basics(DeviceModel& model, DType dtype) {
  measure_costs(model, dtype);
  find_caches(model, dtype);
  model.step_seconds = step_cost();
  model.run_seconds = run_cost();
}

/// Measures the cost of an op. Runs a chain of products and small ops with two sizes of the matrices. The time that
/// does not depend on the size is the cost of all ops.
void DeviceProbe::measure_costs(DeviceModel& model, DType dtype) {
  constexpr int kLayers = 16;
  const auto chain = [&](int64_t rows) {
    TrialLeaves leaves(device_);
    Tensor* x = leaves.add(DType::kF32, {kSmall, 1, 1, 1}, Role::kCache);
    Tensor* up = leaves.add(dtype, {kSmall, rows, 1, 1}, Role::kWeight);
    leaves.place();
    Trial trial(backend_);
    Graph& g = trial.graph();
    for (int i = 0; i < kLayers; ++i) {
      Tensor* y = mul_mat(g, up, rms_norm(g, x, {}));
      x = add(g, x, slice(g, y, {.axis = 0, .begin = 0, .length = kSmall}));
    }
    g.output(x);
    trial.compile();
    // Other programs can only increase these small times, so the smallest of three medians is the result.
    double least = trial.measure(effort_.budget / 3);
    for (int i = 1; i < 3; ++i) least = std::min(least, trial.measure(effort_.budget / 3));
    return least;
  };
  const double few = chain(kSmall), many = chain(4 * kSmall);
  const double without = std::max(few - (many - few) / 3, few / 10);
  model.op_seconds = without / (3 * kLayers);
}

/// Seconds that a step costs. Runs the same small ops in one step and in many steps, and divides the difference of the
/// times by the number of additional steps.
double DeviceProbe::step_cost() {
  constexpr int kSteps = 64;
  TrialLeaves leaves(device_);
  Tensor* x = leaves.add(DType::kF32, {32, 1, 1, 1}, Role::kCache);
  leaves.place();
  const auto seconds = [&](bool in_pieces) {
    Trial trial(backend_);
    Tensor* y = x;
    PlanOptions options;
    for (int i = 0; i < kSteps; ++i) {
      y = scale(trial.graph(), y, {1.0f, 0.0f});
      if (in_pieces && i > 0) options.cuts.push_back(i);
    }
    trial.graph().output(y);
    trial.compile(options);
    const auto run = [&] {
      {
        const HeldBackend held(backend_);
        for (int i = 0; i < trial.plan().segments(); ++i) backend_.compute_async(trial.plan(), i, i + 1);
      }
      backend_.synchronize();
    };
    run();
    return repeat_for(effort_.budget, [&] { return seconds_of(run); });
  };
  const double whole = seconds(false);
  return std::max(0.0, seconds(true) - whole) / (kSteps - 1);
}

/// Seconds that a run costs. Compares two runs. The first run is as long as a token of a small model, and the second
/// run is four times as long. Each run has an input and an output. An almost empty run would give a wrong result: the
/// threads would fall asleep, and the host would wait until they wake. This does not happen during a token.
double DeviceProbe::run_cost() {
  constexpr int kOps = 24, kTimes = 4, kRounds = 3;
  constexpr int64_t kElements = 32 * 1024;  // enough work for all threads of a device
  std::vector<std::byte> host(4 * 1024);
  const auto seconds = [&](int ops) {
    TrialLeaves leaves(device_);
    Tensor* input = leaves.add(DType::kF32, {kElements, 1, 1, 1}, Role::kCache);
    leaves.place();
    Trial trial(backend_);
    Tensor* y = input;
    for (int i = 0; i < ops; ++i) y = scale(trial.graph(), y, {1.0f, 0.0f});
    const Tensor* output = trial.graph().output(y);
    trial.compile();
    const auto run = [&] {
      {
        const HeldBackend held(backend_);
        backend_.set_async(*input, host.data(), 0, host.size());
        trial.start(1);
      }
      backend_.get_async(*output, host.data(), 0, host.size());
      backend_.synchronize();
    };
    run();
    return repeat_for(2 * effort_.budget / kRounds, [&] { return seconds_of(run); });
  };
  std::vector<double> few, many;
  for (int round = 0; round < kRounds; ++round) {
    few.push_back(seconds(kOps));
    many.push_back(seconds(kTimes * kOps));
  }
  const double one = median(few), several = median(many);
  return std::clamp(one - (several - one) / (kTimes - 1), 1e-7, one);
}

/// Reads working sets of increasing size repeatedly. The cache size is the size at which the read rate falls to the
/// rate of the memory.
void DeviceProbe::find_caches(DeviceModel& model, DType dtype) {
  const int64_t side = 1024;
  const size_t most = std::max(effort_.working_set, beyond_caches(device_));
  const Matrices matrices = make_matrices(dtype, most, side, side);
  std::vector<ReadRate> rates;
  for (size_t size = kMega; size < 2 * most; size *= 2) {
    const size_t count = matrices.count_for(std::min(size, most));
    const double bytes = static_cast<double>(count * matrices.bytes());
    const double measured = run_products(matrices, count, 1, effort_.budget);
    require<DeviceError>(measured > 0, "[{}] reads {} bytes of weights in no measurable time; probe again",
                         device_.name(), bytes);
    const double seconds = std::max(measured - static_cast<double>(count) * model.op_seconds, measured / 2);
    if (rates.empty() || bytes > rates.back().bytes) rates.push_back({bytes, bytes / seconds});
  }
  streamed_bytes_ = std::max(kLeastStreamed, least_beyond_caches(rates));
  model.bandwidth = memory_rate(rates);
  double best = 0;
  for (const auto& [bytes, rate] : rates) best = std::max(best, rate);
  model.cache_bytes = 0;
  if (best < 1.3 * model.bandwidth) return;
  const double between = std::sqrt(best * model.bandwidth);
  for (const auto& [bytes, rate] : rates) {
    if (rate > between) model.cache_bytes = bytes;
  }
}

std::vector<ProductPoint> DeviceProbe::measure_points(const Matrices& matrices, const DeviceModel& model) {
  std::vector<ProductPoint> points;
  const auto elements = static_cast<double>(matrices.elements());
  for (const int64_t n : effort_.columns) {
    size_t count = matrices.weights.size();
    if (!points.empty() && n > 8) {
      const double expected =
          points.back().seconds * elements * static_cast<double>(n) / static_cast<double>(points.back().columns);
      count = std::clamp<size_t>(static_cast<size_t>(kLongEnough / expected), 1, count);
    }
    const auto nodes = static_cast<double>(count);
    const double seconds = run_products(matrices, count, n, effort_.budget);
    points.push_back({n, std::max(seconds - nodes * model.op_seconds, seconds / 2) / (nodes * elements)});
  }
  return points;
}

void DeviceProbe::measure_products(DeviceModel& model, DType dtype) {
  ProductModel& product = model.products[std::string(name_of(dtype))];
  const int64_t side = side_for(device_);
  {
    const Matrices matrices = make_matrices(dtype, streamed_bytes_, side, side);
    product.streamed = measure_points(matrices, model);
    model.bandwidth = std::max(model.bandwidth, machine::element_bytes(dtype) / product.streamed[0].seconds);
  }
  if (model.cache_bytes > 0) {
    // Imitates a small model. The weights need a quarter of the largest cache. So the weights exceed the smaller caches
    // and safely fit into the largest cache. The matrices are as small as in a small model.
    const Matrices matrices = make_matrices(dtype, static_cast<size_t>(model.cache_bytes) / 4, kSmall, kSmall);
    product.cached = measure_points(matrices, model);
  }
}

/// Measures the ops of a layer except products and attention. The layer belongs to a small model, because these ops
/// take only a small fraction of the time of a large model.
void DeviceProbe::measure_activations(DeviceModel& model, DType dtype) {
  constexpr int64_t kTokens = 256;
  TrialLeaves leaves(device_);
  Trial trial(backend_);
  add_layer(trial.graph(), leaves, dtype, kTokens);
  leaves.place();
  trial.compile();
  DeviceModel bytes_alone = model;  // a fictitious device with 1 byte/s, so the seconds of an op equal its bytes
  bytes_alone.activation_bandwidth = 1;
  bytes_alone.op_seconds = 0;
  double known = 0, bytes = 0;
  for (const Tensor* node : trial.graph().nodes()) {
    if (info(node->op).kind != OpKind::kCompute) continue;
    const bool is_known = node->op == Op::kMulMat || node->op == Op::kAttention;
    const bool in_cache = model.cache_bytes > 0;
    known += is_known ? node_cost(model, *node, (kTokens + 1) / 2.0, in_cache).seconds : model.op_seconds;
    bytes += is_known ? 0 : node_cost(bytes_alone, *node, 0, in_cache).seconds;
  }
  const double seconds = trial.measure(2 * effort_.budget);
  model.activation_bandwidth = bytes / std::max(seconds - known, seconds / 10);
}

/// Measures attention with many queries and with one query. Heads have 64 elements, as in many models.
void DeviceProbe::measure_attention(DeviceModel& model) {
  constexpr int64_t kHead = 64, kHeads = 32, kKvHeads = 8;
  const auto seconds = [&](int64_t queries, int64_t rows, int caches) {
    TrialLeaves leaves(device_);
    Tensor* q = leaves.add(DType::kF32, {kHead, kHeads, queries, 1}, Role::kCache);
    std::vector<int32_t> places(static_cast<size_t>(queries));
    std::iota(places.begin(), places.end(), static_cast<int32_t>(rows - queries));
    Tensor* positions = leaves.ints(places);
    std::vector<Tensor*> all;
    for (int i = 0; i < 2 * caches; ++i) {
      all.push_back(leaves.add(DType::kF16, {kHead, rows, kKvHeads, 1}, Role::kCache));
    }
    leaves.place();
    Trial trial(backend_);
    Graph& g = trial.graph();
    Tensor* by_heads = permute(g, q, {0, 2, 1, 3});
    const AttentionParams params{.scale = 0.125f, .causal = true};
    for (size_t i = 0; i < all.size(); i += 2) {
      attention(g, by_heads, all[i], all[i + 1], positions, nullptr, nullptr, params);
    }
    trial.compile();
    const double measured = trial.measure(effort_.budget) / caches;
    return std::max(measured - model.op_seconds, measured / 2);
  };
  constexpr int64_t kQueries = 256, kRows = 512, kSeen = kQueries * (kRows - kQueries) + kQueries * (kQueries + 1) / 2;
  model.attention_rate = static_cast<double>(4 * kHead * kHeads * kSeen) / seconds(kQueries, kRows, 1);
  constexpr int64_t kDeep = 2048, kBytes = 2 * 2 * kHead * kKvHeads * kDeep;
  constexpr size_t kFewest = 8;
  const size_t caches = affordable(streamed_bytes_) / kBytes;
  model.attention_bandwidth = kBytes / seconds(1, kDeep, static_cast<int>(std::max(kFewest, caches)));
}

Load DeviceProbe::make_load(DType dtype, size_t bytes, bool computes) {
  const int64_t side = side_for(device_);
  Matrices matrices = make_matrices(dtype, computes ? 1 : bytes, side, side);
  Load load;
  load.trial = std::make_unique<Trial>(backend_);
  Graph& g = load.trial->graph();
  Tensor* x = slice(g, matrices.columns, {.axis = 1, .begin = 0, .length = computes ? matrices.columns->shape[1] : 1});
  for (Tensor* weights : matrices.weights) mul_mat(g, weights, x);
  load.trial->compile();
  load.seconds = load.trial->measure(effort_.budget);
  load.leaves = std::move(matrices.leaves);
  return load;
}

}  // namespace shoal::probe
