// The family "SIMPLE" with one device, SIMPLE0. The device computes with plain loops on its own thread and runs only a
// few ops on f32 tensors. All other features are complete: an asynchronous stream, events, host tasks, plans in
// segments, and an abort callback. As with a GPU, the memory of this device is not accessible to other devices (is_host
// is false).
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "devices/host_buffer.h"
#include "devices/node_plan.h"
#include "devices/plugin.h"

namespace {

using namespace shoal;
using Index = std::array<int64_t, kMaxDims>;

// Ops: each kernel loops over the indices of the result.

template <class F>
void for_each(const Shape& n, F&& f) {
  for (Index i{}; i[3] < n[3]; ++i[3])
    for (i[2] = 0; i[2] < n[2]; ++i[2])
      for (i[1] = 0; i[1] < n[1]; ++i[1])
        for (i[0] = 0; i[0] < n[0]; ++i[0]) f(i);
}
/// Axes of length 1 are broadcast.
template <class T = float>
T& at(const Tensor& t, const Index& i) {
  std::byte* data = t.data;
  for (size_t axis = 0; axis < i.size(); ++axis) data += static_cast<size_t>(i[axis] % t.shape[axis]) * t.strides[axis];
  return *reinterpret_cast<T*>(data);
}

template <class F>
void binary(Tensor& y) {
  for_each(y.shape, [&](const Index& i) { at(y, i) = F()(at(*y.src[0], i), at(*y.src[1], i)); });
}

void relu(Tensor& y) {
  for_each(y.shape, [&](const Index& i) { at(y, i) = std::max(at(*y.src[0], i), 0.0f); });
}

void scale(Tensor& y) {
  const auto params = std::get<ScaleParams>(y.params);
  for_each(y.shape, [&](const Index& i) { at(y, i) = at(*y.src[0], i) * params.scale + params.bias; });
}

void rms_norm(Tensor& y) {
  const int64_t n = y.shape[0];
  for_each({1, y.shape[1], y.shape[2], y.shape[3]}, [&](Index i) {
    double sum = 0;
    for (i[0] = 0; i[0] < n; ++i[0]) sum += std::pow(at(*y.src[0], i), 2.0);
    const double factor = 1 / std::sqrt(sum / static_cast<double>(n) + std::get<NormParams>(y.params).eps);
    for (i[0] = 0; i[0] < n; ++i[0]) at(y, i) = static_cast<float>(at(*y.src[0], i) * factor);
  });
}

void mul_mat(Tensor& y) {
  const Tensor &a = *y.src[0], &b = *y.src[1];
  for_each(y.shape, [&](const Index& i) {
    const int64_t c = i[2] / (y.shape[2] / a.shape[2]), d = i[3] / (y.shape[3] / a.shape[3]);
    double sum = 0;
    for (int64_t k = 0; k < a.shape[0]; ++k) sum += double{at(a, {k, i[0], c, d})} * at(b, {k, i[1], i[2], i[3]});
    at(y, i) = static_cast<float>(sum);
  });
}

void set_rows(Tensor& y) {  // y is a view of the cache
  const Tensor &rows = *y.src[1], &ids = *y.src[2];
  for_each(rows.shape, [&](const Index& i) {
    const Index at_id{i[1], ids.shape[1] == 1 ? 0 : i[2], ids.shape[2] == 1 ? 0 : i[3]};
    const int64_t row = ids.dtype == DType::kI64 ? at<int64_t>(ids, at_id) : at<int32_t>(ids, at_id);
    if (row >= 0 && row < y.shape[1]) at(y, {i[0], row, i[2], i[3]}) = at(rows, i);
  });
}

using Kernel = void (*)(Tensor& y);
const std::map<Op, Kernel> kKernels{{Op::kAdd, binary<std::plus<>>},
                                    {Op::kMul, binary<std::multiplies<>>},
                                    {Op::kScale, scale},
                                    {Op::kUnary, relu},
                                    {Op::kRmsNorm, rms_norm},
                                    {Op::kMulMat, mul_mat},
                                    {Op::kSetRows, set_rows}};

bool supports(const Tensor& y) {
  if (y.is_leaf() || is_view(y.op)) return true;
  if (const auto* unary = std::get_if<UnaryParams>(&y.params); unary && unary->kind != UnaryKind::kRelu) return false;
  if (const auto* rows = std::get_if<SelectParams>(&y.params); rows && !rows->ranges.empty()) return false;
  const auto is_float = [](const Tensor* x) { return x->dtype == DType::kF32; };
  const auto last = y.op == Op::kSetRows ? y.src.begin() + 2 : y.src.end();  // the remaining sources are indices
  return kKernels.contains(y.op) && is_float(&y) && std::all_of(y.src.begin(), last, is_float);
}

class SimpleBufferType final : public BufferType {
 public:
  explicit SimpleBufferType(Device& device) : device_(device) {}
  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  std::unique_ptr<Buffer> allocate(size_t size) override { return allocate_host_buffer(*this, size); }

