#include "tuning/sim_device.h"

#include <algorithm>

#include "base/error.h"
#include "devices/offload.h"

namespace shoal::sim {
namespace {

/// Simulated GPUs have the alignment of CUDA devices. Other simulated devices have the alignment of CPU devices, and
/// their memory counts as host memory.
class SimBufferType final : public BufferType {
 public:
  explicit SimBufferType(Device& device) : device_(device) {}
  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  size_t alignment() const override { return is_host() ? 64 : 256; }
  bool is_host() const override { return device_.type() == DeviceType::kCpu; }
  std::unique_ptr<Buffer> allocate(size_t) override {
    fail<DeviceError>("{} is simulated and has no memory to read or write; use shoal simulate", name());
  }

 private:
  Device& device_;
};

class SimDevice final : public Device {
 public:
  SimDevice(BackendReg& reg, SimSpec spec) : reg_(reg), spec_(std::move(spec)) {}

  std::string name() const override { return spec_.name; }
  std::string description() const override { return spec_.description; }
  DeviceType type() const override { return spec_.type; }
  DeviceMemory memory() const override { return {spec_.memory, spec_.memory}; }
  DeviceProps props() const override { return {name(), description(), type(), memory(), "", {}}; }
  BackendReg& reg() const override { return reg_; }
  std::unique_ptr<Backend> init(std::string_view) override {
    fail<DeviceError>("{} is simulated and cannot run anything; use shoal simulate", name());
  }
  BufferType& buffer_type() override { return type_; }
  bool supports_op(const Tensor&) const override { return true; }
  /// Simulated GPUs return the same result as CUDA devices.
  bool offload_op(const Tensor& node) const override { return type() == DeviceType::kGpu && is_worth_streaming(node); }

 private:
  BackendReg& reg_;
  SimSpec spec_;
  SimBufferType type_{*this};
};

}  // namespace

std::span<Device* const> SimFamily::devices() const {
  const std::lock_guard lock(mutex_);
  return lists_.back();
}

Device& SimFamily::provide(const SimSpec& spec) {
  require<InvalidArgument>(!spec.name.empty(), "[SIM] a simulated device needs a name");
  require<InvalidArgument>(spec.memory > 0, "[SIM] {} needs more than 0 bytes of memory", spec.name);
  const std::lock_guard lock(mutex_);
  std::vector<Device*> list = lists_.back();
  for (const auto& [known, device] : owned_) {
    if (known == spec && std::find(list.begin(), list.end(), device.get()) != list.end()) return *device;
  }
  std::erase_if(list, [&](const Device* device) { return device->name() == spec.name; });
  list.push_back(owned_.emplace_back(spec, std::make_unique<SimDevice>(*this, spec)).second.get());
  lists_.push_back(std::move(list));
  return *lists_.back().back();
}

SimFamily& family() {
  static SimFamily& registered = []() -> SimFamily& {
    auto made = std::make_unique<SimFamily>();
    SimFamily& family = *made;
    Registry::instance().add(std::move(made));
    return family;
  }();
  return registered;
}

}  // namespace shoal::sim
