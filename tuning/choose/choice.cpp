#include "tuning/choose/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "models/arch/kv_cache.h"
#include "tuning/choose/dimensions.h"
#include "tuning/choose/ways.h"

namespace shoal::tuning {
namespace {

/// 64-bit FNV-1a hash.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    value_ = (value_ ^ 0xff) * 0x100000001b3;  // 0xff ends each text and occurs in no text, so ("a", "bc") and ("ab",
                                               // "c") get different hashes
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
    return false;  // the text contains only zeros, because all shares were rounded to 0
  }
}

/// All tensors that a placement assigns to devices: the weights, and a cache of one row.
class Placed {
 public:
  explicit Placed(const models::Model& model) {
    declare_cache(cache_, model.hparams, {1, DType::kF32, DType::kF32});
    for (const Tensor* tensor : model.weights.tensors()) all_.push_back(tensor);
    for (const Tensor* tensor : cache_.context.tensors()) all_.push_back(tensor);
  }

  std::string key(const models::Placement& placement) const { return key(placement, all_); }

  /// Whether the key of `placement` equals `wanted`, the key of the placement `wanted_of`. If devices act as one, all
  /// equal layers have the same split. So a comparison of a few sample tensors rejects most placements.
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

  /// Selects the first tensor of each combination of name (without the layer number), shape and type.
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

/// Calls `visit` with the JSON name, the value and the parser of each optional field of `choice`. A new field of Choice
/// must be added here, or to to_json() and with_json() like `shares`. Process 0 sends the JSON to other processes, and
/// Chooser uses the JSON in keys of verdicts.
template <class AnyChoice, class Visit>
void visit_named(AnyChoice& choice, const Visit& visit) {
  auto& [groups, mode, shares, host, context, experts, latent, cache_k, cache_v] = choice;
  visit("experts", experts, parse_expert_split);
  visit("latent", latent, parse_latent_split);
  visit("cache_k", cache_k, models::cache_dtype_from_name);
  visit("cache_v", cache_v, models::cache_dtype_from_name);
}

}  // namespace

std::string ratio_text(std::span<const double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> parts;
  for (const double share : shares) parts.push_back(sum > 0 ? share / sum : 0);
  // Finds the smallest whole numbers with the ratio of the shares.
  for (int scale = 1; scale <= 999; ++scale) {
    std::string text = join_shares(parts, scale, 0);
    if (is_same(parts, text)) return text;
  }
  return join_shares(parts, 1, 9);
}

std::vector<double> normalised(std::vector<double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share = sum > 0 ? share / sum : 1.0 / static_cast<double>(shares.size());
  return shares;
}

std::vector<double> even_shares(size_t count) {
  return std::vector<double>(count, 1.0 / static_cast<double>(count));
}

std::vector<Device*> Choice::devices() const {
  return models::joined(groups).front();
}

models::DeviceGroups Choice::sharers() const {
  if (mode == models::SplitMode::kLayer) return groups;
  models::DeviceGroups out;
  for (Device* device : devices()) out.push_back({device});
  return out;
}

std::string Choice::devices_text() const {
  std::string text;
  for (const auto& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      const char* gap = text.empty() ? "" : i > 0 && mode == models::SplitMode::kLayer ? "+" : ",";
      text += gap + group[i]->name();
    }
  }
  return text;
}

std::string Choice::ratio() const {
  return shares.empty() ? "" : ratio_text(shares);
}

std::string Choice::name() const {
  const std::string rest = host.empty() ? "" : " " + host.flags();
  if (device_count() < 2) return devices_text() + rest;
  return fmt::format("{} {} {}{}", devices_text(), mode == models::SplitMode::kLayer ? "layer" : "tensor",
                     shares.empty() ? "even" : ratio(), rest);
}

std::string HostPart::flags() const {
  std::string text = device_layers < 0 ? "" : fmt::format("-ngl {}", device_layers);
  if (expert_layers > 0) text += fmt::format("{}-ncmoe {}", text.empty() ? "" : " ", expert_layers);
  return text;
}

