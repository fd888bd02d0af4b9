// The family "SIM": devices that do not exist. They have a name, a type and memory of a size, so that placements, plans
// and predictions are made for them as for any others (`shoal simulate`); how fast they are is the business of a
// machine model (machine/machine.h). They say yes to every op, count allocations, hold no bytes and run nothing.
//
// Devices live as long as the family. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"

namespace shoal::sim {

struct SimSpec {
  std::string name;         ///< "H200.0"
  std::string description;  ///< "simulated H200, 141 GB"
  DeviceType type = DeviceType::kGpu;
  size_t memory = 0;  ///< bytes in all
  bool operator==(const SimSpec&) const = default;
};

class SimDevice;

/// Of GPUs aligned as CUDA devices do it, else as the CPU's, and then memory of the host.
class SimBufferType final : public BufferType {
 public:
  explicit SimBufferType(SimDevice& device) : device_(device) {}
  std::string name() const override;
  Device& device() const override;
  /// Counts the bytes; there are none. Throws OutOfMemory past the device's memory.
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t alignment() const override;
  bool is_host() const override;

 private:
  SimDevice& device_;
};

class SimDevice final : public Device {
 public:
  SimDevice(BackendReg& reg, SimSpec spec) : reg_(reg), spec_(std::move(spec)) {}

  std::string name() const override { return spec_.name; }
  std::string description() const override { return spec_.description; }
  DeviceType type() const override { return spec_.type; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override { return reg_; }
  /// Throws DeviceError: there is nothing to run on.
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return type_; }
  bool supports_op(const Tensor&) const override { return true; }
  /// Of GPUs what CUDA devices say.
  bool offload_op(const Tensor& node) const override;

  const SimSpec& spec() const { return spec_; }
  /// Counts an allocation and returns its address, which must not be used. Throws OutOfMemory.
  std::byte* take(size_t size);
  void give_back(size_t size);

 private:
  BackendReg& reg_;
  SimSpec spec_;
  mutable std::mutex mutex_;
  size_t used_ = 0;
  size_t next_address_ = size_t{1} << 20;
  SimBufferType type_{*this};
};

class SimFamily final : public BackendReg {
 public:
  std::string name() const override { return "SIM"; }
  std::span<Device* const> devices() const override;
  bool is_listed() const override { return false; }
  /// The device that is as told: the one there is, or a new one, which takes the name from another simulated one (that
  /// lives on, but is not found any more). A real device may have the same name: the registry finds the real one.
  /// Throws InvalidArgument where there is no name or memory.
  Device& provide(const SimSpec& spec);

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<SimDevice>> owned_;
  std::deque<std::vector<Device*>> lists_{{}};  ///< the latest last; earlier ones may be in use
};

/// The one of the registry, which gets it with the first call.
SimFamily& family();

}  // namespace shoal::sim
