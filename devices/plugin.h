// What a plug-in tells of itself. A plug-in is a shared object, libshoal-NAME.so, that brings a family of devices; it
// exports one C function, shoal_plugin(). It is compiled against these headers and linked to no library of shoal: the
// program that loads it has graph and devices whole and exports them (docs/plugins.md).
//
//   extern "C" const shoal::PluginInfo* shoal_plugin() {
//     static const shoal::PluginInfo info = shoal::plugin_info("GIZMO", "avx2", score, make_family);
//     return &info;
//   }
//
// Versions. The major number changes when a class that plug-ins see changes, the minor one when something is added that
// a plug-in may call. A plug-in of the program's major number and of its minor number or an earlier one is compatible.
// Because the classes are C++, the sizes that its compiler gave them must be the program's as well.
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

/// Plain data that lives as long as the plug-in. The first two members stay where they are in every version, and
/// nothing else is read when they do not fit.
struct PluginInfo {
  uint32_t api_major;
  uint32_t api_minor;
  uint64_t class_sizes;  ///< class_sizes() of the plug-in's compiler
  const char* family;    ///< BackendReg::name of what make_family makes
  const char* variant;   ///< which of several builds of one family, such as "avx2"; "" when there is only one
  /// 0: not supported on this machine. Of several variants the one with the highest score is loaded.
  int (*score)();
  /// Called once when the plug-in is loaded; destroyed before it is closed.
  std::unique_ptr<BackendReg> (*make_family)();
};

/// Sizes as one number.
constexpr uint64_t mixed_sizes(std::initializer_list<size_t> sizes) {
  uint64_t sum = 14695981039346656037U;
  for (size_t size : sizes) sum = (sum ^ size) * 1099511628211U;
  return sum;
}

/// Sizes of the classes that both sides use, as one number: it differs for another standard library, another layout of
/// std::string, debug containers, or headers of another version. Those of collectives: collectives/factory.h.
constexpr uint64_t class_sizes() {
  return mixed_sizes({sizeof(Tensor), sizeof(Graph), sizeof(GraphRange), sizeof(Buffer), sizeof(BufferType),
                      sizeof(Backend), sizeof(GraphPlan), sizeof(Event), sizeof(Device), sizeof(DeviceProps),
                      sizeof(BackendReg), sizeof(std::string), sizeof(std::vector<int>),
                      sizeof(std::function<bool()>)});
}

/// What is said of a plug-in whose sizes are others.
inline constexpr std::string_view kOtherSizes =
    "its compiler laid out the classes of shoal in another way than this program's: build both from the same version "
    "of "
    "shoal, with the same standard library and the same settings of it (debug containers, old strings)";

constexpr PluginInfo plugin_info(const char* family, const char* variant, int (*score)(),
                                 std::unique_ptr<BackendReg> (*make_family)()) {
  return {kPluginApiMajor, kPluginApiMinor, class_sizes(), family, variant, score, make_family};
}

}  // namespace shoal

/// What a plug-in defines.
extern "C" __attribute__((visibility("default"))) const shoal::PluginInfo* shoal_plugin();
