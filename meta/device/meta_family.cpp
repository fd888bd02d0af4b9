#include "meta/device/meta_family.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "collectives/factory.h"
#include "devices/functions.h"
#include "meta/meta.h"

namespace shoal::meta {
namespace {

constexpr double kMostShare = 1e9;

std::vector<double> parse_ratio(const std::string& text, size_t devices) {
  std::vector<double> shares;
  double sum = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double value = -1;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    require<InvalidArgument>(error == std::errc() && stop == text.data() + end && value >= 0 && value <= kMostShare,
                             "bad split \"{}\": give one number from 0 to 1e9 for each device, such as 3,1", text);
    shares.push_back(value);
    sum += value;
    begin = end + 1;
  }
  require<InvalidArgument>(shares.size() == devices && sum > 0,
                           "split \"{}\" has {} shares (sum {}) for {} devices; give each device a share, not all 0",
                           text, shares.size(), sum, devices);
  return shares;
}

/// Splits weights and caches on one axis by a ratio. A unit is a block on axis 0 and an index on the other axes. A
/// tensor is mirrored if its axis has fewer than two units.
SplitStateCallback ratio_callback(int axis, std::vector<double> ratio) {
  return [axis, ratio = std::move(ratio)](const Tensor& tensor) {
    const int64_t unit = axis == 0 ? traits(tensor.dtype).block_elems : 1;
    if (tensor.shape[axis] < 2 * unit) return SplitState::mirrored();
    return SplitState::split(axis, Partition::by_ratio(tensor.shape[axis], unit, ratio));
  };
}

/// Sets the thread count of each member whose family supports it.
void set_threads(Backend& backend, int threads) {
  backend.synchronize();
  backend.plans().clear();  // cached plans contain plans of the members
  bool told = false;
  for (Backend* member : backend.members()) {
    const auto function = find_function(member->device().reg(), functions::kSetThreads);
    if (function == nullptr) continue;
    function(*member, threads);
    told = true;
  }
  require<InvalidArgument>(told, "no device of {} has a thread count", backend.name());
}

BufferType& split_buffer_type(std::span<Device* const> devices, std::span<const double> shares);

class MetaFamily final : public BackendReg {
 public:
  std::string name() const override { return "META"; }
  std::span<Device* const> devices() const override { return {}; }

  Device& create_device(std::string_view params) override {
    std::map<std::string, std::string> values{{"devices", ""}, {"split", ""}, {"axis", "1"}};
    for (const auto& [key, value] : parse_params(params, ' ')) {
      require<InvalidArgument>(values.count(key) > 0,
                               "META has no parameter \"{}\"; the parameters are devices, split and axis", key);
      values[key] = value;
    }
    require<InvalidArgument>(!values["devices"].empty(), "META needs devices=NAME,NAME,...");
    auto members = Registry::instance().device_list(values["devices"]);
    const auto ratio = values["split"].empty() ? std::vector<double>(members.size(), 1.0)
                                               : parse_ratio(values["split"], members.size());
    const std::string& axis = values["axis"];
    require<InvalidArgument>(axis.size() == 1 && axis[0] >= '0' && axis[0] <= '3', "bad axis \"{}\": give 0, 1, 2 or 3",
                             axis);
    auto device = MetaDevice::create(std::move(members), ratio_callback(axis[0] - '0', ratio));
    const std::lock_guard lock(mutex_);
    made_.push_back(std::move(device));
    return *made_.back();
  }

  void* function(std::string_view name) const override {
    // Creates communicators between meta devices. These are host communicators, which need only backends that run host
    // functions in stream order.
    static collectives::FamilyFactory host{
        collectives::class_sizes(), {collectives::make_host_communicator, collectives::describe_host_communicator}};
    static const FunctionEntry table[] = {
        {functions::kSplitBufferType, split_buffer_type},
        {functions::kSetThreads, set_threads},
        {collectives::kCommunicatorFactory, &host},
    };
    return find_in(table, name);
  }

  /// Returns the meta device that splits axis 1 (rows) of tensors in the ratio `shares`. Equal arguments return the
  /// same device.
  MetaDevice& row_split(std::vector<Device*> devices, std::vector<double> shares) {
    const std::lock_guard lock(mutex_);
    auto& device = row_splits_[{devices, shares}];
    if (device == nullptr) device = MetaDevice::create(std::move(devices), ratio_callback(1, std::move(shares)));
    return *device;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<MetaDevice>> made_;
  std::map<std::pair<std::vector<Device*>, std::vector<double>>, std::unique_ptr<MetaDevice>> row_splits_;
};

BufferType& split_buffer_type(std::span<Device* const> devices, std::span<const double> shares) {
  double sum = 0;
  bool good = shares.size() == devices.size();
  for (const double share : shares) {
    good = good && share >= 0 && share <= kMostShare;
    sum += share;
  }
  require<InvalidArgument>(good && sum > 0,
                           "{} shares for {} devices: give each device a share from 0 to 1e9, at least one above 0",
                           shares.size(), devices.size());
  auto& meta = static_cast<MetaFamily&>(family());
  return meta.row_split({devices.begin(), devices.end()}, {shares.begin(), shares.end()}).buffer_type();
}

}  // namespace

BackendReg& family() {
  Registry& registry = Registry::instance();
  static std::once_flag once;
  std::call_once(once, [&] {
    if (registry.find_family("META") == nullptr) registry.add(std::make_unique<MetaFamily>());
  });
  return *registry.find_family("META");
}

}  // namespace shoal::meta
