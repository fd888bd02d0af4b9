#include "tests/support/null/null_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "devices/host_buffer.h"
#include "devices/node_plan.h"

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

class NullBuffer final : public HostBuffer {
 public:
  NullBuffer(NullBufferType& type, NullDevice& device, size_t size)
      : HostBuffer(type, nullptr, size), device_(device), room_(size + type.alignment()) {
    void* start = room_.data();
    size_t room = room_.size();
    data_ = static_cast<std::byte*>(std::align(type.alignment(), size, start, room));
  }
  ~NullBuffer() override {
    close();
    device_.give_back(size());
  }

 private:
  NullDevice& device_;
  std::vector<std::byte> room_;
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
  std::deque<std::vector<Device*>> lists_;  ///< the last list is current; callers may still use earlier lists
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
  require<DeviceError>(size <= faults_.max_size, "[{}] one allocation can have at most {}, got {}", name_,
                       format_bytes(faults_.max_size), format_bytes(size));
  const size_t before = used_.fetch_add(size);
  const size_t limit = std::min(faults_.fail_alloc_after, kTotalMemory);
  if (before <= limit && size <= limit - before) return;
  used_ -= size;
  fail<OutOfMemory>("[{}] out of memory: {} requested, {} free", name_, format_bytes(size),
                    format_bytes(limit - std::min(before, limit)));
}

void NullBackend::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  check_access("set", tensor, host_stride, rows);
  calls_.push_back({"set", tensor.name, rows.rows * rows.row_bytes});
  tensor.buffer->set_2d(tensor, data, host_stride, rows);
}

void NullBackend::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  check_access("get", tensor, host_stride, rows);
  calls_.push_back({"get", tensor.name, rows.rows * rows.row_bytes});
  tensor.buffer->get_2d(tensor, data, host_stride, rows);
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
  return std::make_unique<NodePlan>(*this, range, options);
}

void NullBackend::compute_async(GraphPlan& plan, int first, int last) {
  check_run(plan, first, last);
  for (const Tensor* node : static_cast<NodePlan&>(plan).nodes(first, last)) {
    if (!failure_.empty()) return;
    calls_.push_back({"compute", node->name, node->bytes()});
    if (node->name == faults_.fail_node) failure_ = fmt::format("node {} failed", node->name);
  }
}

std::unique_ptr<BackendReg> make_family() {
  return std::make_unique<NullFamily>();
}

namespace {

[[maybe_unused]] const bool kIsRegistered = [] {
  Registry::instance().add(make_family());
  return true;
}();

}  // namespace

}  // namespace shoal::null
