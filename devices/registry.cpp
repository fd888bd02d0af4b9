#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "devices/cpu/cpu_device.h"
#include "devices/device.h"
#include "devices/null/null_device.h"
#include "graph/error.h"

namespace shoal {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

Device* find_in(std::span<Device* const> devices, std::string_view name) {
  const auto found =
      std::find_if(devices.begin(), devices.end(), [&](Device* d) { return same_name(d->name(), name); });
  return found == devices.end() ? nullptr : *found;
}

/// Splits at commas outside parentheses: "META(CPU0,CPU1),CPU2" is two names.
std::vector<std::string_view> split_names(std::string_view text) {
  std::vector<std::string_view> names;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    names.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return names;
}

}  // namespace

struct Registry::Impl {
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<BackendReg>> families;
  std::vector<Device*> extra;  ///< add_device(): owned elsewhere
};

std::string_view name_of(DeviceType type) {
  constexpr std::string_view kNames[] = {"CPU", "GPU", "integrated GPU", "accelerator", "META"};
  return kNames[static_cast<size_t>(type)];
}

Device& BackendReg::create_device(std::string_view) {
  fail<InvalidArgument>("family {} has a fixed list of devices: name one of them", name());
}

Registry& Registry::instance() {
  // Never destroyed: objects of static duration may hold backends and buffers of its devices until the very end.
  static Registry& registry = *new Registry;
  return registry;
}

Registry::Registry() : impl_(std::make_unique<Impl>()) {
  add(cpu::make_family());
  add(null::make_family());
}

void Registry::add(std::unique_ptr<BackendReg> family) {
  require<InvalidArgument>(find_family(family->name()) == nullptr, "family {} is registered already", family->name());
  const std::lock_guard lock(impl_->mutex);
  impl_->families.push_back(std::move(family));
}

void Registry::add_device(Device& device) {
  require<InvalidArgument>(find_device(device.name()) == nullptr, "device {} is registered already", device.name());
  const std::lock_guard lock(impl_->mutex);
  impl_->extra.push_back(&device);
}

std::vector<BackendReg*> Registry::families() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<BackendReg*> families;
  for (const auto& family : impl_->families) families.push_back(family.get());
  return families;
}

std::vector<Device*> Registry::devices() const {
  std::vector<Device*> devices;
  for (BackendReg* family : families()) {
    if (!family->is_listed()) continue;
    devices.insert(devices.end(), family->devices().begin(), family->devices().end());
  }
  const std::lock_guard lock(impl_->mutex);
  devices.insert(devices.end(), impl_->extra.begin(), impl_->extra.end());
  return devices;
}

BackendReg* Registry::find_family(std::string_view name) const {
  for (BackendReg* family : families()) {
    if (same_name(family->name(), name)) return family;
  }
  return nullptr;
}

Device* Registry::find_device(std::string_view name) const {
  if (Device* device = find_in(devices(), name)) return device;
  for (BackendReg* family : families()) {
    if (Device* device = find_in(family->devices(), name)) return device;
  }
  return nullptr;
}

Device& Registry::device(std::string_view name) const {
  Device* found = find_device(name);
  if (found != nullptr) return *found;
  std::vector<std::string> known;
  for (Device* device : devices()) known.push_back(device->name());
  fail<InvalidArgument>("there is no device '{}'; there are: {}", name, fmt::join(known, ", "));
}

std::vector<Device*> Registry::device_list(std::string_view comma_separated) const {
  std::vector<Device*> list;
  for (std::string_view name : split_names(comma_separated)) {
    Device& found = device(name);
    require<InvalidArgument>(std::find(list.begin(), list.end(), &found) == list.end(),
                             "device {} is named twice in '{}'", found.name(), comma_separated);
    list.push_back(&found);
  }
  return list;
}

Device* Registry::first_of(DeviceType type) const {
  for (Device* device : devices()) {
    if (device->type() == type) return device;
  }
  return nullptr;
}

Device& Registry::best() const {
  for (DeviceType type : {DeviceType::kGpu, DeviceType::kCpu}) {
    if (Device* device = first_of(type)) return *device;
  }
  fail<DeviceError>("no device is registered");
}

std::unique_ptr<Backend> Registry::init(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const std::string_view params = colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1);
  if (Device* device = find_device(name)) return device->init(params);
  if (BackendReg* family = find_family(name)) return family->create_device(params).init();
  return device(name).init(params);  // throws, listing what exists
}

}  // namespace shoal
