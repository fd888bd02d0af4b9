#include "tools/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "devices/params.h"
#include "graph/error.h"
#include "tools/comparison_side.h"
#include "tools/threads.h"

namespace shoal::tools {
namespace {

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

/// Both sides at once: the first device has the whole model and its share of it.
void require_memory_of_both(const ComparisonSide& one, const ComparisonSide& many) {
  std::map<std::string, size_t> one_needs;
  for (const models::DeviceUse& use : one.memory()) one_needs[use.device] = use.use.total();
  for (const models::DeviceUse& use : many.memory()) {
    size_t needed = use.use.total() + one_needs[use.device];
    require<DeviceError>(needed <= use.memory.free,
                         "{} needs {} and has {} free, for every result is kept{}; use a shorter prompt (-p), a "
                         "smaller context (-c) or other devices",
                         use.device, format_bytes(needed), format_bytes(use.memory.free),
                         one_needs[use.device] > 0 ? " and the first device has the whole model too" : "");
  }
}

/// Collects the errors of one step after another.
class Comparer {
 public:
  Comparer(ComparisonSide& one, ComparisonSide& many) : one_(one), many_(many) {}

  void step(const std::string& name, std::span<const int32_t> tokens) {
    one_.run(tokens);
    many_.run(tokens);
    for (size_t i = 0; i < one_.nodes().size(); ++i) {
      const Tensor &expected = *one_.nodes()[i], &actual = *many_.nodes()[i];
      if (info(expected.op).alias != Alias::kNone) continue;  // a view, or the cache, which comes below
      add({name, expected.name, std::string(name_of(expected.op)), many_.layout(actual)}, expected, actual);
    }
    for (size_t i = 0; i < one_.caches().size(); ++i) {
      const Tensor &expected = *one_.caches()[i], &actual = *many_.caches()[i];
      add({name, expected.name, "cache", many_.cache_layout(actual)}, expected, actual);
    }
  }

  /// The token that the one device finds best after the tokens so far.
  int32_t best() const {
    std::vector<float> logits = read_values(one_.logits());
    auto last = logits.end() - one_.logits().shape[0];
    return static_cast<int32_t>(std::max_element(last, logits.end()) - last);
  }

  std::vector<NodeError> take() { return std::move(errors_); }

 private:
  void add(NodeError error, const Tensor& expected, const Tensor& actual) {
    std::vector<float> values = read_values(expected);
    error.nmse = normalised_error(values, read_values(actual));
    error.finite = is_finite(values);
    errors_.push_back(std::move(error));
  }

  ComparisonSide& one_;
  ComparisonSide& many_;
  std::vector<NodeError> errors_;
};

}  // namespace

double normalised_error(std::span<const float> a, std::span<const float> b) {
  check(a.size() == b.size(), "{} values against {}", a.size(), b.size());
  double squares = 0.0, differences = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    differences += difference * difference;
  }
  if (differences == 0.0) return 0.0;
  double error = differences / squares;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

std::vector<NodeError> compare_nodes(const std::string& path, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, models::SessionOptions session,
                                     std::span<const int32_t> tokens) {
  int64_t needed = static_cast<int64_t>(tokens.size()) + 1;
  if (session.context == 0) session.context = needed;
  require<InvalidArgument>(needed <= session.context,
                           "{} tokens of the prompt and one more do not fit into a context of {}; use -c {} or more",
                           tokens.size(), session.context, needed);
  require_threads(threads_needed({devices.data(), 1}, placement.threads) + threads_needed(devices, placement.threads));
  ComparisonSide one(path, {devices.front()}, {{}, placement.threads}, session, needed - 1);
  ComparisonSide many(path, devices, placement, session, needed - 1);
  require_memory_of_both(one, many);
  one.load();
  many.load();
  Comparer comparer(one, many);
  comparer.step("prompt", tokens);
  int32_t next = comparer.best();
  comparer.step("token", {&next, 1});
  return comparer.take();
}

}  // namespace shoal::tools
