// PluginFile: an open plug-in, checked. Used by the registry alone. Its messages do not name the file; the registry
// does.
#pragma once

#include <filesystem>
#include <memory>

#include "devices/plugin.h"

namespace shoal {

class PluginFile {
 public:
  /// Of a family that is part of the program.
  PluginFile() = default;
  /// Opens it. Throws InvalidArgument when there is no such file or it is no plug-in, DeviceError when it does not fit
  /// this program.
  explicit PluginFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }  ///< absolute; empty for no plug-in
  const PluginInfo& info() const { return *info_; }
  /// 0: not supported here. Throws DeviceError when the plug-in throws.
  int score() const;
  /// Throws DeviceError when the plug-in throws, or makes something else than it says.
  std::unique_ptr<BackendReg> make_family() const;

 private:
  struct Close {
    void operator()(void* library) const;
  };

  std::filesystem::path path_;
  std::unique_ptr<void, Close> library_;
  const PluginInfo* info_ = nullptr;
};

/// "GIZMO" or "GIZMO (avx2)".
std::string describe(const PluginInfo& info);

}  // namespace shoal
