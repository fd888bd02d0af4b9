// What a candidate is called, where its tensors lie, and other plain facts of predictions.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "base/error.h"
#include "tuning/predict.h"

namespace shoal::tuning {
namespace {

struct ObjectiveName {
  Objective objective;
  std::string_view name;
};
constexpr std::array kObjectives = std::to_array<ObjectiveName>({
    {Objective::kGeneration, "generation"},
    {Objective::kPrompt, "prompt"},
    {Objective::kMix, "mix"},
});

/// FNV-1a.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    value_ = (value_ ^ 0xff) * 0x100000001b3;  // a byte that no text has: "a", "bc" is not "ab", "c"
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

std::string join_shares(std::span<const double> shares, double scale, int digits) {
  std::string text;
  for (const double share : shares) {
    std::string one = fmt::format("{:.{}f}", share * scale, digits);
    if (one.find('.') != std::string::npos) {
      one.erase(one.find_last_not_of('0') + 1);
      if (one.ends_with('.')) one.pop_back();
    }
    text += (text.empty() ? "" : ",") + one;
  }
  return text;
}

bool is_same(std::span<const double> shares, const std::string& text) {
  try {
    const std::vector<double> read = models::parse_ratio(text, static_cast<int>(shares.size()));
    for (size_t i = 0; i < shares.size(); ++i) {
      if (std::abs(read[i] - shares[i]) > 1e-9) return false;
    }
    return true;
  } catch (const InvalidArgument&) {
    return false;  // all of it rounded to 0
  }
}

}  // namespace

std::string ratio_text(std::span<const double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> parts;
  for (const double share : shares) parts.push_back(sum > 0 ? share / sum : 0);
  // The smallest whole numbers that say the same, as people would write it.
  for (int scale = 1; scale <= 999; ++scale) {
    std::string text = join_shares(parts, scale, 0);
    if (is_same(parts, text)) return text;
  }
  return join_shares(parts, 1, 9);
}

size_t Candidate::device_count() const {
  size_t count = 0;
  for (const auto& group : groups) count += group.size();
  return count;
}

std::string Candidate::devices() const {
  std::string text;
  for (const auto& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      const char* gap = text.empty() ? "" : i > 0 && mode == models::SplitMode::kLayer ? "+" : ",";
      text += gap + group[i]->name();
    }
  }
  return text;
}

std::string Candidate::ratio() const {
  return shares.empty() ? "" : ratio_text(shares);
}

std::string Candidate::name() const {
  const std::string rest = host.empty() ? "" : " " + host.flags();
  if (device_count() < 2) return devices() + rest;
  return fmt::format("{} {} {}{}", devices(), mode == models::SplitMode::kLayer ? "layer" : "tensor",
                     shares.empty() ? "even" : ratio(), rest);
}

std::string HostPart::flags() const {
  std::string text = device_layers < 0 ? "" : fmt::format("-ngl {}", device_layers);
  if (expert_layers > 0) text += fmt::format("{}-ncmoe {}", text.empty() ? "" : " ", expert_layers);
  return text;
}

std::string_view name_of(Objective objective) {
  return kObjectives[static_cast<size_t>(objective)].name;
}

Objective parse_objective(std::string_view text) {
  for (const ObjectiveName& known : kObjectives) {
    if (known.name == text) return known.objective;
  }
  fail<InvalidArgument>("there is no objective '{}'; there are generation, prompt and mix", text);
}

int64_t rows_seen(const Workload& workload) {
  return std::max<int64_t>(1, workload.depth + (workload.generate > 0 ? workload.generate : workload.prompt) / 2);
}

void require_work(const Workload& workload, Objective objective) {
  const bool prompt = objective != Objective::kGeneration, generate = objective != Objective::kPrompt;
  require<InvalidArgument>((!prompt || workload.prompt > 0) && (!generate || workload.generate > 0),
                           "the objective {} needs {}{}{}", name_of(objective), prompt ? "a prompt" : "",
                           prompt && generate ? " and " : "", generate ? "tokens to generate" : "");
}

models::PlacementOptions placement_of(const Candidate& candidate, models::PlacementOptions options) {
  options.mode = candidate.mode;
  options.ratio = candidate.ratio();
  if (candidate.host.empty()) return options;
  options.device_layers = candidate.host.device_layers;
  options.expert_layers = candidate.host.expert_layers;
  return options;
}

