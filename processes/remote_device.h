// Devices of other processes. A RemoteDevice stands for one in every process but its own: it has the name, the family
// and the memory that its process told of it, so that placements and plans come out the same everywhere. Its memory is
// only counted, and its backend takes everything and runs nothing: the process that it belongs to does. Reading from it
// is refused: what is read there comes by a collective or a message.
//
//   process 0 on host a                        process 1 on host b
//   gather_devices(group, {&cpu0})             gather_devices(group, {&cpu0})
//     -> CPU0, 1:CPU0 (remote)                   -> CPU0 (remote), CPU0, which the others call 1:CPU0
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
  std::string name;  ///< in its own process: "CPU0"
  std::string description;
  std::string host;
  std::string family;
  DeviceType type = DeviceType::kCpu;
  size_t free = 0, total = 0;  ///< bytes
  bool is_host = false;        ///< its memory is that of its host
  int siblings = 1;            ///< devices that its family has there
  int threads = 0;             ///< of a CPU device: its default
  std::string isa;             ///< instructions that its family uses
  std::string place;           ///< which one of those alike it is: "host node7 cores 0,1"
};

/// Which one of those alike a device of this process is: its PCI address, or the numbers of a CPU device's cores.
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
  /// `like`: a device of this process of the same family, which knows what that family can do and needs; nullptr: there
  /// is none, and the other process is believed to be able to do everything.
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
  /// Of the memory that the device had free when its process told of it.
  void take(size_t size) { used_ += size; }
  void give_back(size_t size) { used_ -= size; }

 private:
  RemoteSpec spec_;
  std::string name_;
  Device* like_;
  std::atomic<size_t> used_{0};
  RemoteBufferType buffer_type_, weights_type_;
};

/// The same device in every process; nullptr for one of this process.
const RemoteSpec* remote_spec(const Device& device);

/// The devices of all processes, those of process 0 first: `own`, and remote ones, which live as long as the program.
/// From then on CPU devices report the part of their computer's memory that their process has, where several processes
/// of one node bring some. Collective.
std::vector<Device*> gather_devices(ProcessGroup& group, std::span<Device* const> own);

/// How many processes of one computer count memory as theirs that `own`, an index, counts, itself among them. Of each:
/// the NUMA nodes of its CPU devices, whose memory they count; -1: that of all nodes.
int memory_sharers(std::span<const std::set<int>> nodes, size_t own);

/// The process that a device belongs to, seen from `own`.
int process_of(const Device& device, int own);
bool is_remote(const Device& device);
/// What all processes call a device that is `name` in its own: "1:CPU0"; of process 0 by its name.
std::string name_in_process(int process, std::string_view name);
/// The same of a device of this process or another, and its name where there is no group.
std::string common_name(const Device& device, const ProcessGroup* group);
/// The name of its family: of a remote one in its process.
std::string family_name(const Device& device);
/// Can the host of the device use its memory?
bool has_host_memory(Device& device);

}  // namespace shoal
