// C functions for families, plug-ins and devices.
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "c/guard.h"
#include "devices/cpu/cpu_device.h"
#include "devices/functions.h"

using namespace shoal;
using namespace shoal::c;

namespace {

Registry& registry() {
  return Registry::instance();
}

/// The path of libshoal.so.
std::filesystem::path own_path() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(&shoal_version), &info) != 0 && info.dli_fname != nullptr;
  return found ? std::filesystem::path(info.dli_fname) : std::filesystem::path();
}

/// Makes the C++ symbols of this library visible to plug-ins. Without this call, a plug-in would not find these symbols
/// if the program has loaded the library with dlopen(RTLD_LOCAL), as interpreters do.
void export_symbols() {
  static const bool done = dlopen(own_path().c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr;
  (void)done;
}

constexpr std::string_view kNoDevice = "there is no device";

}  // namespace

shoal_status shoal_cpu_configure(const char* params) {
  return guard(__func__, [&] {
    registry();  // makes the CPU family
    cpu::configure(text(params, "params"));
  });
}

shoal_status shoal_plugin_load(const char* file) {
  return guard(__func__, [&] {
    export_symbols();
    registry().load(text(file, "file"));
  });
}

shoal_status shoal_plugin_load_from(const char* directory) {
  return guard(__func__, [&] {
    export_symbols();
    registry().load_all_from(text(directory, "directory"));
  });
}

shoal_status shoal_plugin_load_all(void) {
  return guard(__func__, [&] {
    export_symbols();
    registry().load_all();
    const std::filesystem::path directory = own_path().parent_path() / "shoal";
    if (std::filesystem::is_directory(directory)) registry().load_all_from(directory);
  });
}

shoal_status shoal_plugin_unload(const char* family) {
  return guard(__func__, [&] { registry().unload(text(family, "family")); });
}

size_t shoal_family_count(void) {
  return guard<size_t>(__func__, 0, [&] { return registry().family_count(); });
}

const char* shoal_family_name(size_t index) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(registry().family(index).name()); });
}

size_t shoal_device_count(void) {
  return guard<size_t>(__func__, 0, [&] { return registry().device_count(); });
}

shoal_device* shoal_device_get(size_t index) {
  return guard<shoal_device*>(__func__, nullptr, [&] { return handle_of<shoal_device>(&registry().device(index)); });
}

shoal_device* shoal_device_by_name(const char* name) {
  return guard<shoal_device*>(__func__, nullptr,
                              [&] { return handle_of<shoal_device>(&registry().device(text(name, "name"))); });
}

shoal_device* shoal_device_by_type(shoal_device_type type) {
  return guard<shoal_device*>(__func__, nullptr, [&] {
    const auto wanted = enumerator(type, static_cast<DeviceType>(SHOAL_DEVICE_META + 1), "device type");
    const Device* found = registry().first_of(wanted);
    require<InvalidArgument>(found != nullptr, "{} of type {}; shoal_plugin_load_all() may add devices", kNoDevice,
                             name_of(wanted));
    return handle_of<shoal_device>(found);
  });
}

shoal_device* shoal_device_best(void) {
  return guard<shoal_device*>(__func__, nullptr, [&] { return handle_of<shoal_device>(&registry().best()); });
}

const char* shoal_device_name(const shoal_device* device) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(object(device, "device").name()); });
}

shoal_status shoal_device_get_props(const shoal_device* device, shoal_device_props* props) {
  return guard(__func__, [&] {
    const Device& from = object(device, "device");
    const DeviceProps p = from.props();
    shoal_device_props result = SHOAL_DEVICE_PROPS_INIT;
    result.name = lasting(p.name);
    result.description = lasting(p.description);
    result.family = lasting(from.reg().name());
    result.device_id = lasting(p.device_id);
    result.type = static_cast<shoal_device_type>(p.type);
    result.async = p.caps.async;
    result.host_buffer = p.caps.host_buffer;
    result.buffer_from_host_ptr = p.caps.buffer_from_host_ptr;
    result.events = p.caps.events;
    result.memory_free = p.memory.free;
    result.memory_total = p.memory.total;
    write(props, result, "props");
  });
}

shoal_blob* shoal_device_features_text(const shoal_device* device) {
  return guard<shoal_blob*>(__func__, nullptr, [&] {
    std::string text;
    if (const auto features = find_function(object(device, "device").reg(), functions::kFeatures)) {
      for (const auto& feature : features()) text += fmt::format("{} = {}\n", feature.name, feature.value);
    }
    return blob_of(text);
  });
}

bool shoal_device_supports_op(const shoal_device* device, const shoal_tensor* node) {
  return guard(__func__, false, [&] { return object(device, "device").supports_op(object(node, "node")); });
}

bool shoal_device_supports_buffer_type(const shoal_device* device, const shoal_buffer_type* type) {
  return guard(__func__, false, [&] { return object(device, "device").supports_buffer_type(object(type, "type")); });
}

bool shoal_device_offload_op(const shoal_device* device, const shoal_tensor* node) {
  return guard(__func__, false, [&] { return object(device, "device").offload_op(object(node, "node")); });
}
