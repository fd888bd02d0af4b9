#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/device.h"
#include "devices/plugin_file.h"
#include "graph/external_op.h"

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

/// Splits at commas outside parentheses. For example, "META(CPU0,CPU1),CPU2" contains two names.
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

struct Registry::Family {
  PluginFile file;  ///< closed after the family is destroyed
  std::unique_ptr<BackendReg> reg;
};

struct Registry::Impl {
  std::recursive_mutex changing;
  mutable std::mutex mutex;  ///< guards the lists of families and devices
  std::vector<Family> families;
  std::vector<Device*> extra;  ///< devices from add_device(), which other objects own
};

FamilyUse::FamilyUse(const Device& device) : family_(device.reg()) {
  ++family_.uses_;
}
FamilyUse::FamilyUse(const BufferType& type) : FamilyUse(type.device()) {}
FamilyUse::~FamilyUse() {
  --family_.uses_;
}

std::string_view name_of(DeviceType type) {
  constexpr std::string_view kNames[] = {"CPU", "GPU", "integrated GPU", "accelerator", "META"};
  return kNames[static_cast<size_t>(type)];
}

Device& BackendReg::create_device(std::string_view) {
  fail<InvalidArgument>("family {} has a fixed list of devices: name one of these devices", name());
}

Registry& Registry::instance() {
  // The registry is never destroyed, because static objects may hold backends and buffers of its devices until the
  // process exits.
  static Registry& registry = *new Registry;
  return registry;
}

Registry::Registry() : impl_(std::make_unique<Impl>()) {
  add(cpu::make_family());
}

std::unique_lock<std::recursive_mutex> Registry::change() const {
  return std::unique_lock(impl_->changing);
}

void Registry::add(std::unique_ptr<BackendReg> family) {
  add(Family{{}, std::move(family)});
}

void Registry::add(Family family) {
  const auto changing = change();
  const std::string name = family.reg->name();
  require<InvalidArgument>(find_family(name) == nullptr, "family {} is registered already", name);
  const std::lock_guard lock(impl_->mutex);
  impl_->families.push_back(std::move(family));
}

void Registry::add_device(Device& device) {
  const auto changing = change();
  require<InvalidArgument>(find_device(device.name()) == nullptr, "device {} is registered already", device.name());
  const std::lock_guard lock(impl_->mutex);
  impl_->extra.push_back(&device);
}

std::vector<BackendReg*> Registry::families() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<BackendReg*> families;
  for (const auto& family : impl_->families) families.push_back(family.reg.get());
  return families;
}

BackendReg& Registry::family(size_t index) const {
  const auto all = families();
  require<InvalidArgument>(index < all.size(), "there is no family number {}; the number of families is {}", index,
                           all.size());
  return *all[index];
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

std::vector<Device*> Registry::devices(DeviceType type) const {
  std::vector<Device*> all = devices();
  std::erase_if(all, [type](const Device* device) { return device->type() != type; });
  return all;
}

Device& Registry::device(size_t index) const {
  const auto all = devices();
  require<InvalidArgument>(index < all.size(), "there is no device number {}; the number of devices is {}", index,
                           all.size());
  return *all[index];
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
  const bool is_cpu = name.size() > 3 && same_name(name.substr(0, 3), "CPU");
  fail<InvalidArgument>("there is no device '{}'; there are: {}{}", name, fmt::join(known, ", "),
                        is_cpu ? "; SHOAL_CPU_DEVICES=N divides the cores among N CPU devices" : "");
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
  const auto found = devices(type);
  return found.empty() ? nullptr : found.front();
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
  if (same_name(name, "best")) return best().init(params);
  return device(name).init(params);  // throws if the device does not exist
}

std::unique_ptr<Backend> Registry::init(DeviceType type, std::string_view params) {
  Device* device = first_of(type);
  if (device != nullptr) return device->init(params);
  std::vector<std::string> known;
  for (const Device* other : devices()) known.push_back(fmt::format("{} ({})", other->name(), name_of(other->type())));
  fail<InvalidArgument>("there is no device of type {}; there are: {}", name_of(type), fmt::join(known, ", "));
}

void Registry::check_new(const PluginFile& file) const {
  const BackendReg* other = find_family(file.info().family);
  if (other == nullptr) return;
  const std::string owner = file_of(*other).string();
  fail<InvalidArgument>("the family name {} is already used by {}: {}", file.info().family,
                        owner.empty() ? "a part of the program" : owner,
                        owner.empty() ? "give the family another name" : "unload the loaded plug-in first");
}

BackendReg& Registry::adopt(PluginFile file) {
  const auto changing = change();
  check_new(file);
  Family family{std::move(file), nullptr};
  family.reg = family.file.make_family();
  for (const Device* device : family.reg->devices()) {
    require<InvalidArgument>(find_device(device->name()) == nullptr, "the device name {} is already used",
                             device->name());
  }
  BackendReg& adopted = *family.reg;
  if (family.file.ops() != nullptr) register_ops(*family.file.ops());
  add(std::move(family));
  return adopted;
}

std::filesystem::path Registry::file_of(const BackendReg& family) const {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& entry : impl_->families) {
    if (entry.reg.get() == &family) return entry.file.path();
  }
  return {};
}

void Registry::unload(std::string_view name) {
  const auto changing = change();
  BackendReg* family = find_family(name);
  require<InvalidArgument>(family != nullptr, "there is no family '{}' to unload", name);
  require<InvalidArgument>(!file_of(*family).empty(), "family {} is part of the program and cannot be unloaded",
                           family->name());
  std::unique_lock lock(impl_->mutex);
  const auto extra = impl_->extra;
  lock.unlock();  // devices find their family through the registry, which needs the lock
  for (const Device* device : extra) {
    require<InvalidArgument>(&device->reg() != family,
                             "family {} cannot be unloaded: the registry still refers to its device {} (add_device)",
                             family->name(), device->name());
  }
  lock.lock();
  auto& families = impl_->families;
  const auto found =
      std::find_if(families.begin(), families.end(), [&](const auto& entry) { return entry.reg.get() == family; });
  require<InvalidArgument>(found != families.end(), "family '{}' is unloaded already", name);
  require<InvalidArgument>(family->uses() == 0,
                           "family {} cannot be unloaded: {} objects (backends, buffers, events or meta devices) use "
                           "its devices; destroy these objects first",
                           family->name(), family->uses());
  if (found->file.ops() != nullptr) unregister_ops(found->file.ops()->name);
  const auto gone = std::move(*found);
  families.erase(found);
  lock.unlock();  // the destructor of the family may use the registry
}

}  // namespace shoal
