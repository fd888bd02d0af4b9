#include "models/place/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "base/error.h"

namespace shoal::models {
namespace {

constexpr int kHost = -2;

std::string member_params(const Device& device, int threads) {
  return threads > 0 && device.type() == DeviceType::kCpu ? fmt::format("threads={}", threads) : std::string();
}

DeviceGroups groups_of(std::vector<Device*> devices, SplitMode mode) {
  DeviceGroups groups;
  if (mode == SplitMode::kTensor) return {std::move(devices)};
  for (Device* device : devices) groups.push_back({device});
  return groups;
}

/// Returns the device group of each of `count` layers. The shares divide the interval [0, count) into one range per
/// group. Layer i belongs to the group whose range contains i + 0.5.
///   8 layers, shares 3/4 and 1/4 -> 0 0 0 0 0 0 1 1
std::vector<int> divide_layers(int64_t count, std::span<const double> shares) {
  std::vector<int> groups;
  for (int64_t layer = 0; layer < count; ++layer) {
    const double middle = (static_cast<double>(layer) + 0.5) / static_cast<double>(count);
    double end = 0;
    int group = 0;
    for (size_t g = 0; g < shares.size(); ++g) {
      end += shares[g];
      if (shares[g] > 0) group = static_cast<int>(g);
      if (middle < end) break;
    }
    groups.push_back(group);
  }
  return groups;
}

/// Assigns layers that share a KV cache, and all layers between them, to one device group: the group of the middle
/// layer. If these layers were in different groups, each layer that reads another group's cache would copy queries and
/// results between the groups.
///   8 layers, of which layers 5 to 7 read the caches of layers 2 and 3: groups 0 0 0 0 1 1 1 1 -> 0 0 1 1 1 1 1 1
void keep_together(std::span<int> of_layer, const Hparams& h) {
  for (int64_t end = h.layers; end > 0;) {
    int64_t begin = end - 1;
    for (int64_t i = end - 1; i >= begin; --i) {
      if (h.layer(i).kv_layer >= 0) begin = std::min(begin, h.layer(i).kv_layer);
    }
    const auto shared = of_layer.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const auto device = std::find_if(shared.begin(), shared.end(), [](int group) { return group != kHost; });
    // If the first layers of the range are on the host, only the other layers of the range are moved.
    if (device != shared.end()) std::fill(device, shared.end(), device[(shared.end() - device) / 2]);
    end = begin;
  }
}

/// Number of tokens in the batch of a matrix product; 0 for other nodes.
int64_t batch_of(const Tensor& node) {
  if (node.op == Op::kMulMat) return node.shape[1];
  return node.op == Op::kMulMatId ? node.shape[2] : 0;
}

std::set<int> layers_of_experts(const Model& model) {
  std::set<int> layers;
  for (const TensorSpec& spec : model.specs) {
    if (spec.role == TensorRole::kExperts) layers.insert(spec.layer);
  }
  return layers;
}

/// "blk.3.ffn_up_exps.bias" -> "blk.3.ffn_up_exps"
std::string_view without_ending(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

std::regex regex_of(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error&) {
    fail<InvalidArgument>("'{}' is not a regular expression for tensor names; an example is blk\\.0\\.ffn_.*", pattern);
  }
}

}  // namespace

DeviceGroups joined(const DeviceGroups& groups) {
  std::vector<Device*> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return {all};
}

int64_t layers_with_experts(const Model& model) {
  return static_cast<int64_t>(layers_of_experts(model).size());
}

void check_pattern(const std::string& pattern) {
  regex_of(pattern);
}

Placement::Placement(const Model& model, std::vector<Device*> devices, const PlacementOptions& options)
    : Placement(model, groups_of(std::move(devices), options.mode), options) {}

Placement::Placement(const Model& model, DeviceGroups groups, const PlacementOptions& options)
    : threads_(options.threads), host_(options.host) {
  if (options.mode == SplitMode::kTensor) groups = joined(groups);
  for (const auto& group : groups) {
    require<InvalidArgument>(!group.empty(), "no device to run on; name at least one device");
    for (Device* device : group) {
      require<InvalidArgument>(std::find(members_.begin(), members_.end(), device) == members_.end(),
                               "device {} is listed twice; name each device once", device->name());
      members_.push_back(device);
    }
  }
  require<InvalidArgument>(!members_.empty(), "no device to run on; name at least one device");
  require<InvalidArgument>(
      options.processes == nullptr || !options.uses_host(),
      "with several processes, options cannot keep parts of the model on the host; instead add the host's CPU devices "
      "to the device list, or use one process");
  place_layers(model, groups, options);
  place_experts(model, groups, options.expert_layers);
  override_tensors(model, groups, options.overrides);
}

// Finds the device group of each tensor. Then adds one device for each group that has tensors. If this device is a meta
// device, also adds its split policy.
void Placement::place_layers(const Model& model, const DeviceGroups& groups, const PlacementOptions& options) {
  const bool by_layer = options.mode == SplitMode::kLayer;
  const std::vector<double> shares =
      parse_ratio(options.ratio, static_cast<int>(by_layer ? groups.size() : members_.size()));
  const int64_t layers = model.hparams.layers;
  const int64_t here = options.device_layers < 0 ? layers : std::min(options.device_layers, layers);
  const bool all = options.device_layers < 0;
  // If device_layers exceeds the number of layers, the output head is on the device of the last layer, as with -ngl in
  // llama.cpp.
  const bool head_here = all || options.device_layers > layers;
  std::vector<int> of_layer(static_cast<size_t>(layers - here), kHost);
  const std::vector<double> one{1.0};
  for (const int group : divide_layers(here, by_layer ? std::span<const double>(shares) : one)) {
    of_layer.push_back(group);
  }
  keep_together(of_layer, model.hparams);
  const int first = of_layer.empty() ? 0 : of_layer.front(), last = of_layer.empty() ? 0 : of_layer.back();
  const auto group_of = [&](const TensorSpec& spec) {
    if (spec.role == TensorRole::kLookup && !all) return kHost;
    if (spec.layer >= 0) return of_layer[static_cast<size_t>(spec.layer)];
    if (spec.role == TensorRole::kEmbedding && all) return model.is_tied() ? last : first;
    if (spec.role == TensorRole::kEmbedding) return kHost;
    return head_here ? last : kHost;
  };
  std::vector<int> device_of_group(groups.size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    const bool used = std::any_of(model.specs.begin(), model.specs.end(),
                                  [&](const TensorSpec& spec) { return group_of(spec) == static_cast<int>(g); });
    if (!used) continue;
    device_of_group[g] = static_cast<int>(devices_.size());
    const std::vector<double> even(groups[g].size(), 1.0 / static_cast<double>(groups[g].size()));
    add_device(model, groups[g], by_layer ? even : shares, options);
  }
  const auto index_of = [&](int group) {
    return group == kHost ? host_index(groups) : device_of_group[static_cast<size_t>(group)];
  };
  for (const TensorSpec& spec : model.specs) homes_[spec.name] = index_of(group_of(spec));
  for (const TensorSpec& spec : cache_tensors(model.hparams, {.rows = 1})) {
    homes_[spec.name] = options.cache_on_host ? host_index(groups) : index_of(group_of(spec));
  }
}

void Placement::add_device(const Model& model, const std::vector<Device*>& group, std::span<const double> shares,
                           const PlacementOptions& options) {
  groups_.push_back(group);
  // With several processes, even a single device becomes a meta device, because a meta device knows the process of each
  // member.
  if (group.size() == 1 && options.processes == nullptr) {
    devices_.push_back(group.front());
    params_.push_back(member_params(*group.front(), options.threads));
    policies_.push_back(nullptr);
    return;
  }
  meta::MetaOptions meta_options{.machine = options.machine,
                                 .comm = collectives::implementation_or_default(options.comm),
                                 .processes = options.processes};
  for (const Device* member : group) meta_options.member_params.push_back(member_params(*member, options.threads));
  if (options.offload_batch > 0) {
    meta_options.offload_op = [least = options.offload_batch](const Tensor& node) { return batch_of(node) >= least; };
  }
  // The policy covers all tensors, because weights of other devices may be copied to this device for large batches.
  policies_.push_back(std::make_unique<SplitPolicy>(model.hparams, model.split_tensors(), shares, options.experts,
                                                    options.latent, latent_parts_));
  if (latent_parts_ == 0 && group.size() > 1) latent_parts_ = policies_.back()->latent_parts();
  metas_.push_back(meta::MetaDevice::create(group, *policies_.back(), std::move(meta_options)));
  devices_.push_back(metas_.back().get());
  params_.emplace_back();
}

Device* find_host(const DeviceGroups& groups, Device* asked) {
  Device* host = asked;
  for (Device* device : Registry::instance().devices()) {
    if (asked != nullptr) break;
    if (device->type() != DeviceType::kCpu) continue;
    const bool free = std::none_of(groups.begin(), groups.end(), [&](const auto& group) {
      return std::find(group.begin(), group.end(), device) != group.end();
    });
    if (host == nullptr || free) host = device;
    if (free) break;
  }
  return host;
}

/// Returns the index of the host in devices_. Adds the host if it is missing.
int Placement::host_index(const DeviceGroups& groups) {
  Device* const host = find_host(groups, host_);
  require<InvalidArgument>(host != nullptr, "no CPU device is registered for the part of the model on the host");
  const auto known = std::find(devices_.begin(), devices_.end(), host);
  if (known != devices_.end()) return static_cast<int>(known - devices_.begin());
  devices_.push_back(host);
  groups_.push_back({host});
  params_.push_back(member_params(*host, threads_));
  policies_.push_back(nullptr);
  if (std::find(members_.begin(), members_.end(), host) == members_.end()) members_.push_back(host);
  return static_cast<int>(devices_.size()) - 1;
}

void Placement::place_experts(const Model& model, const DeviceGroups& groups, int64_t layers) {
  if (layers <= 0) return;
  std::set<int> chosen = layers_of_experts(model);
  require<InvalidArgument>(!chosen.empty(), "{} has no experts to place on the host", model.file.path());
  if (layers < static_cast<int64_t>(chosen.size())) chosen.erase(std::next(chosen.begin(), layers), chosen.end());
  // Names are compared without their last suffix, so the biases of the experts also match.
  std::set<std::string_view> names;
  for (const TensorSpec& spec : model.specs) {
    if (spec.role == TensorRole::kExperts && chosen.contains(spec.layer)) names.insert(without_ending(spec.name));
  }
  const int host = host_index(groups);
  for (const TensorSpec& spec : model.specs) {
    if (names.contains(without_ending(spec.name))) homes_[spec.name] = host;
  }
}

void Placement::override_tensors(const Model& model, const DeviceGroups& groups,
                                 const std::vector<TensorOverride>& overrides) {
  for (const TensorOverride& entry : overrides) {
    const std::regex pattern = regex_of(entry.pattern);
    const auto named = [&](const Device* device) { return device->name() == entry.device; };
    const auto found = std::find_if(devices_.begin(), devices_.end(), named);
    int home = static_cast<int>(found - devices_.begin());
    if (found == devices_.end()) {
      const int host = host_index(groups);
      if (!named(devices_[static_cast<size_t>(host)]) && entry.device != "CPU") {
        std::vector<std::string> names;
        for (const Device* device : devices_) names.push_back(device->name());
        fail<InvalidArgument>("tensors '{}' cannot be placed on {}; use one of {}", entry.pattern, entry.device,
                              fmt::join(names, ", "));
      }
      home = host;
    }
    int matches = 0;
    for (const TensorSpec& spec : model.specs) {
      if (!std::regex_search(spec.name, pattern)) continue;
      homes_[spec.name] = home;
      ++matches;
    }
    require<InvalidArgument>(matches > 0, "no tensor of {} matches '{}'; an example of a name is {}", model.file.path(),
                             entry.pattern, model.specs.back().name);
  }
}

int Placement::device_of(const Tensor& tensor) const {
  const auto found = homes_.find(tensor.name);
  check(found != homes_.end(), "{} is not a tensor of the model", tensor.name);
  return found->second;
}

std::span<Device* const> Placement::members_of(int device) const {
  return groups_[static_cast<size_t>(device)];
}

std::vector<std::unique_ptr<Backend>> Placement::init() const {
  std::vector<std::unique_ptr<Backend>> backends;
  for (size_t d = 0; d < devices_.size(); ++d) backends.push_back(devices_[d]->init(params_[d]));
  return backends;
}

}  // namespace shoal::models
