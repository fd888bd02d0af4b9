// Devices of other processes. A RemoteDevice represents a device in every process except the device's own. It has the
// name, family and memory that its own process reported, so that placements and plans are equal in all processes. Its
// memory is only counted, not allocated. Its backend accepts all work and runs nothing, because the device's own
// process runs the work. Reading its memory throws, because data arrives only by a collective or a message.
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
  std::string name;  ///< name in its own process: "CPU0"
  std::string description;
  std::string host;
  std::string family;
  DeviceType type = DeviceType::kCpu;
  size_t free = 0, total = 0;  ///< bytes
  bool is_host = false;        ///< whether the device's memory is host memory
  int siblings = 1;            ///< number of devices of its family in its own process
  int threads = 0;             ///< default thread count of a CPU device
  std::string isa;             ///< instruction set that its family uses
  std::string place;           ///< distinguishes similar devices: "host node7 cores 0,1"
};

/// Text that distinguishes similar devices of this process: the PCI address, or the core numbers of a CPU device.
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
  /// `like`: a device of the same family in this process; its supported ops and its sizes also apply to the remote
  /// device. If it is nullptr, the remote device is assumed to support every op.
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
  /// Subtracts `size` from the memory that was free when the device's process reported it.
  void take(size_t size) { used_ += size; }
  void give_back(size_t size) { used_ -= size; }

 private:
  RemoteSpec spec_;
  std::string name_;
  Device* like_;
  std::atomic<size_t> used_{0};
  RemoteBufferType buffer_type_, weights_type_;
};

/// The spec of a remote device; nullptr for a device of this process.
const RemoteSpec* remote_spec(const Device& device);

/// The devices of all processes, in the order of the processes: `own`, and a RemoteDevice for each other device. Remote
/// devices live as long as the program. If several processes of one node have CPU devices, each CPU device from then on
/// reports only its process's part of the computer's memory. Collective.
std::vector<Device*> gather_devices(ProcessGroup& group, std::span<Device* const> own);

/// Number of processes of one computer that count the same memory as process `own` (an index), `own` included. `nodes`
/// holds, for each process, the NUMA nodes whose memory its CPU devices count; -1 stands for all NUMA nodes.
int memory_sharers(std::span<const std::set<int>> nodes, size_t own);

/// The process that a device belongs to; `own` is the number of this process.
int process_of(const Device& device, int own);
bool is_remote(const Device& device);
/// The name that all processes use for a device called `name` in its own process: "1:CPU0". Devices of process 0 keep
/// their names.
std::string name_in_process(int process, std::string_view name);
/// The name that all processes use for a local or remote device. Without a group, the device's own name.
std::string common_name(const Device& device, const ProcessGroup* group);
/// The name of the device's family. For a remote device, the name of its family in its own process.
std::string family_name(const Device& device);
/// Whether the CPU of the device's host can access the device's memory.
bool has_host_memory(Device& device);

}  // namespace shoal
