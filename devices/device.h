// Device, family of devices (BackendReg) and the registry of all of them. Families are singletons created at
// first use; devices live as long as their family. Everything here is thread-safe unless said otherwise.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/backend.h"

namespace shoal {

class BackendReg;

enum class DeviceType : uint8_t { kCpu, kGpu, kIntegratedGpu, kAccelerator, kMeta };
std::string_view name_of(DeviceType type);

struct DeviceMemory {
  size_t free = 0;
  size_t total = 0;
};

struct DeviceCaps {
  bool async = false;
  bool host_buffer = false;
  bool buffer_from_host_ptr = false;
  bool events = false;
  std::vector<std::string> peers;  ///< names of devices that can read this one's memory directly
};

struct DeviceProps {
  std::string name;         ///< "CPU0"
  std::string description;  ///< "Intel(R) Xeon(R) ..., 8 cores, node 0"
  DeviceType type = DeviceType::kCpu;
  DeviceMemory memory;    ///< live figures
  std::string device_id;  ///< PCI "domain:bus:device.function", "" when there is none
  DeviceCaps caps;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual DeviceType type() const = 0;
  virtual DeviceMemory memory() const = 0;
  virtual DeviceProps props() const = 0;
  virtual BackendReg& reg() const = 0;

  /// A new stream of work. params: "key=value,key=value" ("threads=4"); an unknown key or a bad value throws
  /// InvalidArgument that lists the known ones.
  virtual std::unique_ptr<Backend> init(std::string_view params = {}) = 0;

  virtual BufferType& buffer_type() = 0;
  /// For weights, in the layout that this device's kernels read fastest. Its bytes are set and got like those of any
  /// other.
  virtual BufferType& weights_type() { return buffer_type(); }
  /// Pinned host memory that this device copies to and from quickly; nullptr when there is none.
  virtual BufferType* host_buffer_type() { return nullptr; }
  /// Wraps memory of the host without a copy; nullptr when not supported. The memory must outlive it.
  virtual std::unique_ptr<Buffer> buffer_from_host_ptr(void* data, size_t size) {
    (void)data, (void)size;
    return nullptr;
  }

  /// Can this device run the node (its dtypes, shapes and parameters), wherever its tensors are now?
  virtual bool supports_op(const Tensor& node) const = 0;
  virtual bool supports_buffer_type(const BufferType& type) const { return &type.device() == this; }
  /// Worth running here although the weights are elsewhere (large batches).
  virtual bool offload_op(const Tensor& node) const {
    (void)node;
    return false;
  }
  /// Scratch bytes the node needs while it runs here (planned with the graph's memory).
  virtual size_t workspace_size(const Tensor& node) const {
    (void)node;
    return 0;
  }
  /// nullptr when events are not supported.
  virtual std::unique_ptr<Event> new_event() { return nullptr; }
};

class BackendReg {
 public:
  virtual ~BackendReg() = default;
  virtual std::string name() const = 0;  ///< "CPU", "CUDA", "META"
  virtual std::span<Device* const> devices() const = 0;
  /// False for test doubles: their devices are found by name and in no list.
  virtual bool is_listed() const { return true; }
  /// Optional functions by name, as untyped pointers; nullptr when the family has no such function. Use find_function()
  /// of devices/functions.h.
  virtual void* function(std::string_view name) const {
    (void)name;
    return nullptr;
  }
  /// Makes a device from parameters (families without a fixed list of devices, such as META).
  virtual Device& create_device(std::string_view params);
  /// Backends, buffers, events, and devices of other families that use devices of this one (devices/family_use.h).
  int uses() const { return uses_; }

 private:
  friend class FamilyUse;
  std::atomic<int> uses_{0};
};

class PluginFile;

/// What a search for plug-ins found.
struct PluginReport {
  struct Skipped {
    std::string file;
    std::string reason;
    bool is_broken = true;  ///< otherwise it is for other machines, or there is a better one
  };
  std::vector<std::string> loaded;  ///< families
  std::vector<Skipped> skipped;
};

/// All families and devices of the process, found by name (case-insensitive), index or type. Families of plug-ins come
/// and go: who unloads one sees to it that no other thread uses its devices.
class Registry {
 public:
  static Registry& instance();
  void add(std::unique_ptr<BackendReg> family);
  /// Registers a device owned elsewhere (must outlive its use).
  void add_device(Device& device);

  std::vector<BackendReg*> families() const;
  size_t family_count() const { return families().size(); }
  /// In the order of families(). Throws InvalidArgument past the last.
  BackendReg& family(size_t index) const;
  BackendReg* find_family(std::string_view name) const;

  std::vector<Device*> devices() const;
  std::vector<Device*> devices(DeviceType type) const;
  size_t device_count() const { return devices().size(); }
  /// In the order of devices(). Throws InvalidArgument past the last.
  Device& device(size_t index) const;
  Device* find_device(std::string_view name) const;  ///< nullptr when absent
  /// Throws InvalidArgument that lists what exists.
  Device& device(std::string_view name) const;
  /// "CPU0,CPU1" -> devices. Throws for an unknown name or a device named twice.
  std::vector<Device*> device_list(std::string_view comma_separated) const;
  Device* first_of(DeviceType type) const;
  /// A GPU if there is one, else the CPU.
  Device& best() const;

  /// "CPU0", "CPU0:threads=4", "META:devices=CPU0,CPU1 split=3,1", "best", "best:threads=4".
  std::unique_ptr<Backend> init(std::string_view spec);
  /// The first device of the type. Throws InvalidArgument that lists the devices when there is none.
  std::unique_ptr<Backend> init(DeviceType type, std::string_view params = {});

  /// Loads a plug-in (devices/plugin.h); one that is loaded already stays as it is. Throws InvalidArgument or
  /// DeviceError, naming the file, what is wrong with it and the remedy.
  BackendReg& load(const std::filesystem::path& file);
  /// Loads the files libshoal-*.so of a directory: of each family the variant with the highest score. A file that
  /// cannot be used is in the report and stops nothing. Throws InvalidArgument when there is no such directory.
  PluginReport load_all_from(const std::filesystem::path& directory);
  /// The same for all of: the directories in SHOAL_PLUGIN_PATH (separated by colons), the program's own, and
  /// ../lib/shoal beside it.
  PluginReport load_all();
  /// Closes a plug-in; pointers to its devices are no longer valid. Throws InvalidArgument when the family is part of
  /// the program or is in use.
  void unload(std::string_view family);
  /// The plug-in's file; empty for a family that is part of the program.
  std::filesystem::path file_of(const BackendReg& family) const;

 private:
  Registry();
  struct Family;
  /// Held while adding or taking away, from the first check on. A plug-in may load another one.
  std::unique_lock<std::recursive_mutex> change() const;
  void add(Family family);
  BackendReg& adopt(PluginFile file);
  void check_new(const PluginFile& file) const;
  PluginReport load_best(const std::vector<std::filesystem::path>& files);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
