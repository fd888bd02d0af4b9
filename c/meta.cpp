// C functions for meta devices.
#include "meta/meta.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <set>

#include "c/guard.h"

using namespace shoal;
using namespace shoal::c;

static_assert(static_cast<int>(meta::SplitAxis::kPartial) == SHOAL_AXIS_PARTIAL);

namespace {

/// The meta devices of shoal_meta_device_new(). shoal_meta_device_free() destroys only these devices.
class OwnedDevices {
 public:
  Device* add(std::unique_ptr<meta::MetaDevice> device) {
    const std::lock_guard lock(mutex_);
    return devices_.insert(std::move(device)).first->get();
  }
  void destroy(const Device& device) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(devices_, [&](const auto& owned) { return owned.get() == &device; });
    require<InvalidArgument>(found != devices_.end(),
                             "shoal_meta_device_new() has not created this device, or the device was freed already");
    devices_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::set<std::unique_ptr<meta::MetaDevice>> devices_;
};

OwnedDevices& owned() {
  static auto& devices = *new OwnedDevices;
  return devices;
}

const meta::MetaDevice& as_meta_device(const Device& device) {
  const auto* meta = dynamic_cast<const meta::MetaDevice*>(&device);
  require<InvalidArgument>(meta != nullptr, "{} is not a meta device", device.name());
  return *meta;
}

meta::Owners owners_of(uint64_t mask) {
  meta::Owners owners;
  for (int device = 0; device < 64; ++device) {
    if ((mask >> device & 1) != 0) owners.push_back(device);
  }
  return owners;
}

/// The split state that a callback has stored, without the checks of meta::to_layout().
meta::SplitState state_of(const shoal_split_state& state) {
  const auto axis = enumerator(state.axis, static_cast<meta::SplitAxis>(SHOAL_AXIS_PARTIAL + 1), "axis");
  require<InvalidArgument>(state.segments <= SHOAL_MAX_SEGMENTS && state.runs <= SHOAL_MAX_RUNS,
                           "there are {} segments and {} runs; the limits are {} and {}", state.segments, state.runs,
                           SHOAL_MAX_SEGMENTS, SHOAL_MAX_RUNS);
  meta::SplitState result{axis, {}, {}};
  if (state.segments == 0 && state.runs == 0 && state.axis <= SHOAL_AXIS_3) {
    result.ratio.emplace(state.ratio, state.ratio + state.devices);
  }
  for (uint32_t s = 0; s < state.segments; ++s) {
    const int64_t* lengths = state.lengths + size_t{s} * state.devices;
    result.segments.emplace_back(lengths, lengths + state.devices);
  }
  if (state.runs > 0) {
    std::vector<meta::Run> runs;
    for (const shoal_run& run : std::span(state.run, state.runs)) runs.push_back({run.length, owners_of(run.owners)});
    result.partition.emplace(static_cast<int>(state.devices), std::move(runs));
  }
  return result;
}

/// Calls a C function that fills a split state, and returns the state. `call` receives the handle of the tensor.
template <class Call>
meta::SplitState filled_by(const Tensor& tensor, size_t devices, const Call& call) {
  std::vector<int64_t> lengths(SHOAL_MAX_SEGMENTS * devices);
  std::vector<shoal_run> runs(SHOAL_MAX_RUNS);
  std::vector<double> ratio(devices, 1.0);
  shoal_split_state state{};
  state.size = sizeof state;
  state.axis = SHOAL_AXIS_MIRRORED;
  state.devices = static_cast<uint32_t>(devices);
  state.lengths = lengths.data();
  state.run = runs.data();
  state.ratio = ratio.data();
  const shoal_status status = call(handle_of<shoal_tensor>(&tensor), &state);
  if (status != SHOAL_OK) {
    throw Failure(status, fmt::format("the split-state callback returned status {} ({}) for {}", status,
                                      shoal_status_name(status), describe(tensor)));
  }
  require<InvalidArgument>(state.lengths == lengths.data() && state.run == runs.data() && state.ratio == ratio.data() &&
                               state.devices == devices,
                           "the split-state callback replaced an array or the number of devices for {}; write into "
                           "the arrays",
                           describe(tensor));
  try {
    return state_of(state);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("split state of {}: {}", tensor.name, error.what());
  }
}

meta::SplitStateCallback callback_of(shoal_split_callback callback, void* user, size_t devices) {
  return [=](const Tensor& tensor) {
    return filled_by(tensor, devices, [&](auto* handle, auto* state) { return callback(handle, state, user); });
  };
}

meta::ConstraintCallback callback_of(shoal_constraint_callback callback, void* user, size_t devices) {
  if (callback == nullptr) return {};
  return [=](const Tensor& tensor) -> std::optional<meta::Constraint> {
    shoal_constraint kind = SHOAL_CONSTRAINT_NONE;
    meta::SplitState state =
        filled_by(tensor, devices, [&](auto* handle, auto* to) { return callback(handle, to, &kind, user); });
    enumerator(kind, SHOAL_CONSTRAINT_HINT + 1, "constraint");
    if (kind == SHOAL_CONSTRAINT_NONE) return std::nullopt;
    return kind == SHOAL_CONSTRAINT_HINT ? meta::Constraint::hint(std::move(state))
                                         : meta::Constraint::requirement(std::move(state));
  };
}

meta::MetaOptions options_of(const shoal_meta_options* given, size_t devices) {
  const shoal_meta_options options = read(given, SHOAL_META_OPTIONS_INIT, "options");
  meta::MetaOptions result;
  if (options.member_params != nullptr) result.member_params.assign(devices, options.member_params);
  require<InvalidArgument>(options.comm_timeout >= 0 && options.comm_timeout < 1e6,
                           "comm_timeout is {}; pass a number of seconds, or 0 for the default", options.comm_timeout);
  if (options.comm_timeout > 0) {
    result.comm_timeout = std::chrono::milliseconds(std::max<int64_t>(1, std::llround(options.comm_timeout * 1000)));
  }
  if (options.communicator != nullptr) result.comm = options.communicator;
  result.constraints = callback_of(options.constraints, options.constraints_user, devices);
  return result;
}

}  // namespace

