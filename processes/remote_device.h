// Devices of other processes. A RemoteDevice represents a device in every process except the device's own process. The
// device's own process reports the name, family and memory of the device to the other processes. So placements and
// plans are equal in all processes. A RemoteDevice counts its memory but does not allocate memory. The backend of a
// RemoteDevice accepts all work and runs nothing, because the device's own process runs the work. Reads of the memory
// of a RemoteDevice throw, because data arrives only by a collective or a message.
//
//   process 0 on host a                        process 1 on host b
//   gather_devices(group, {&cpu0})             gather_devices(group, {&cpu0})
//     -> CPU0, 1:CPU0 (remote)                   -> CPU0 (remote), CPU0 (called 1:CPU0 by other processes)
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "processes/process_group.h"

namespace shoal {

struct RemoteSpec {
  int process = 0;
  std::string name;  ///< name in the device's own process: "CPU0"
  std::string description;
  std::string host;
  std::string family;
  DeviceType type = DeviceType::kCpu;
  size_t free = 0, total = 0;  ///< bytes of free memory and of all memory
  bool is_host = false;        ///< whether the device's memory is host memory
  int siblings = 1;            ///< number of devices of the same family in the device's own process
  int threads = 0;             ///< default number of threads of a CPU device
  std::string isa;             ///< instruction set that the device's family uses
  std::string place;           ///< text that distinguishes similar devices, such as "host node7 cores 0,1"
};

/// Returns a text that distinguishes similar devices of this process. For a CPU device, the text contains the numbers
/// of its cores. For other devices, the text is the PCI address.
std::string place_of(const Device& device);

class RemoteDevice;

class RemoteBufferType final : public BufferType {
 public:
  RemoteBufferType(RemoteDevice& device, BufferType* like) : device_(device), like_(like) {}
  std::string name() const override;
  Device& device() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t alignment() const override { return like_ != nullptr ? like_->alignment() : 256; }
  size_t max_size() const override { return like_ != nullptr ? like_->max_size() : BufferType::max_size(); }
  size_t alloc_size(const Tensor& tensor) const override {
    return like_ != nullptr ? like_->alloc_size(tensor) : BufferType::alloc_size(tensor);
  }

 private:
  RemoteDevice& device_;
  BufferType* like_;
};

class RemoteDevice final : public Device {
 public:
  /// `like` is a device of the same family in this process. The remote device reports the same supported ops and the
  /// same sizes as `like`. If `like` is nullptr, every op is assumed to be supported.
  RemoteDevice(RemoteSpec spec, Device* like);

  std::string name() const override { return name_; }
  std::string description() const override { return spec_.description; }
  DeviceType type() const override { return spec_.type; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override;
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return buffer_type_; }
  BufferType& weights_type() override { return weights_type_; }
  bool supports_op(const Tensor& node) const override { return like_ == nullptr || like_->supports_op(node); }
  bool offload_op(const Tensor& node) const override { return like_ != nullptr && like_->offload_op(node); }
  size_t workspace_size(const Tensor& node) const override {
    return like_ != nullptr ? like_->workspace_size(node) : 0;
  }
  std::unique_ptr<Event> new_event() override;

  const RemoteSpec& spec() const { return spec_; }
  /// Subtracts `size` bytes from the free memory. The initial free memory is the value that the device's own process
  /// reported.
  void take(size_t size) { used_ += size; }
  void give_back(size_t size) { used_ -= size; }

 private:
  RemoteSpec spec_;
  std::string name_;
  Device* like_;
  std::atomic<size_t> used_{0};
  RemoteBufferType buffer_type_, weights_type_;
};

/// Returns the spec of a remote device, or nullptr for a device of this process.
const RemoteSpec* remote_spec(const Device& device);

/// Returns the devices of all processes, in the order of the processes. These are the devices in `own`, and a
/// RemoteDevice for each device of another process. Remote devices live until the program ends. If CPU devices of
/// several processes count the same memory, this call divides the memory among these processes. Each of these CPU
/// devices then reports only its own process's part of the memory. This call is collective.
std::vector<Device*> gather_devices(ProcessGroup& group, std::span<Device* const> own);

/// Returns how many processes of one computer count the same memory as process `own`. The result includes process
/// `own`. Element p of `nodes` contains the NUMA nodes whose memory the CPU devices of process p count. -1 stands for
/// all NUMA nodes.
int memory_sharers(std::span<const std::set<int>> nodes, size_t own);

/// Returns the number of the process that a device belongs to. `own` is the number of this process.
int process_of(const Device& device, int own);
bool is_remote(const Device& device);
/// Returns the name that all processes use for a device, such as "1:CPU0". `name` is the name in the device's own
/// process. Devices of process 0 have the same name in all processes.
std::string name_in_process(int process, std::string_view name);
/// Returns the name that all processes use for a local or remote device. Without a group, this is the device's own
/// name.
std::string common_name(const Device& device, const ProcessGroup* group);
/// Returns the name of the device's family. For a remote device, this is the family in the device's own process.
std::string family_name(const Device& device);
/// Whether the CPU of the device's host can access the device's memory.
bool has_host_memory(Device& device);

}  // namespace shoal
