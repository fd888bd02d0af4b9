// The entry point of a plug-in. A plug-in is a shared object, libshoal-NAME.so, that provides a family of devices. It
// exports one C function, shoal_plugin(). A plug-in is compiled against these headers and is not linked to any library
// of shoal. The program that loads it contains the code of the folders graph and devices, and exports the symbols of
// this code (docs/plugins.md).
//
//   extern "C" const shoal::PluginInfo* shoal_plugin() {
//     static const shoal::PluginInfo info = shoal::plugin_info("GIZMO", "avx2", score, make_family);
//     return &info;
//   }
//
// A change to a class that plug-ins use changes the major version number. A new function that plug-ins may call changes
// the minor version number. A plug-in is compatible if its major number equals the program's major number and its minor
// number does not exceed the program's minor number. The plug-in and the program share C++ classes. So the sizes of
// these classes must also be equal on both sides.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal {

inline constexpr uint32_t kPluginApiMajor = 8;
inline constexpr uint32_t kPluginApiMinor = 0;

/// Plain data that lives as long as the plug-in. The first two members have the same position in every version. If
/// their values do not match the program's values, the program reads no other member.
struct PluginInfo {
  uint32_t api_major;
  uint32_t api_minor;
  uint64_t class_sizes;  ///< class_sizes() as computed by the plug-in's compiler
  const char* family;    ///< BackendReg::name of the family from make_family
  const char* variant;   ///< name of this build of the family, such as "avx2"; "" if there is only one build
  /// Returns a positive score, or 0 if this machine is not supported. The program loads the variant with the highest
  /// score.
  int (*score)();
  /// The program calls this function once when it loads the plug-in. The family is destroyed before the plug-in is
  /// closed.
  std::unique_ptr<BackendReg> (*make_family)();
};

/// Hashes sizes into one number.
constexpr uint64_t mixed_sizes(std::initializer_list<size_t> sizes) {
  uint64_t sum = 14695981039346656037U;
  for (size_t size : sizes) sum = (sum ^ size) * 1099511628211U;
  return sum;
}

/// One number computed from the sizes of the classes that plug-in and program share. The number changes with the
/// standard library, the layout of std::string, debug containers and the version of the headers. collectives/factory.h
/// has a similar function for the classes of collectives.
constexpr uint64_t class_sizes() {
  return mixed_sizes({sizeof(Tensor), sizeof(Graph), sizeof(GraphRange), sizeof(Buffer), sizeof(BufferType),
                      sizeof(Backend), sizeof(GraphPlan), sizeof(Event), sizeof(Device), sizeof(DeviceProps),
                      sizeof(BackendReg), sizeof(std::string), sizeof(std::vector<int>),
                      sizeof(std::function<bool()>)});
}

/// Error text for a plug-in whose class sizes differ from the program's class sizes.
inline constexpr std::string_view kOtherSizes =
    "the class layouts of the plug-in and of this program differ: build both with the same version of shoal, standard "
    "library and library settings (debug containers, string ABI)";

constexpr PluginInfo plugin_info(const char* family, const char* variant, int (*score)(),
                                 std::unique_ptr<BackendReg> (*make_family)()) {
  return {kPluginApiMajor, kPluginApiMinor, class_sizes(), family, variant, score, make_family};
}

}  // namespace shoal

/// The plug-in defines this function.
extern "C" __attribute__((visibility("default"))) const shoal::PluginInfo* shoal_plugin();
