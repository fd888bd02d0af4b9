// Device, families of devices (BackendReg) and the registry of all families. Families are singletons created at first
// use. A device lives as long as its family. All functions here are thread-safe unless noted.
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
  std::vector<std::string> peers;  ///< names of the devices that can read this device's memory directly
};

struct DeviceProps {
  std::string name;         ///< for example "CPU0"
  std::string description;  ///< for example "Intel(R) Xeon(R) ..., 8 cores, node 0"
  DeviceType type = DeviceType::kCpu;
  DeviceMemory memory;    ///< current total and free bytes
  std::string device_id;  ///< PCI "domain:bus:device.function"; "" if unknown
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

  /// Makes a new stream of work. `params` has the format "key=value,key=value", for example "threads=4". If a key is
  /// unknown or a value is bad, throws InvalidArgument that lists the known keys.
  virtual std::unique_ptr<Backend> init(std::string_view params = {}) = 0;

  virtual BufferType& buffer_type() = 0;
  /// Memory for weights, in the layout that this device's kernels read fastest. Buffer::set() and get() still use bytes
  /// in the standard layout.
  virtual BufferType& weights_type() { return buffer_type(); }
  /// Pinned host memory for fast copies to and from this device; nullptr if there is none.
  virtual BufferType* host_buffer_type() { return nullptr; }
  /// Wraps host memory without a copy. Returns nullptr if the device does not support this. The memory must outlive the
  /// buffer.
  virtual std::unique_ptr<Buffer> buffer_from_host_ptr(void* data, size_t size) {
    (void)data, (void)size;
    return nullptr;
  }

  /// Whether the device can run the node with its dtypes, shapes and parameters. The current memory of the node's
  /// tensors does not matter.
  virtual bool supports_op(const Tensor& node) const = 0;
  virtual bool supports_buffer_type(const BufferType& type) const { return &type.device() == this; }
  /// Whether this device runs the node faster than the device that stores the node's weights, although this device must
  /// copy the weights first. For example, the result can be true for large batches.
  virtual bool offload_op(const Tensor& node) const {
    (void)node;
    return false;
  }
  /// Bytes of scratch memory that the node needs while it runs on this device. The plan of the graph includes this
  /// memory.
  virtual size_t workspace_size(const Tensor& node) const {
    (void)node;
    return 0;
  }
  /// Returns nullptr if the device does not support events.
  virtual std::unique_ptr<Event> new_event() { return nullptr; }
};

class BackendReg {
 public:
  virtual ~BackendReg() = default;
  virtual std::string name() const = 0;  ///< for example "CPU", "CUDA" or "META"
  virtual std::span<Device* const> devices() const = 0;
  /// Whether lists of devices include the devices of this family. The result is false for test doubles, whose devices
  /// can only be found by name.
  virtual bool is_listed() const { return true; }
  /// Returns an optional function as an untyped pointer, or nullptr if the family has no function of this name. Callers
  /// use find_function() of devices/functions.h instead.
  virtual void* function(std::string_view name) const {
    (void)name;
    return nullptr;
  }
  /// Makes a device from parameters. Only families without a fixed list of devices (META) support this.
  virtual Device& create_device(std::string_view params);
  /// Number of uses of this family. The number counts existing backends, buffers and events of this family. It also
  /// counts devices of other families that use devices of this family (devices/family_use.h).
  int uses() const { return uses_; }

 private:
  friend class FamilyUse;
  std::atomic<int> uses_{0};
};

class PluginFile;

/// Result of a search for plug-ins.
struct PluginReport {
  struct Skipped {
    std::string file;
    std::string reason;
    bool is_broken = true;  ///< false if the file is for other machines, or if the search has already loaded another
                            ///< variant of the family
  };
  std::vector<std::string> loaded;  ///< names of the loaded families
  std::vector<Skipped> skipped;
};

/// All families and devices of the process. Lookups use a name (case-insensitive), an index or a type. Families of
/// plug-ins can be unloaded. The caller of unload() ensures that no other thread uses the family's devices.
class Registry {
 public:
  static Registry& instance();
  void add(std::unique_ptr<BackendReg> family);
  /// Registers a device that another object owns. The device must exist until the process ends.
  void add_device(Device& device);

  std::vector<BackendReg*> families() const;
  size_t family_count() const { return families().size(); }
  /// `index` is an index into families(). Throws InvalidArgument if it is out of range.
  BackendReg& family(size_t index) const;
  BackendReg* find_family(std::string_view name) const;

  std::vector<Device*> devices() const;
  std::vector<Device*> devices(DeviceType type) const;
  size_t device_count() const { return devices().size(); }
  /// `index` is an index into devices(). Throws InvalidArgument if it is out of range.
  Device& device(size_t index) const;
  Device* find_device(std::string_view name) const;  ///< nullptr if no device has this name
  /// If no device has this name, throws InvalidArgument that lists the existing devices.
  Device& device(std::string_view name) const;
  /// Converts a list such as "CPU0,CPU1" to devices. Throws InvalidArgument for an unknown name or a device named
  /// twice.
  std::vector<Device*> device_list(std::string_view comma_separated) const;
  Device* first_of(DeviceType type) const;
  /// The first GPU, or a CPU if there is no GPU.
  Device& best() const;

  /// Examples of `spec`: "CPU0", "CPU0:threads=4", "META:devices=CPU0,CPU1 split=3,1", "best", "best:threads=4".
  std::unique_ptr<Backend> init(std::string_view spec);
  /// Makes a stream on the first device of the type. If there is no such device, throws InvalidArgument that lists the
  /// devices.
  std::unique_ptr<Backend> init(DeviceType type, std::string_view params = {});

  /// Loads a plug-in (devices/plugin.h). If the plug-in is already loaded, returns its family. Throws InvalidArgument
  /// or DeviceError that names the file, the problem and the remedy.
  BackendReg& load(const std::filesystem::path& file);
  /// Loads the plug-ins libshoal-*.so of a directory. If a family has several variants, loads the variant with the
  /// highest score. The result reports unusable files, which do not stop the search. Throws InvalidArgument if the
  /// directory does not exist.
  PluginReport load_all_from(const std::filesystem::path& directory);
  /// Like load_all_from(), but for all plug-in directories. These are the directories in SHOAL_PLUGIN_PATH (separated
  /// by colons), the program's own directory, and ../lib/shoal relative to the program's directory.
  PluginReport load_all();
  /// Closes a plug-in. Pointers to its devices become invalid. Throws InvalidArgument if the family is built into the
  /// program or is in use.
  void unload(std::string_view family);
  /// The file of the plug-in. The path is empty if the family is built into the program.
  std::filesystem::path file_of(const BackendReg& family) const;

 private:
  Registry();
  struct Family;
  /// Prevents concurrent changes of the lists of families and devices. Callers take this lock before they check names
  /// or files. The mutex is recursive because a plug-in may load another plug-in.
  std::unique_lock<std::recursive_mutex> change() const;
  void add(Family family);
  BackendReg& adopt(PluginFile file);
  void check_new(const PluginFile& file) const;
  PluginReport load_best(const std::vector<std::filesystem::path>& files);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
