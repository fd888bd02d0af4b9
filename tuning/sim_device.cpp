#include "tuning/sim_device.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "devices/offload.h"

namespace shoal::sim {
namespace {

class SimBuffer final : public Buffer {
 public:
  SimBuffer(SimBufferType& type, SimDevice& device, size_t size)
      : Buffer(type, size), device_(device), base_(device.take(size)) {}
  ~SimBuffer() override { device_.give_back(size()); }
  std::byte* base() const override { return base_; }
  void clear(uint8_t) override { refuse(); }

 protected:
  void do_set(Tensor&, const void*, size_t, size_t) override { refuse(); }
  void do_get(const Tensor&, void*, size_t, size_t) override { refuse(); }
  void do_memset(Tensor&, uint8_t, size_t, size_t) override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    fail<DeviceError>("{} is simulated and has no memory to read or write; use shoal simulate", device_.name());
  }

  SimDevice& device_;
  std::byte* base_;
};

}  // namespace

std::string SimBufferType::name() const {
  return device_.name();
}
Device& SimBufferType::device() const {
  return device_;
}
size_t SimBufferType::alignment() const {
  return device_.type() == DeviceType::kCpu ? 64 : 256;
}
std::unique_ptr<Buffer> SimBufferType::allocate(size_t size) {
  return std::make_unique<SimBuffer>(*this, device_, size);
}

bool SimBufferType::is_host() const {
  return device_.type() == DeviceType::kCpu;
}

bool SimDevice::offload_op(const Tensor& node) const {
  return spec_.type == DeviceType::kGpu && is_worth_bringing(node);
}

DeviceMemory SimDevice::memory() const {
  const std::lock_guard lock(mutex_);
  return {spec_.memory - used_, spec_.memory};
}

DeviceProps SimDevice::props() const {
  return {name(), description(), type(), memory(), "", {}};
}

std::unique_ptr<Backend> SimDevice::init(std::string_view) {
  fail<DeviceError>("{} is simulated and cannot run anything; use shoal simulate", name());
}

std::byte* SimDevice::take(size_t size) {
  const std::lock_guard lock(mutex_);
  const size_t free = spec_.memory - used_;
  if (size > free) {
    fail<OutOfMemory>("[{}] out of memory: {} asked for, {} free: use more devices, or give this one a smaller share",
                      name(), format_bytes(size), format_bytes(free));
  }
  used_ += size;
  const size_t alignment = type_.alignment(), begin = next_address_;
  next_address_ += (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  return reinterpret_cast<std::byte*>(begin);
}

void SimDevice::give_back(size_t size) {
  const std::lock_guard lock(mutex_);
  used_ -= size;
}

std::span<Device* const> SimFamily::devices() const {
  const std::lock_guard lock(mutex_);
  return lists_.back();
}

Device& SimFamily::provide(const SimSpec& spec) {
  require<InvalidArgument>(!spec.name.empty(), "[SIM] a simulated device needs a name");
  require<InvalidArgument>(spec.memory > 0, "[SIM] {} needs memory", spec.name);
  const std::lock_guard lock(mutex_);
  std::vector<Device*> list = lists_.back();
  const auto same = [&](const Device* device) { return device->name() == spec.name; };
  const auto known = std::find_if(list.begin(), list.end(), same);
  if (known != list.end() && static_cast<SimDevice&>(**known).spec() == spec) return **known;
  if (known != list.end()) list.erase(known);
  owned_.push_back(std::make_unique<SimDevice>(*this, spec));
  list.push_back(owned_.back().get());
  lists_.push_back(std::move(list));
  return *owned_.back();
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
