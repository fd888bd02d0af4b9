#include "devices/plugin_file.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace shoal {
namespace {

constexpr const char* kEntry = "shoal_plugin";
constexpr const char* kOpsEntry = "shoal_plugin_ops";

[[noreturn]] void fail_open(const std::string& reason) {
  if (reason.find("undefined symbol") != std::string::npos) {
    fail<DeviceError>(
        "the plug-in needs a symbol that this program does not export ({}): build the plug-in against this program's "
        "version of shoal, and link programs that load plug-ins with shoal_enable_plugins()",
        reason);
  }
  fail<DeviceError>("the file is not a shared object for this machine, or a required library is missing ({})", reason);
}

void check_version(const PluginInfo& info) {
  if (info.api_major == kPluginApiMajor && info.api_minor <= kPluginApiMinor) return;
  fail<DeviceError>("the plug-in is for API {}.{}, but this program has API {}.{}: {}", info.api_major, info.api_minor,
                    kPluginApiMajor, kPluginApiMinor,
                    info.api_major >= kPluginApiMajor ? "use a newer shoal, or build the plug-in for this program's API"
                                                      : "build the plug-in against this program's version of shoal");
}

void check_info(const PluginInfo* info) {
  require<DeviceError>(info != nullptr, "the plug-in's {}() returns nullptr", kEntry);
  check_version(*info);
  require<DeviceError>(info->class_sizes == class_sizes(), "{}", kOtherSizes);
  require<DeviceError>(info->family != nullptr && *info->family != '\0' && info->variant != nullptr &&
                           info->score != nullptr && info->make_family != nullptr,
                       "the plug-in's {}() does not set the family, the variant or a function", kEntry);
}

void check_ops(const shoal_ops* ops, const PluginInfo* info) {
  require<DeviceError>(ops != nullptr, "the plug-in's {}() returns nullptr", kOpsEntry);
  require<DeviceError>(
      ops->version == SHOAL_OPS_VERSION && ops->size >= sizeof(shoal_ops),
      "the plug-in's ops are for version {} of graph/external_op_c.h, but this program has version {}: "
      "build the plug-in against this program's version of shoal",
      ops->version, +SHOAL_OPS_VERSION);
  require<DeviceError>(ops->name != nullptr && *ops->name != '\0' && (ops->ops != nullptr || ops->op_count == 0),
                       "the plug-in's {}() does not set the name or the ops", kOpsEntry);
  require<DeviceError>(info == nullptr || std::string_view(info->family) == ops->name,
                       "the ops of the plug-in have the name {}, not the name of its family, {}", ops->name,
                       info == nullptr ? "" : info->family);
}

/// The family of a plug-in that has only ops.
class OpsFamily final : public BackendReg {
 public:
  explicit OpsFamily(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::span<Device* const> devices() const override { return {}; }

 private:
  std::string name_;
};

/// Calls a function of the plug-in. An exception of the plug-in must be destroyed before the plug-in is closed. So this
/// function throws a DeviceError with the text of the exception.
template <class F>
auto call(const char* what, F&& function) {
  std::string problem;
  try {
    return function();
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "an exception without a message";
  }
  fail<DeviceError>("the plug-in's {} failed: {}", what, problem);
}

}  // namespace

PluginFile::PluginFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  require<InvalidArgument>(std::filesystem::exists(path_, ignored), "there is no such file");
  // Opening a pipe would block until its other end is opened.
  require<DeviceError>(!std::filesystem::is_fifo(path_, ignored), "the file is a pipe, not a shared object");
  library_.reset(dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library_ == nullptr) fail_open(dlerror());
  const auto entry = reinterpret_cast<decltype(&shoal_plugin)>(dlsym(library_.get(), kEntry));
  const auto ops = reinterpret_cast<shoal_plugin_ops_function>(dlsym(library_.get(), kOpsEntry));
  require<DeviceError>(entry != nullptr || ops != nullptr,
                       "the file has no function {}() or {}() and is not a shoal plug-in", kEntry, kOpsEntry);
  if (entry != nullptr) check_info(info_ = call(kEntry, entry));
  if (ops == nullptr) return;
  check_ops(ops_ = call(kOpsEntry, ops), info_);
  if (info_ != nullptr) return;
  own_info_ = std::make_unique<PluginInfo>(plugin_info(
      ops_->name, "", [] { return 1; }, nullptr));
  info_ = own_info_.get();
}

int PluginFile::score() const {
  return call("score()", info_->score);
}

std::unique_ptr<BackendReg> PluginFile::make_family() const {
  if (own_info_ != nullptr) return std::make_unique<OpsFamily>(ops_->name);
  return call("make_family()", [&] {
    auto family = info_->make_family();
    require<DeviceError>(family != nullptr, "the plug-in creates no device family");
    require<DeviceError>(family->name() == info_->family, "family name is {}, not {}", family->name(), info_->family);
    family->devices();  // called here, so that its exceptions become a DeviceError
    return family;
  });
}

void PluginFile::Close::operator()(void* library) const {
  dlclose(library);
}

std::string describe(const PluginInfo& info) {
  return *info.variant == '\0' ? info.family : fmt::format("{} ({})", info.family, info.variant);
}

}  // namespace shoal
