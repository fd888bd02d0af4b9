#include "devices/null/null_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "devices/allocate.h"
#include "devices/params.h"
#include "devices/strided.h"
#include "graph/error.h"

namespace shoal::null {
namespace {

constexpr size_t kTotalMemory = size_t{1} << 40;

Faults parse_faults(std::string_view owner, std::string_view text, Faults faults) {
  const Params params(owner, text, {"max_size", "fail_alloc_after", "fail_node", "stall_ms"});
  faults.max_size = params.bytes("max_size", faults.max_size);
  faults.fail_alloc_after = params.bytes("fail_alloc_after", faults.fail_alloc_after);
  faults.fail_node = params.text("fail_node", faults.fail_node);
  faults.stall = std::chrono::milliseconds(params.integer("stall_ms", faults.stall.count(), 0, 60'000));
  return faults;
}

class NullBuffer final : public Buffer {
 public:
  NullBuffer(NullBufferType& type, NullDevice& device, size_t size)
      : Buffer(type, size), device_(device), room_(size + type.alignment()) {
    void* start = room_.data();
    size_t room = room_.size();
    base_ = static_cast<std::byte*>(std::align(type.alignment(), size, start, room));
  }
  ~NullBuffer() override { device_.give_back(size()); }

  std::byte* base() const override { return base_; }
  void clear(uint8_t value) override { std::fill_n(base_, size(), std::byte{value}); }

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override {
    const auto* from = static_cast<const std::byte*>(data);
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t done, size_t length) { std::memcpy(tensor.data + at, from + done, length); });
  }
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
    auto* to = static_cast<std::byte*>(data);
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t done, size_t length) { std::memcpy(to + done, tensor.data + at, length); });
  }
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override {
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t, size_t length) { std::fill_n(tensor.data + at, length, std::byte{value}); });
  }

 private:
  NullDevice& device_;
  std::vector<std::byte> room_;
  std::byte* base_;
};

class NullPlan final : public GraphPlan {
 public:
  NullPlan(NullBackend& backend, const GraphRange& range, const PlanOptions& options)
      : backend_(backend), cuts_(options.cuts), memory_(range, backend.device(), options) {}
  Backend& backend() const override { return backend_; }
  size_t allocated_bytes() const override { return memory_.bytes(); }
  int segments() const override { return static_cast<int>(cuts_.size()) + 1; }
  /// Nodes of the segments [first, last).
  GraphRange range(int first, int last) const {
    GraphRange range = memory_.range();
    if (last < segments()) range.end = last > 0 ? cuts_[static_cast<size_t>(last) - 1] : range.begin;
    if (first > 0) range.begin = first < segments() ? cuts_[static_cast<size_t>(first) - 1] : range.end;
    return range;
  }

 private:
  NullBackend& backend_;
  std::vector<int> cuts_;
  GraphMemory memory_;
};

class NullFamily final : public BackendReg {
 public:
  NullFamily() { create_device({}); }
  std::string name() const override { return "NULL"; }
  std::span<Device* const> devices() const override {
    const std::lock_guard lock(mutex_);
    return lists_.back();
  }
  bool is_listed() const override { return false; }
  Device& create_device(std::string_view params) override {
    const std::lock_guard lock(mutex_);
    const std::string name = fmt::format("NULL{}", owned_.size());
    owned_.push_back(std::make_unique<NullDevice>(*this, name, parse_faults(name, params, {})));
    auto list = lists_.empty() ? std::vector<Device*>() : lists_.back();
    list.push_back(owned_.back().get());
    lists_.push_back(std::move(list));
    return *owned_.back();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<NullDevice>> owned_;
  std::deque<std::vector<Device*>> lists_;  ///< the latest last; earlier ones may be in somebody's hands
};

}  // namespace

std::string NullBufferType::name() const {
  return device_.name();
}
Device& NullBufferType::device() const {
  return device_;
}
size_t NullBufferType::max_size() const {
  return device_.faults().max_size;
}

std::unique_ptr<Buffer> NullBufferType::allocate(size_t size) {
  device_.take(size);
  return std::make_unique<NullBuffer>(*this, device_, size);
}

DeviceMemory NullDevice::memory() const {
  return {kTotalMemory - std::min(used_.load(), kTotalMemory), kTotalMemory};
}

DeviceProps NullDevice::props() const {
  return {name_, description(), type(), memory(), "", {}};
}

std::unique_ptr<Backend> NullDevice::init(std::string_view params) {
  return std::make_unique<NullBackend>(*this, parse_faults(name_, params, faults_));
}

void NullDevice::take(size_t size) {
  require<DeviceError>(size <= faults_.max_size, "[{}] one allocation can have {}, {} were asked for", name_,
                       format_bytes(faults_.max_size), format_bytes(size));
  const size_t before = used_.fetch_add(size);
  const size_t limit = std::min(faults_.fail_alloc_after, kTotalMemory);
  if (before <= limit && size <= limit - before) return;
  used_ -= size;
  fail<OutOfMemory>("[{}] out of memory: {} asked for, {} free", name_, format_bytes(size),
                    format_bytes(limit - std::min(before, limit)));
}

void NullBackend::set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
  calls_.push_back({"set", tensor.name, size});
  tensor_set(tensor, data, offset, size);
}

void NullBackend::get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
  calls_.push_back({"get", tensor.name, size});
  tensor_get(tensor, data, offset, size);
}

void NullBackend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  calls_.push_back({"copy", src.name, src.bytes()});
  Backend::copy_async(src, to, dst);
}

void NullBackend::synchronize() {
  calls_.push_back({"synchronize", "", 0});
  std::this_thread::sleep_for(faults_.stall);
  if (failure_.empty()) return;
  const std::string failure = std::exchange(failure_, {});
  fail<DeviceError>("[{}] {}", name(), failure);
}

std::unique_ptr<GraphPlan> NullBackend::create_plan(const GraphRange& range, const PlanOptions& options) {
  check_options(range, options);
  auto plan = std::make_unique<NullPlan>(*this, range, options);
  range.graph->freeze();
  return plan;
}

void NullBackend::compute_async(GraphPlan& plan, int first, int last) {
  check_run(plan, first, last);
  const GraphRange range = static_cast<NullPlan&>(plan).range(first, last);
  for (int i = range.begin; i < range.end && failure_.empty(); ++i) {
    const Tensor& node = *range.graph->nodes()[static_cast<size_t>(i)];
    calls_.push_back({"compute", node.name, node.bytes()});
    if (node.name == faults_.fail_node) failure_ = fmt::format("node {} failed", node.name);
  }
}

std::unique_ptr<BackendReg> make_family() {
  return std::make_unique<NullFamily>();
}

}  // namespace shoal::null
