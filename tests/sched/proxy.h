// A device that forwards all calls to another device. Tests can restrict the supported ops. The backends of the device
// record their calls. Weights on this device are in separate memory, which other devices cannot use. Single-threaded.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"
#include "devices/device.h"
#include "devices/host_buffer.h"

namespace shoal::test {

class ProxyBufferType final : public BufferType {
 public:
  explicit ProxyBufferType(Device& device) : device_(device) {}
  bool host = true;
  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  std::unique_ptr<Buffer> allocate(size_t size) override { return allocate_host_buffer(*this, size); }
  bool is_host() const override { return host; }

 private:
  Device& device_;
};

/// Proxies need a separate family, because functions of the inner device's family accept only backends of that family.
class ProxyFamily final : public BackendReg {
 public:
  std::string name() const override { return "PROXY"; }
  std::span<Device* const> devices() const override { return {}; }
  bool is_listed() const override { return false; }
};

class ProxyDevice final : public Device {
 public:
  explicit ProxyDevice(Device& inner, std::string name = {}) : inner_(inner), name_(std::move(name)) {}

  std::function<bool(const Tensor&)> refuses;  ///< whether supports_op() rejects the node; if empty, supports_op()
                                               ///< rejects no node
  std::function<bool(const Tensor&)> wants;    ///< result of offload_op(); if empty, the result is false
  bool has_events = true;
  bool reads_all = false;  ///< whether the device can read memory of all other devices

  std::string name() const override { return name_.empty() ? inner_.name() : name_; }
  std::string description() const override { return inner_.description(); }
  DeviceType type() const override { return inner_.type(); }
  DeviceMemory memory() const override { return inner_.memory(); }
  DeviceProps props() const override { return inner_.props(); }
  BackendReg& reg() const override {
    static ProxyFamily family;
    return family;
  }
  std::unique_ptr<Backend> init(std::string_view params) override;
  BufferType& buffer_type() override { return type_; }
  bool supports_op(const Tensor& node) const override {
    return (!refuses || !refuses(node)) && inner_.supports_op(node);
  }
  bool supports_buffer_type(const BufferType& type) const override {
    return &type.device() == this || (reads_all && inner_.supports_buffer_type(type));
  }
  bool offload_op(const Tensor& node) const override { return wants && wants(node); }
  size_t workspace_size(const Tensor& node) const override { return inner_.workspace_size(node); }
  std::unique_ptr<Event> new_event() override;

 private:
  Device& inner_;
  std::string name_;
  ProxyBufferType type_{*this};
};

/// To other streams, this backend looks like a meta backend whose only member is the inner backend.
class ProxyBackend final : public Backend {
 public:
  struct Access {
    std::string tensor;
    size_t offset, bytes;
    bool operator==(const Access&) const = default;
  };
  std::vector<Access> sets, gets;
  int synchronized = 0;
  std::vector<int> segments;  ///< first segment of each queued compute_async() call, in order

  ProxyBackend(ProxyDevice& device, std::unique_ptr<Backend> inner)
      : device_(device), inner_(std::move(inner)), stream_(inner_.get()) {}
  ~ProxyBackend() override { plans().clear(); }

  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override {
    sets.push_back({tensor.name, rows.offset, rows.rows * rows.row_bytes});
    inner_->set_2d_async(tensor, data, host_stride, rows);
  }
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override {
    gets.push_back({tensor.name, rows.offset, rows.rows * rows.row_bytes});
    inner_->get_2d_async(tensor, data, host_stride, rows);
  }
  void hold() override { inner_->hold(); }
  void release() override { inner_->release(); }
  void synchronize() override {
    ++synchronized;
    inner_->synchronize();
  }
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override {
    PlanOptions own = options;
    if (own.arena != nullptr) own.arena = &own.arena->member(0);
    return inner_->create_plan(range, own);
  }
  void compute_async(GraphPlan& plan, int first, int last) override {
    segments.push_back(first);
    inner_->compute_async(plan, first, last);
  }
  bool set_abort_callback(AbortCallback callback) override { return inner_->set_abort_callback(std::move(callback)); }
  std::span<Backend* const> members() const override { return {&stream_, 1}; }
  bool enqueue(const HostTask& task) override { return inner_->enqueue(task); }

  /// Returns the inner backend of a proxy, because events of the inner device accept only this backend.
  static Backend& behind(Backend& backend) {
    auto* proxy = dynamic_cast<ProxyBackend*>(&backend);
    return proxy != nullptr ? *proxy->stream_ : backend;
  }

 private:
  ProxyDevice& device_;
  std::unique_ptr<Backend> inner_;
  Backend* stream_;
};

class ProxyEvent final : public Event {
 public:
  ProxyEvent(Device& device, std::unique_ptr<Event> inner) : device_(device), inner_(std::move(inner)) {}
  Device& device() const override { return device_; }
  void record(Backend& backend) override { inner_->record(ProxyBackend::behind(backend)); }
  void wait(Backend& backend) override { inner_->wait(ProxyBackend::behind(backend)); }
  void synchronize() override { inner_->synchronize(); }

 private:
  Device& device_;
  std::unique_ptr<Event> inner_;
};

inline std::unique_ptr<Backend> ProxyDevice::init(std::string_view params) {
  return std::make_unique<ProxyBackend>(*this, inner_.init(params));
}

inline std::unique_ptr<Event> ProxyDevice::new_event() {
  auto event = has_events ? inner_.new_event() : nullptr;
  return event == nullptr ? nullptr : std::make_unique<ProxyEvent>(*this, std::move(event));
}

}  // namespace shoal::test