 private:
  Device& device_;
};

// The stream: a thread that takes work from a queue.

class Stream {
 public:
  using Work = std::function<void(bool failed)>;
  ~Stream() {
    push(nullptr);
    thread_.join();
  }
  void push(Work work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }
  /// Returns a future that becomes ready when all work queued so far is done.
  std::shared_future<void> mark() {
    const auto done = std::make_shared<std::promise<void>>();
    push([done](bool) { done->set_value(); });
    return done->get_future();
  }
  void synchronize() {
    mark().wait();
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (work == nullptr) return;
      try {
        work(failure_ != nullptr);
      } catch (...) {
        if (failure_ == nullptr) failure_ = std::current_exception();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::exception_ptr failure_;  ///< the host reads this failure only after the queued work has finished
  std::thread thread_{[this] { serve(); }};
};

class SimpleBackend final : public Backend {
 public:
  explicit SimpleBackend(Device& device) : use_(device), device_(device) {}
  ~SimpleBackend() override { plans().clear(); }
  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  Stream& stream() { return stream_; }

  void set_2d_async(Tensor& x, const void* data, size_t host_stride, const Rows& rows) override {
    check_access("set", x, host_stride, rows);
    access("set", x, [=, &x] { x.buffer->set_2d(x, data, host_stride, rows); });
  }
  void get_2d_async(const Tensor& x, void* data, size_t host_stride, const Rows& rows) override {
    check_access("get", x, host_stride, rows);
    access("get", x, [=, &x] { x.buffer->get_2d(x, data, host_stride, rows); });
  }
  bool has_own_memory() const override { return true; }
  void read_bytes_async(const void* from, void* to, size_t size) override { copy_bytes(to, from, size); }
  void write_bytes_async(void* to, const void* from, size_t size) override { copy_bytes(to, from, size); }
  void synchronize() override { stream_.synchronize(); }
  bool enqueue(const HostTask& task) override {
    stream_.push([task](bool failed) { task.run(task.object, task.argument, failed); });
    return true;
  }
  bool set_abort_callback(AbortCallback callback) override {
    stream_.mark().wait();  // does not throw; synchronize() throws a stored failure later
    stop_ = std::move(callback);
    return true;
  }
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override {
    check_options(range, options);
    check_supported(device_, range);
    return std::make_unique<NodePlan>(*this, range, options, [this] { stream_.mark().wait(); });
  }
  void compute_async(GraphPlan& plan, int first, int last) override {
    check_run(plan, first, last);
    push([this, &plan, nodes = static_cast<NodePlan&>(plan).nodes(first, last)] {
      const HeldMemory held(plan);
      for (Tensor* node : nodes) {
        if (stop_ && stop_()) fail<Aborted>("[{}] stopped before {}", name(), node->name);
        if (!is_view(node->op) && !node->empty()) kKernels.at(node->op)(*node);
      }
    });
  }

 private:
  void copy_bytes(void* to, const void* from, size_t size) {
    if (size > 0) push([=] { std::memcpy(to, from, size); });
  }
  /// Throws in the stream if the buffer was freed or reset before the work runs.
  void access(const char* what, const Tensor& x, std::function<void()> work) {
    push([what, memory = x.buffer->ref(), work = std::move(work)] {
      const HeldBuffer held(memory);
      check_held(held, what);
      work();
    });
  }
  void push(std::function<void()> work) {
    stream_.push([work = std::move(work)](bool failed) { failed ? void() : work(); });  // skipped after a failure
  }

  FamilyUse use_;
  Device& device_;
  AbortCallback stop_;
  Stream stream_;
};

class SimpleEvent final : public Event {
 public:
  explicit SimpleEvent(Device& device) : use_(device), device_(device) {}
  Device& device() const override { return device_; }
  void record(Backend& backend) override {
    auto* simple = dynamic_cast<SimpleBackend*>(&backend);
    require<InvalidArgument>(simple != nullptr, "an event of {} cannot be recorded on {}", device_.name(),
                             backend.name());
    mark_ = simple->stream().mark();
  }
  void wait(Backend& backend) override {
    for (Backend* member : backend.members()) wait(*member);
    if (!mark_.valid() || !backend.members().empty()) return;
    // The event may be destroyed before the wait is over, so the lambda has its own copy of mark_. enqueue_for() keeps
    // this family loaded until the wait is over.
    if (!enqueue_for(device_, backend, [mark = mark_] { mark.wait(); })) synchronize();
  }
  void synchronize() override {
    if (mark_.valid()) mark_.wait();
  }

 private:
  FamilyUse use_;
  Device& device_;
  std::shared_future<void> mark_;
};

class SimpleDevice final : public Device {
 public:
  explicit SimpleDevice(BackendReg& reg) : reg_(reg) {}
  std::string name() const override { return "SIMPLE0"; }
  std::string description() const override { return "plain loops on one thread"; }
  DeviceType type() const override { return DeviceType::kAccelerator; }
  DeviceMemory memory() const override {
    DeviceMemory memory;
    std::ifstream info("/proc/meminfo");  // lines like "MemTotal:  8000000 kB"
    std::string line;
    while (std::getline(info, line)) {
      const auto bytes = [&] { return std::stoull(line.substr(line.find(':') + 1)) * 1024; };
      if (line.starts_with("MemAvailable:")) memory.free = bytes();
      if (line.starts_with("MemTotal:")) memory.total = bytes();
    }
    return memory;
  }
  DeviceProps props() const override {
    return {name(), description(), type(), memory(), "", {.async = true, .events = true, .peers = {}}};
  }
  BackendReg& reg() const override { return reg_; }
  std::unique_ptr<Backend> init(std::string_view params) override {
    const Params none(name(), params, {});  // rejects all parameters
    return std::make_unique<SimpleBackend>(*this);
  }
  BufferType& buffer_type() override { return type_; }
  bool supports_op(const Tensor& node) const override { return supports(node); }
  std::unique_ptr<Event> new_event() override { return std::make_unique<SimpleEvent>(*this); }

 private:
  BackendReg& reg_;
  SimpleBufferType type_{*this};
};

class SimpleFamily final : public BackendReg {
 public:
  std::string name() const override { return "SIMPLE"; }
  std::span<Device* const> devices() const override { return {&list_, 1}; }

 private:
  SimpleDevice device_{*this};
  Device* list_ = &device_;
};

}  // namespace

extern "C" const PluginInfo* shoal_plugin() {
  const auto score = [] { return 1; };  // the family runs on any machine
  const auto make_family = []() -> std::unique_ptr<BackendReg> { return std::make_unique<SimpleFamily>(); };
  static const PluginInfo info = plugin_info("SIMPLE", "", score, make_family);
  return &info;
}
