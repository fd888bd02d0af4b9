#include "devices/cuda/cuda_backend.h"

#include "base/error.h"
#include "devices/cuda/cuda_plan.h"

namespace shoal::cuda {

CudaBackend::CudaBackend(CudaDevice& device, bool graphs)
    : device_(device),
      graphs_(graphs),
      launcher_(device.name(), device.gpu().traits, [&device](cudaError_t why) { device.note_no_graph(why); }) {}

void CudaBackend::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  check_access("set", tensor, host_stride, rows);
  if (rows.rows != 0 && rows.row_bytes != 0)
    launcher_.push(SetWork{&tensor, tensor.buffer->ref(), data, host_stride, rows});
}

void CudaBackend::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  check_access("get", tensor, host_stride, rows);
  if (rows.rows != 0 && rows.row_bytes != 0)
    launcher_.push(GetWork{&tensor, tensor.buffer->ref(), data, host_stride, rows});
}

void CudaBackend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  check_copy(src, dst);
  auto* other = dynamic_cast<CudaBackend*>(&to);
  const bool direct = other != nullptr && cuda_device_of(src) != nullptr && cuda_device_of(dst) != nullptr &&
                      src.is_contiguous() && dst.is_contiguous();
  if (!direct) return Backend::copy_async(src, to, dst);
  if (src.empty()) return;
  // The other backend's earlier work may still use dst, so the copy waits for the earlier work. The other backend's
  // later work must see the copied data, so the later work waits for the copy.
  if (other != this) wait(other->here());
  launcher_.push(CopyWork{&src, &dst, src.buffer->ref(), dst.buffer->ref()});
  if (other != this) other->wait(here());
}

std::unique_ptr<GraphPlan> CudaBackend::create_plan(const GraphRange& range, const PlanOptions& options) {
  check_options(range, options);
  return std::make_unique<CudaPlan>(*this, range, options);
}

bool CudaBackend::update_plan(GraphPlan& plan, Graph& graph) {
  check_owner(plan);
  auto& own = static_cast<CudaPlan&>(plan);
  if (!own.fits(graph)) return false;
  finish();
  own.move_to(graph);
  return true;
}

void CudaBackend::compute_async(GraphPlan& plan, int first, int last) {
  check_run(plan, first, last);
  auto& own = static_cast<CudaPlan&>(plan);
  own.has_run();
  if (first != last) launcher_.push(ComputeWork{&own, first, last});
}

bool CudaBackend::set_abort_callback(AbortCallback callback) {
  finish();
  launcher_.set_abort_callback(std::move(callback));
  return true;
}

bool CudaBackend::enqueue(const HostTask& task) {
  launcher_.push(task);
  return true;
}

void CudaBackend::set_tracer(Tracer* tracer) {
  launcher_.set_trace(nullptr);
  trace_ = tracer != nullptr ? tracer->row(name()) : nullptr;
  launcher_.set_trace(trace_.get());
}

void CudaBackend::read_bytes_async(const void* from, void* to, size_t size) {
  if (size > 0) launcher_.push(BytesWork{from, to, size, cudaMemcpyDeviceToHost});
}

void CudaBackend::write_bytes_async(void* to, const void* from, size_t size) {
  if (size > 0) launcher_.push(BytesWork{from, to, size, cudaMemcpyHostToDevice});
}

bool CudaBackend::start_recording() {
  if (!graphs_) return false;
  // The creation of a graph may wait for the GPU. If a kernel on the GPU waited for a kernel that is launched only
  // after the creation, the wait would never end. So every member of a mesh finishes its queued work before the
  // recording starts.
  launcher_.finish();
  launcher_.push(StartRecordingWork{});
  return true;
}

std::unique_ptr<Recording> CudaBackend::stop_recording() {
  std::unique_ptr<CudaRecording> recording;
  launcher_.push(StopRecordingWork{&recording});
  launcher_.finish();
  return recording;
}

void CudaBackend::replay_async(Recording& recording) {
  launcher_.push(ReplayWork{static_cast<CudaRecording*>(&recording)});
}

Mark* CudaBackend::here() {
  Mark* mark = Mark::take(device_.gpu().traits.gpu);
  mark->add_reference();  // the launcher drops this reference
  launcher_.push(RecordWork{mark});
  return mark;
}

void CudaBackend::wait(Mark* mark) {
  launcher_.push(WaitWork{mark});
}

std::vector<Place> places_of(std::span<Backend* const> backends) {
  std::vector<Place> places;
  for (Backend* backend : backends) {
    const LaunchContext& context = dynamic_cast<CudaBackend&>(*backend).launcher().context();
    places.push_back({context.gpu.gpu, context.stream, backend->name()});
  }
  return places;
}

CudaEvent::~CudaEvent() {
  if (recorded_ != nullptr) recorded_->drop();
}

void CudaEvent::record(Backend& backend) {
  auto* cuda = dynamic_cast<CudaBackend*>(&backend);
  require<InvalidArgument>(cuda != nullptr && &cuda->device() == &device_, "an event of {} cannot be recorded on {}",
                           device_.name(), backend.name());
  Mark* before = std::exchange(recorded_, cuda->here());
  if (before != nullptr) before->drop();
}

void CudaEvent::wait(Backend& backend) {
  if (recorded_ == nullptr) return;
  if (!backend.members().empty()) {
    for (Backend* member : backend.members()) wait(*member);
    return;
  }
  recorded_->add_reference();
  if (auto* cuda = dynamic_cast<CudaBackend*>(&backend)) return cuda->wait(recorded_);
  const auto wait_there = [mark = recorded_] {
    mark->synchronize();
    mark->drop();
  };
  if (!enqueue_for(device_, backend, wait_there)) wait_there();
}

void CudaEvent::synchronize() {
  if (recorded_ != nullptr) recorded_->synchronize();
}

}  // namespace shoal::cuda
