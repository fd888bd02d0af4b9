#include "devices/backend.h"

#include <new>
#include <unordered_set>

#include "base/error.h"
#include "devices/device.h"

namespace shoal {

void DeviceStream::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  synchronize();
  check_access("set", tensor, host_stride, rows);
  tensor.buffer->set_2d(tensor, data, host_stride, rows);
}

void DeviceStream::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  synchronize();
  check_access("get", tensor, host_stride, rows);
  tensor.buffer->get_2d(tensor, data, host_stride, rows);
}

void Backend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  check_copy(src, dst);
  if (src.empty()) return;
  if (queued_ == nullptr) queued_ = device().new_event();
  if (to.queued_ == nullptr) to.queued_ = to.device().new_event();
  if (queued_ == nullptr || to.queued_ == nullptr) {
    synchronize();
    if (&to != this) to.synchronize();
    return tensor_copy(src, dst);
  }
  const auto in_host_memory = [](const Tensor& tensor) { return tensor.buffer->is_host() && tensor.is_contiguous(); };
  if (in_host_memory(dst)) {
    to.order_before(*this);
    get_async(src, dst.data, 0, src.bytes());
    order_before(to);
  } else if (in_host_memory(src)) {
    order_before(to);
    to.set_async(dst, src.data, 0, src.bytes());
    to.order_before(*this);
  } else {
    copy_through(to.take_stage(src.bytes()), src, to, dst);
  }
}

void Backend::copy_through(Stage& stage, const Tensor& src, Backend& to, Tensor& dst) {
  get_async(src, stage.bytes.data(), 0, src.bytes());
  order_before(to);
  to.set_async(dst, stage.bytes.data(), 0, src.bytes());
  const auto give_back = [](void* object, const void*, bool) { static_cast<Stage*>(object)->in_use = false; };
  if (to.enqueue({give_back, &stage, nullptr})) return;
  to.queued_->record(to);
  to.queued_->synchronize();
  stage.in_use = false;
}

// Returns an unused staging buffer for a copy from another stream to this stream. This stream reads the buffer after
// the other stream has filled it, and then clears `in_use`.
Backend::Stage& Backend::take_stage(size_t bytes) {
  constexpr int kKept = 2;  // number of idle buffers that stay allocated for later copies
  Stage* taken = nullptr;
  for (const auto& stage : stages_) {
    if (stage->in_use || stage->bytes.size() < bytes) continue;
    if (taken == nullptr || stage->bytes.size() < taken->bytes.size()) taken = stage.get();
  }
  int kept = 0;
  std::erase_if(stages_, [&](const auto& stage) {
    if (stage.get() == taken || stage->in_use) return false;
    return taken == nullptr || ++kept > kKept;
  });
  if (taken == nullptr) {
    taken = stages_.emplace_back(std::make_unique<Stage>()).get();
    taken->bytes.resize(bytes);
  }
  taken->in_use = true;
  return *taken;
}

void Backend::order_before(Backend& to) {
  if (&to == this && members().empty()) return;  // work of a single stream is already in order
  queued_->record(*this);
  queued_->wait(to);
}

void Backend::check_owner(const GraphPlan& plan) const {
  // A run must not allocate. So the names in these messages are built only on failure.
  if (!plan.has_backend()) fail<InvalidArgument>("[{}] the plan's backend was destroyed; make a new plan", name());
  if (&plan.backend() == this) return;
  fail<InvalidArgument>("[{}] the plan was made by another backend ({}); run it on that backend", name(),
                        plan.backend().name());
}

void Backend::check_run(const GraphPlan& plan, int first, int last) const {
  check_owner(plan);
  plan.check_memory();
  if (0 <= first && first <= last && last <= plan.segments()) return;
  fail<InvalidArgument>("[{}] the plan has {} segments, got the range [{}, {})", name(), plan.segments(), first, last);
}

