// Classes that implement devices/cpu/cpu_device.h: the device and its family. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/cpu/packed_buffer.h"
#include "devices/cpu/settings.h"
#include "devices/cpu/topology.h"
#include "devices/device.h"

namespace shoal::cpu {

class CpuDevice final : public Device {
 public:
  /// The cores and settings of one device.
  struct Share {
    CoreSet cores;
    int sharers = 1;      ///< number of devices on the same node; each device reports an equal part of the node's
                          ///< memory
    int threads = 0;      ///< 0 means one thread per core
    double slowdown = 1;  ///< see slowdown.h
    Limits limits;
  };
  CpuDevice(BackendReg& reg, std::string name, Share share);

  std::string name() const override { return name_; }
  std::string description() const override;
  DeviceType type() const override { return DeviceType::kCpu; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override { return reg_; }
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return type_; }
  BufferType& weights_type() override { return packed_; }
  std::unique_ptr<Buffer> buffer_from_host_ptr(void* data, size_t size) override { return mapped_.wrap(data, size); }
  bool supports_op(const Tensor& node) const override;
  /// Returns true for host memory, and for the packed-weight type of every CPU device.
  bool supports_buffer_type(const BufferType& type) const override;
  /// Bytes of scratch memory that suffice for the default team and for every team that this device has had.
  size_t workspace_size(const Tensor& node) const override;
  std::unique_ptr<Event> new_event() override;

  MappedBufferType& mapped_type() { return mapped_; }
  PackedBufferType& packed_type() { return packed_; }
  /// Makes the workspaces of later plans large enough for teams of this size.
  void expect_threads(int threads);
  const CoreSet& cores() const { return share_.cores; }
  int node() const { return share_.cores.node; }
  int default_threads() const { return share_.threads; }
  double slowdown() const { return share_.slowdown; }
  size_t max_size() const { return share_.limits.max_size; }
  /// Counts an allocation. Throws DeviceError when `size` exceeds max_size, the memory limit or the free memory.
  void take(size_t size);
  void give_back(size_t size) { used_ -= size; }
  int uses() const { return uses_; }

 private:
  friend class DeviceUse;

  BackendReg& reg_;
  std::string name_;
  Share share_;  ///< `share_.threads` is at least 1
  std::atomic<int> most_threads_;
  std::atomic<size_t> used_{0};
  std::atomic<int> uses_{0};
  CpuBufferType type_{*this};
  MappedBufferType mapped_{*this};
  PackedBufferType packed_{*this};
};

/// The device counts as in use while this object exists. Every backend and buffer holds a DeviceUse.
class DeviceUse {
 public:
  explicit DeviceUse(CpuDevice& device) : device_(device) { ++device_.uses_; }
  ~DeviceUse() { --device_.uses_; }
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;

 private:
  CpuDevice& device_;
};

class CpuFamily final : public BackendReg {
 public:
  std::string name() const override { return "CPU"; }
  std::span<Device* const> devices() const override;
  void* function(std::string_view name) const override;
  void configure(std::string_view params);

 private:
  void make_devices(const Settings& settings) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<CpuDevice>> owned_;  ///< devices of the current and of earlier configurations
  mutable std::deque<std::vector<Device*>> lists_;         ///< the last list is current; earlier lists may be in use
};

}  // namespace shoal::cpu