shoal_device* shoal_meta_device_new(shoal_device* const* devices, size_t device_count, shoal_split_callback callback,
                                    void* user, const shoal_meta_options* options) {
  return guard<shoal_device*>(__func__, nullptr, [&] {
    checked(callback, "callback");
    return handle_of<shoal_device>(owned().add(meta::MetaDevice::create(objects(devices, device_count, "devices"),
                                                                        callback_of(callback, user, device_count),
                                                                        options_of(options, device_count))));
  });
}

shoal_status shoal_meta_device_free(shoal_device* device) {
  return guard(__func__, [&] {
    if (device != nullptr) owned().destroy(object(device, "device"));
  });
}

size_t shoal_meta_device_member_count(const shoal_device* device) {
  return guard<size_t>(__func__, 0, [&] { return as_meta_device(object(device, "device")).members().size(); });
}

shoal_device* shoal_meta_device_member(const shoal_device* device, size_t rank) {
  return guard<shoal_device*>(__func__, nullptr, [&] {
    const auto members = as_meta_device(object(device, "device")).members();
    require<InvalidArgument>(rank < members.size(), "there is no rank {}; there are {} devices", rank, members.size());
    return handle_of<shoal_device>(members[rank]);
  });
}

shoal_tensor* shoal_tensor_shard(const shoal_tensor* tensor, size_t rank) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    const Tensor& whole = object(tensor, "tensor");
    require<InvalidArgument>(whole.buffer != nullptr, "{} has no memory", describe(whole));
    const size_t ranks = as_meta_device(whole.buffer->type().device()).members().size();
    require<InvalidArgument>(rank < ranks, "there is no rank {}; there are {} devices", rank, ranks);
    return handle_of<shoal_tensor>(&meta::shard(whole, static_cast<int>(rank)));
  });
}

shoal_blob* shoal_tensor_layout_text(const shoal_tensor* tensor) {
  return guard<shoal_blob*>(__func__, nullptr,
                            [&] { return blob_of(meta::layout_of(object(tensor, "tensor")).to_string()); });
}

shoal_blob* shoal_plan_text(const shoal_plan* plan) {
  return guard<shoal_blob*>(__func__, nullptr,
                            [&] { return blob_of(meta::to_string(meta::plan_of(object(plan, "plan")))); });
}

shoal_blob* shoal_plan_json_text(const shoal_plan* plan) {
  return guard<shoal_blob*>(__func__, nullptr,
                            [&] { return blob_of(meta::to_json(meta::plan_of(object(plan, "plan")))); });
}
