// PluginFile: an open plug-in that has been checked. Only the registry uses it. Its messages omit the file's name; the
// registry adds it.
#pragma once

#include <filesystem>
#include <memory>

#include "devices/plugin.h"

namespace shoal {

class PluginFile {
 public:
  /// For a family that is part of the program.
  PluginFile() = default;
  /// Opens and checks the file. Throws InvalidArgument if it does not exist or is not a plug-in, DeviceError if it does
  /// not match this program.
  explicit PluginFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }  ///< absolute; empty if there is no plug-in
  const PluginInfo& info() const { return *info_; }
  /// 0 if this machine is not supported. Throws DeviceError if the plug-in throws.
  int score() const;
  /// Throws DeviceError if the plug-in throws or makes another family than it declares.
  std::unique_ptr<BackendReg> make_family() const;

 private:
  struct Close {
    void operator()(void* library) const;
  };

  std::filesystem::path path_;
  std::unique_ptr<void, Close> library_;
  const PluginInfo* info_ = nullptr;
};

/// Returns "GIZMO" or "GIZMO (avx2)".
std::string describe(const PluginInfo& info);

}  // namespace shoal
