// PluginFile is an open plug-in that has been checked. Only the registry uses this class. Messages of PluginFile omit
// the file's name, which the registry adds.
#pragma once

#include <filesystem>
#include <memory>

#include "devices/plugin.h"
#include "graph/external_op_c.h"

namespace shoal {

class PluginFile {
 public:
  /// Represents a family that is built into the program.
  PluginFile() = default;
  /// Opens and checks the file. Throws InvalidArgument if the file does not exist. Throws DeviceError if the file is
  /// not a plug-in or does not match this program.
  explicit PluginFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }  ///< absolute; empty for a built-in family
  /// For a plug-in without devices, `family` is the name of its ops (shoal_ops::name).
  const PluginInfo& info() const { return *info_; }
  /// The external ops of the plug-in; nullptr if it has none.
  const shoal_ops* ops() const { return ops_; }
  /// Returns the plug-in's score, which is 0 if this machine is not supported. Throws DeviceError if the plug-in
  /// throws.
  int score() const;
  /// Throws DeviceError if the plug-in throws, or if the family's name differs from the name that the plug-in declares.
  /// For a plug-in without devices, returns a family without devices.
  std::unique_ptr<BackendReg> make_family() const;

 private:
  struct Close {
    void operator()(void* library) const;
  };

  std::filesystem::path path_;
  std::unique_ptr<void, Close> library_;
  const PluginInfo* info_ = nullptr;
  const shoal_ops* ops_ = nullptr;
  std::unique_ptr<PluginInfo> own_info_;  ///< `info_` of a plug-in without devices
};

/// Returns a text such as "GIZMO" or "GIZMO (avx2)".
std::string describe(const PluginInfo& info);

}  // namespace shoal
