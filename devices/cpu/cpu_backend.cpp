#include "devices/cpu/cpu_backend.h"

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/cpu_plan.h"

namespace shoal::cpu {
namespace {

std::unique_ptr<Worker> make_worker(const CpuDevice& device, int threads) {
  return std::make_unique<Worker>(device.name(), cores_of_team(device.cores(), threads), threads, device.slowdown());
}

}  // namespace

CpuBackend::CpuBackend(CpuDevice& device, int threads)
    : device_(device), use_(device), threads_(threads), worker_(make_worker(device, threads)) {}

void CpuBackend::set_threads(int threads) {
  require<InvalidArgument>(threads >= 1 && threads <= kMaxThreads, "[{}] threads must be from 1 to {}, got {}", name(),
                           kMaxThreads, threads);
  synchronize();
  plans().clear();
  device_.expect_threads(threads);
  auto worker = make_worker(device_, threads);
  worker->set_abort_callback(abort_);
  worker->set_trace(trace_.get());
  for (int i = 0; i < holds_; ++i) worker->hold();
  worker_ = std::move(worker);
  threads_ = threads;
}

void CpuBackend::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  check_access("set", tensor, host_stride, rows);
  worker_->push(SetWork{&tensor, tensor.buffer->ref(), data, host_stride, rows});
}

void CpuBackend::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  check_access("get", tensor, host_stride, rows);
  worker_->push(GetWork{&tensor, tensor.buffer->ref(), data, host_stride, rows});
}

void CpuBackend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  auto* other = dynamic_cast<CpuBackend*>(&to);
  if (other == nullptr) return Backend::copy_async(src, to, dst);
  check_copy(src, dst);
  // Earlier work of the other backend may still use dst, and later work of that backend must see the copy.
  if (other != this) wait(other->here());
  worker_->push(CopyWork{&src, &dst, src.buffer->ref(), dst.buffer->ref()});
  if (other != this) other->wait(here());
}

std::unique_ptr<GraphPlan> CpuBackend::create_plan(const GraphRange& range, const PlanOptions& options) {
  check_options(range, options);
  return std::make_unique<CpuPlan>(*this, range, options);
}

bool CpuBackend::update_plan(GraphPlan& plan, Graph& graph) {
  check_owner(plan);
  auto& own = static_cast<CpuPlan&>(plan);
  if (!own.fits(graph)) return false;
  own.wait();
  own.move_to(graph);
  return true;
}

void CpuBackend::compute_async(GraphPlan& plan, int first, int last) {
  check_run(plan, first, last);
  auto& own = static_cast<CpuPlan&>(plan);
  const uint64_t position = worker_->push(ComputeWork{&own, first, last});
  own.set_last_run({&worker_->timeline(), position});
}

bool CpuBackend::set_abort_callback(AbortCallback callback) {
  wait_for(here());
  abort_ = std::move(callback);
  worker_->set_abort_callback(abort_);
  return true;
}

bool CpuBackend::enqueue(const HostTask& task) {
  worker_->push(task);
  return true;
}

void CpuBackend::set_tracer(Tracer* tracer) {
  wait_for(here());
  worker_->set_trace(nullptr);
  trace_ = tracer != nullptr ? tracer->row(name()) : nullptr;
  worker_->set_trace(trace_.get());
}

void CpuEvent::record(Backend& backend) {
  auto* cpu = dynamic_cast<CpuBackend*>(&backend);
  require<InvalidArgument>(cpu != nullptr && &cpu->device() == &device_, "an event of {} cannot be recorded on {}",
                           device_.name(), backend.name());
  recorded_ = cpu->here();
}

void CpuEvent::wait(Backend& backend) {
  if (recorded_.timeline == nullptr) return;
  if (!backend.members().empty()) {
    for (Backend* member : backend.members()) wait(*member);
    return;
  }
  if (auto* cpu = dynamic_cast<CpuBackend*>(&backend)) return cpu->wait(recorded_);
  // A stream of another family waits in a host task. The event may be destroyed before the task runs. This is safe
  // because the task uses only the timeline, which is never freed.
  static_assert(sizeof(const void*) >= sizeof(recorded_.position));
  const auto wait = [](void* timeline, const void* position, bool) {
    static_cast<Timeline*>(timeline)->finished.wait_for(reinterpret_cast<uintptr_t>(position), Waiter::kHost);
  };
  auto* timeline = const_cast<Timeline*>(recorded_.timeline);
  if (!backend.enqueue({wait, timeline, reinterpret_cast<const void*>(recorded_.position)})) synchronize();
}

void CpuEvent::synchronize() {
  if (recorded_.timeline != nullptr) recorded_.timeline->finished.wait_for(recorded_.position, Waiter::kHost);
}

}  // namespace shoal::cpu
