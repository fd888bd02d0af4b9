// C functions for schedulers.
#include "c/guard.h"

using namespace shoal;
using namespace shoal::c;

namespace {

int index_of(size_t index) {
  require<InvalidArgument>(index < 1U << 30, "there is no backend number {}", index);
  return static_cast<int>(index);
}

sched::SchedulerOptions options_of(const shoal_scheduler_options* given) {
  const shoal_scheduler_options options = read(given, SHOAL_SCHEDULER_OPTIONS_INIT, "options");
  sched::SchedulerOptions result;
  result.copies = options.copies;
  result.kept_graphs = options.kept_plans;
  result.op_offload = !options.no_op_offload;
  return result;
}

}  // namespace

shoal_scheduler* shoal_scheduler_new(shoal_backend* const* backends, size_t backend_count,
                                     const shoal_scheduler_options* options) {
  return guard<shoal_scheduler*>(__func__, nullptr, [&] {
    return handle_of<shoal_scheduler>(
        new sched::Scheduler(objects(backends, backend_count, "backends"), options_of(options)));
  });
}

void shoal_scheduler_free(shoal_scheduler* scheduler) {
  destroy(scheduler);
}

shoal_status shoal_scheduler_reserve(shoal_scheduler* scheduler, shoal_graph* graph) {
  return guard(__func__, [&] {
    require<OutOfMemory>(object(scheduler, "scheduler").reserve(object(graph, "graph")),
                         "memory for the graph is insufficient; use smaller batches or more devices");
  });
}

shoal_status shoal_scheduler_allocate(shoal_scheduler* scheduler, shoal_graph* graph) {
  return guard(__func__, [&] { object(scheduler, "scheduler").allocate(object(graph, "graph")); });
}

shoal_status shoal_scheduler_compute_async(shoal_scheduler* scheduler, shoal_graph* graph) {
  return guard(__func__, [&] {
    require<Aborted>(object(scheduler, "scheduler").compute_async(object(graph, "graph")),
                     "the evaluation callback stopped the run");
  });
}

shoal_status shoal_scheduler_compute(shoal_scheduler* scheduler, shoal_graph* graph) {
  const shoal_status status = shoal_scheduler_compute_async(scheduler, graph);
  return status == SHOAL_OK ? shoal_scheduler_synchronize(scheduler) : status;
}

shoal_status shoal_scheduler_get_async(shoal_scheduler* scheduler, const shoal_tensor* tensor, void* data,
                                       size_t offset, size_t bytes) {
  return guard(__func__, [&] {
    object(scheduler, "scheduler").get_async(object(tensor, "tensor"), checked(data, "data"), offset, bytes);
  });
}

shoal_status shoal_scheduler_synchronize(shoal_scheduler* scheduler) {
  return guard(__func__, [&] { object(scheduler, "scheduler").synchronize(); });
}

shoal_status shoal_scheduler_reset(shoal_scheduler* scheduler) {
  return guard(__func__, [&] { object(scheduler, "scheduler").reset(); });
}

shoal_status shoal_scheduler_set_backend(shoal_scheduler* scheduler, const shoal_tensor* node,
                                         const shoal_backend* backend) {
  return guard(__func__, [&] {
    object(scheduler, "scheduler")
        .set_backend(object(node, "node"), backend == nullptr ? nullptr : &object(backend, "backend"));
  });
}

shoal_backend* shoal_scheduler_backend_of(const shoal_scheduler* scheduler, const shoal_tensor* node) {
  return guard<shoal_backend*>(__func__, nullptr, [&] {
    return handle_of<shoal_backend>(object(scheduler, "scheduler").backend_of(object(node, "node")));
  });
}

size_t shoal_scheduler_backend_count(const shoal_scheduler* scheduler) {
  return guard<size_t>(__func__, 0, [&] { return static_cast<size_t>(object(scheduler, "scheduler").backends()); });
}

shoal_backend* shoal_scheduler_backend(const shoal_scheduler* scheduler, size_t index) {
  return guard<shoal_backend*>(__func__, nullptr, [&] {
    return handle_of<shoal_backend>(&object(scheduler, "scheduler").backend(index_of(index)));
  });
}

shoal_buffer_type* shoal_scheduler_buffer_type(const shoal_scheduler* scheduler, size_t index) {
  return guard<shoal_buffer_type*>(__func__, nullptr, [&] {
    return handle_of<shoal_buffer_type>(&object(scheduler, "scheduler").buffer_type(index_of(index)));
  });
}

size_t shoal_scheduler_buffer_size(const shoal_scheduler* scheduler, size_t index) {
  return guard<size_t>(__func__, 0, [&] { return object(scheduler, "scheduler").buffer_size(index_of(index)); });
}

size_t shoal_scheduler_splits(const shoal_scheduler* scheduler) {
  return guard<size_t>(__func__, 0, [&] { return static_cast<size_t>(object(scheduler, "scheduler").splits()); });
}

size_t shoal_scheduler_copies(const shoal_scheduler* scheduler) {
  return guard<size_t>(__func__, 0,
                       [&] { return static_cast<size_t>(object(scheduler, "scheduler").schedule().copies()); });
}

shoal_blob* shoal_scheduler_schedule_text(const shoal_scheduler* scheduler, const shoal_graph* graph) {
  return guard<shoal_blob*>(__func__, nullptr, [&] {
    return blob_of(sched::to_string(object(scheduler, "scheduler").split(object(graph, "graph"))));
  });
}

shoal_status shoal_scheduler_set_eval_callback(shoal_scheduler* scheduler, shoal_eval_callback callback, void* user) {
  return guard(__func__, [&] {
    sched::EvalCallback wrapped;
    if (callback != nullptr) {
      wrapped = [callback, user](const Tensor& node, bool ask) {
        return callback(handle_of<shoal_tensor>(&node), ask, user);
      };
    }
    object(scheduler, "scheduler").set_eval_callback(std::move(wrapped));
  });
}