models::PlacementOptions placement_of(const Candidate& candidate, const Scenario& scenario) {
  models::PlacementOptions options = placement_of(candidate, scenario.placement);
  options.machine = {std::shared_ptr<const void>(), &scenario.machine};  // without a share in its ownership
  AskedWays ways = scenario.ways;
  if (ways.rows == 0) ways.rows = rows_seen(scenario.workload);
  ways.cache_type = scenario.session.dtype_k;
  take_faster_ways(scenario.model, candidate.groups, ways, options);
  return options;
}

namespace {

/// All that is placed: weights, and a cache of one row.
class Placed {
 public:
  explicit Placed(const models::Model& model) {
    declare_cache(cache_, model.hparams, {1, DType::kF32, DType::kF32});
    for (const Tensor* tensor : model.weights.tensors()) all_.push_back(tensor);
    for (const Tensor* tensor : cache_.context.tensors()) all_.push_back(tensor);
  }

  std::string key(const models::Placement& placement) const { return key(placement, all_); }

  /// Is the key the one that is wanted? Layers that are alike are divided alike where devices act as one: the first of
  /// them tells of most that it is not.
  bool has_key(const models::Placement& placement, const models::Placement& wanted_of, const std::string& wanted) {
    if (placement.is_meta() && wanted_of.is_meta()) {
      if (samples_.empty()) choose_samples();
      if (sample_key_.empty()) sample_key_ = key(wanted_of, samples_);
      if (key(placement, samples_) != sample_key_) return false;
    }
    return key(placement) == wanted;
  }

 private:
  static std::string key(const models::Placement& placement, std::span<const Tensor* const> tensors) {
    Digest digest;
    if (placement.latent_parts() > 1) digest.add(fmt::format("{} parts", placement.latent_parts()));
    for (const Tensor* tensor : tensors) {
      const int device = placement.device_of(*tensor);
      digest.add(tensor->name);
      digest.add(placement.devices()[static_cast<size_t>(device)]->name());
      const models::SplitPolicy* policy = placement.policy_of(device);
      if (policy == nullptr) continue;
      digest.add((*policy)(*tensor).to_string());
    }
    return digest.text();
  }

  /// The first tensor of each name without its layer, shape and type.
  void choose_samples() {
    std::set<std::tuple<std::string_view, Shape, DType>> known;
    for (const Tensor* tensor : all_) {
      const std::string_view name = tensor->name;
      const size_t digit = name.find_first_of("0123456789");
      const size_t rest = digit == name.npos ? 0 : name.find_first_not_of("0123456789", digit);
      const std::string_view ending = rest == name.npos ? name.substr(0, digit) : name.substr(rest);
      if (known.emplace(ending, tensor->shape, tensor->dtype).second) samples_.push_back(tensor);
    }
  }

  models::KvCache cache_;
  std::vector<const Tensor*> all_, samples_;
  std::string sample_key_;
};

}  // namespace

std::string split_key(const models::Model& model, const models::Placement& placement) {
  return Placed(model).key(placement);
}

std::vector<double> simplest_shares(const Scenario& scenario, const Candidate& candidate) {
  constexpr int kMost = 99;
  if (candidate.shares.empty()) return {};
  Placed placed(scenario.model);
  const models::Placement asked(scenario.model, candidate.groups, placement_of(candidate, scenario));
  const std::string wanted = placed.key(asked);
  const auto is_same_split = [&](const Candidate& one) {
    return placed.has_key({scenario.model, one.groups, placement_of(one, scenario)}, asked, wanted);
  };
  const double largest = *std::max_element(candidate.shares.begin(), candidate.shares.end());
  for (int most = 1; most <= kMost; ++most) {
    Candidate simple = candidate;
    for (double& share : simple.shares) share = std::round(share / largest * most);
    if (is_same_split(simple)) return simple.shares;
  }
  // Or the fewest decimals.
  const double sum = std::accumulate(candidate.shares.begin(), candidate.shares.end(), 0.0);
  for (double scale = 1e3; scale < 1e9; scale *= 10) {
    Candidate simple = candidate;
    for (double& share : simple.shares) share = std::round(share / sum * scale) / scale;
    if (is_same_split(simple)) return simple.shares;
  }
  return candidate.shares;
}

int64_t margin_bytes(const models::DeviceUse& use) {
  return static_cast<int64_t>(use.memory.free) - static_cast<int64_t>(use.needed());
}

double margin_part(const models::DeviceUse& use) {
  return use.memory.free == 0 ? 0 : static_cast<double>(margin_bytes(use)) / static_cast<double>(use.memory.free);
}

}  // namespace shoal::tuning