std::string to_json(const Choice& choice) {
  nlohmann::json json{{"devices", choice.device_count()},
                      {"shares", choice.shares},
                      {"device_layers", choice.host.device_layers},
                      {"expert_layers", choice.host.expert_layers},
                      {"context", choice.context}};
  visit_named(choice, [&](const char* key, const auto& value, const auto&) {
    if (value) json[key] = name_of(*value);
  });
  return json.dump();
}

Choice with_json(Choice known, const std::string& json) {
  const nlohmann::json told = nlohmann::json::parse(json);
  // Only the number of devices is compared. The device names differ between processes, because a process omits the
  // process number in the names of its own devices.
  require<CommError>(told["devices"] == known.device_count(),
                     "process 0 uses {} devices, but this process uses {}; give all processes the same flags",
                     told["devices"].get<size_t>(), known.device_count());
  known.shares = told["shares"].get<std::vector<double>>();
  known.host = {told["device_layers"], told["expert_layers"]};
  known.context = told["context"];
  visit_named(known, [&](const char* key, auto& value, const auto& parse) {
    if (told.contains(key)) value = parse(told[key].get<std::string>());
  });
  return known;
}

Choice acting_as_one(std::vector<Device*> devices) {
  return {.groups = {std::move(devices)}};
}

Choice layers_of(std::span<Device* const> devices) {
  Choice layers{.groups = {}, .mode = models::SplitMode::kLayer};
  for (Device* device : devices) layers.groups.push_back({device});
  return layers;
}

models::PlacementOptions placement_options(const Choice& choice, models::PlacementOptions options) {
  options.mode = choice.mode;
  options.ratio = choice.ratio();
  options.experts = choice.experts.value_or(options.experts);
  options.latent = choice.latent.value_or(options.latent);
  if (choice.host.empty()) return options;
  options.device_layers = choice.host.device_layers;
  options.expert_layers = choice.host.expert_layers;
  return options;
}

models::SessionOptions session_options(const Choice& choice, models::SessionOptions options) {
  if (choice.context > 0) options.context = choice.context;
  options.dtype_k = choice.cache_k.value_or(options.dtype_k);
  options.dtype_v = choice.cache_v.value_or(options.dtype_v);
  return options;
}

bool are_placed_alike(const Choice& one, Choice other) {
  other.context = one.context;  // `context` and `cache_v` affect only the session
  other.cache_v = one.cache_v;
  return one == other;
}

std::string split_key(const models::Model& model, const models::Placement& placement) {
  return Placed(model).key(placement);
}

std::vector<double> simplest_shares(const Chooser& chooser, const Choice& choice) {
  constexpr int kMost = 99;
  if (choice.shares.empty()) return {};
  const auto place = [&](std::vector<double> shares) {
    Choice one = choice;
    one.shares = std::move(shares);
    return models::Placement(chooser.model(), one.groups, chooser.options_of(one));
  };
  Placed placed(chooser.model());
  const models::Placement asked = place(choice.shares);
  const std::string wanted = placed.key(asked);
  const auto rounded = [&](double scale, double unit) {
    std::vector<double> shares = choice.shares;
    for (double& share : shares) share = std::round(share * scale) * unit;
    return shares;
  };
  const double largest = *std::max_element(choice.shares.begin(), choice.shares.end());
  for (int most = 1; most <= kMost; ++most) {
    std::vector<double> shares = rounded(most / largest, 1);
    if (placed.has_key(place(shares), asked, wanted)) return shares;
  }
  // If no whole numbers up to kMost give the same split, rounds the shares to as few decimals as possible.
  const double sum = std::accumulate(choice.shares.begin(), choice.shares.end(), 0.0);
  for (double scale = 1e3; scale < 1e9; scale *= 10) {
    std::vector<double> shares = rounded(scale / sum, 1 / scale);
    if (placed.has_key(place(shares), asked, wanted)) return shares;
  }
  return choice.shares;
}

}  // namespace shoal::tuning
