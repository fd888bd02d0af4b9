// The family "NULL": devices with real memory. Their backends record all calls, compute no nodes, and fail on request.
// The test programs listed in tests/CMakeLists.txt register this family before main(). The memory of these devices does
// not count as host memory. So the program must access this memory through buffers.
//
// Parameters of create_device(), which adds NULL1, NULL2, ... to the first device NULL0:
//   max_size=BYTES          size of the largest single allocation
//   fail_alloc_after=BYTES  an allocation that exceeds this total throws DeviceError
//   fail_node=NAME          the run of this node fails, and synchronize() reports the failure
//   stall_ms=N              synchronize() takes N milliseconds
// Device::init() also accepts fail_node and stall_ms. These two parameters apply only to the new backend.
#pragma once

#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "devices/device.h"

namespace shoal::null {

struct Faults {
  size_t max_size = std::numeric_limits<size_t>::max();
  size_t fail_alloc_after = std::numeric_limits<size_t>::max();
  std::string fail_node;
  std::chrono::milliseconds stall{0};
};

/// One recorded call of a backend. `what` is "set", "get", "copy", "compute" (once per node) or "synchronize".
struct Call {
  std::string what;
  std::string tensor;  ///< "" if the call has no tensor
  size_t bytes = 0;
  bool operator==(const Call&) const = default;
};

class NullDevice;

class NullBufferType final : public BufferType {
 public:
  explicit NullBufferType(NullDevice& device) : device_(device) {}
  std::string name() const override;
  Device& device() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t max_size() const override;

 private:
  NullDevice& device_;
};

class NullDevice final : public Device {
 public:
  NullDevice(BackendReg& reg, std::string name, Faults faults) : reg_(reg), name_(std::move(name)), faults_(faults) {}

  std::string name() const override { return name_; }
  std::string description() const override { return "runs nothing, records everything"; }
  DeviceType type() const override { return DeviceType::kAccelerator; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override { return reg_; }
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return type_; }
  bool supports_op(const Tensor&) const override { return true; }

  const Faults& faults() const { return faults_; }
  /// Counts `size` bytes of an allocation. Throws DeviceError if the allocation exceeds max_size or fail_alloc_after.
  void take(size_t size);
  void give_back(size_t size) { used_ -= size; }

 private:
  BackendReg& reg_;
  std::string name_;
  Faults faults_;
  std::atomic<size_t> used_{0};
  NullBufferType type_{*this};
};

/// Executes each call at once. As on real devices, only synchronize() reports failures.
class NullBackend final : public Backend {
 public:
  NullBackend(NullDevice& device, Faults faults) : device_(device), faults_(std::move(faults)) {}
  ~NullBackend() override { plans().clear(); }

  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  void synchronize() override;
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  void compute_async(GraphPlan& plan, int first, int last) override;

  /// All calls so far, in order.
  const std::vector<Call>& calls() const { return calls_; }
  void clear_calls() { calls_.clear(); }

 private:
  NullDevice& device_;
  FamilyUse use_{device_};
  Faults faults_;
  std::vector<Call> calls_;
  std::string failure_;
};

std::unique_ptr<BackendReg> make_family();

}  // namespace shoal::null
