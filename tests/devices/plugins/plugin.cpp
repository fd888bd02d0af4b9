// A plug-in with one family and one device. The device is a NULL device with another name. Macros select special
// properties or defects.
#include "devices/plugin.h"
#include "base/error.h"
#include "tests/support/null/null_device.h"
#ifdef FACTORY_SIZES
#include "collectives/factory.h"
#endif

#ifndef FAMILY
#define FAMILY "GOOD"
#endif
#ifndef NAME
#define NAME FAMILY
#endif
#ifndef DEVICE
#define DEVICE "GOOD0"
#endif
#ifndef VARIANT
#define VARIANT ""
#endif
#ifndef SCORE
#define SCORE 1
#endif
#ifndef SCORE_FUNCTION
#define SCORE_FUNCTION [] { return SCORE; }
#endif
#ifndef MAJOR
#define MAJOR 0
#endif
#ifndef MINOR
#define MINOR 0
#endif
#ifndef SIZES
#define SIZES 0
#endif

namespace {

class Family final : public shoal::BackendReg {
 public:
  std::string name() const override { return NAME; }
  std::span<shoal::Device* const> devices() const override { return devices_; }
#ifdef FACTORY_SIZES
  void* function(std::string_view name) const override {
    static shoal::collectives::FamilyFactory factory{
        shoal::collectives::class_sizes() + FACTORY_SIZES,
        [](std::span<shoal::Backend* const>, const shoal::collectives::Options&) {
          return std::unique_ptr<shoal::collectives::Communicator>();
        }};
    return name == shoal::functions::kCommunicatorFactory ? &factory : nullptr;
  }
#endif

 private:
  shoal::null::NullDevice device_{*this, DEVICE, {}};
  std::vector<shoal::Device*> devices_{&device_};
};

#ifdef UNDEFINED
}  // namespace
namespace shoal {
int function_of_another_version();
}
namespace {
const int kNumber = shoal::function_of_another_version();
#endif

std::unique_ptr<shoal::BackendReg> make_family() {
#ifdef THROWS
  shoal::fail<shoal::DeviceError>("the driver does not answer");
#endif
  return std::make_unique<Family>();
}

shoal::PluginInfo make_info() {
  shoal::PluginInfo info = shoal::plugin_info(FAMILY, VARIANT, SCORE_FUNCTION, make_family);
  info.api_major += MAJOR;
  info.api_minor += MINOR;
  info.class_sizes += SIZES;
#ifdef UNDEFINED
  info.api_minor += kNumber;
#endif
  return info;
}

}  // namespace

#ifdef NO_ENTRY
extern "C" __attribute__((visibility("default"))) const shoal::PluginInfo* shoal_plug() {
#else
extern "C" const shoal::PluginInfo* shoal_plugin() {
#endif
  static const shoal::PluginInfo info = make_info();
  return &info;
}