void Backend::check_options(const GraphRange& range, const PlanOptions& options) {
  check_range(range);
  int before = range.begin;
  for (const int cut : options.cuts) {
    require<InvalidArgument>(cut > before && cut < range.end,
                             "cuts of a plan must be ascending node numbers in ({}, {}), got {} after {}", range.begin,
                             range.end, cut, before);
    before = cut;
  }
  for (const Tensor* node : options.shown) {
    const bool inside = node != nullptr && node->id >= range.begin && node->id < range.end &&
                        range.graph->nodes()[static_cast<size_t>(node->id)] == node;
    require<InvalidArgument>(inside, "PlanOptions::shown: {} is not one of the plan's nodes [{}, {})",
                             node != nullptr ? describe(*node) : "nullptr", range.begin, range.end);
  }
  for (const Tensor* node : {options.before, static_cast<const Tensor*>(options.behind)}) {
    if (node == nullptr) continue;
    const auto nodes = range.graph->nodes();
    const bool is_node = !node->is_leaf() && node->id >= 0 && static_cast<size_t>(node->id) < nodes.size() &&
                         nodes[static_cast<size_t>(node->id)] == node;
    const bool outside = node == options.before ? node->id < range.begin : node->id >= range.end;
    require<InvalidArgument>(
        is_node && outside, "PlanOptions::{0}: {1} is not a node {0} the plan's nodes [{2}, {3}) of graph '{4}'",
        node == options.before ? "before" : "behind", describe(*node), range.begin, range.end, range.graph->name());
  }
  const auto inputs = range.graph->inputs();
  std::unordered_set<const Tensor*> known;
  for (const LateInput& late : options.late) {
    const bool ours = late.input != nullptr && late.input->id >= 0 && late.input->is_leaf() &&
                      static_cast<size_t>(late.input->id) < inputs.size() &&
                      inputs[static_cast<size_t>(late.input->id)] == late.input;
    require<InvalidArgument>(ours, "late input {} is not an input of graph '{}'",
                             late.input != nullptr ? describe(*late.input) : "nullptr", range.graph->name());
    require<InvalidArgument>(late.segment >= 0 && static_cast<size_t>(late.segment) <= options.cuts.size(),
                             "late input {} names segment {}, but the plan has segments 0 to {}", describe(*late.input),
                             late.segment, options.cuts.size());
    require<InvalidArgument>(known.insert(late.input).second,
                             "late input {} is listed twice; name only its first segment", describe(*late.input));
  }
}

Status Backend::compute(GraphPlan& plan) {
  return status_of([&] {
    compute_async(plan);
    synchronize();
  });
}

Status Backend::compute(Graph& graph) {
  return status_of([&] {
    compute_async(graph);
    synchronize();
  });
}

// The destruction of `use` may unload the owner's family with its code. So the code that destroys `use` must not be
// part of that family.
bool enqueue_for(const Device& owner, Backend& backend, std::function<void()> work) {
  struct Queued {
    FamilyUse use;
    std::function<void()> work;  // declared after `use`; so `work` is destroyed before `use`
  };
  const auto run = [](void* object, const void*, bool) {
    const std::unique_ptr<Queued> queued(static_cast<Queued*>(object));
    queued->work();
  };
  std::unique_ptr<Queued> queued(new Queued{FamilyUse(owner), std::move(work)});
  if (!backend.enqueue({run, queued.get(), nullptr})) return false;
  (void)queued.release();  // the queued task now owns the object
  return true;
}

namespace {

// Records an event on the stream of each member. Recording an event also releases the work that hold() holds back. A
// backend with members may outlive its device. So only the members record events.
void mark_queued(Backend& backend, std::vector<std::unique_ptr<Event>>& marks) {
  for (Backend* member : backend.members()) mark_queued(*member, marks);
  if (!backend.members().empty()) return;
  if (auto mark = backend.device().new_event()) {
    mark->record(backend);
    marks.push_back(std::move(mark));
  }
}

}  // namespace

// One stream may wait for another stream in a collective. So this function records events on all streams before it
// waits for any of the events.
void finish_queued(Backend& backend) {
  std::vector<std::unique_ptr<Event>> marks;
  mark_queued(backend, marks);
  for (const auto& mark : marks) mark->synchronize();
}

Status status_of(const std::function<void()>& work) {
  try {
    work();
    return Status::kSuccess;
  } catch (const CommError&) {
    return Status::kAborted;
  } catch (const Aborted&) {
    return Status::kAborted;
  } catch (const OutOfMemory&) {
    return Status::kAllocationFailed;
  } catch (const std::bad_alloc&) {
    return Status::kAllocationFailed;
  } catch (const DeviceError&) {
    return Status::kFailed;
  }
}

}  // namespace shoal
