// C functions for backends, plans, events and the comparison of backends.
#include "c/guard.h"
#include "devices/functions.h"
#include "sched/compare.h"

using namespace shoal;
using namespace shoal::c;

namespace {

/// The backend of a plan. Throws InvalidArgument if the backend was freed.
Backend& backend_of(const GraphPlan& plan) {
  require<InvalidArgument>(plan.has_backend(), "the backend of the plan was freed; make a new plan");
  return plan.backend();
}

}  // namespace

shoal_backend* shoal_backend_init(shoal_device* device, const char* params) {
  return guard<shoal_backend*>(__func__, nullptr, [&] {
    return handle_of<shoal_backend>(object(device, "device").init(text_or_empty(params)).release());
  });
}

shoal_backend* shoal_backend_init_by_name(const char* name) {
  return guard<shoal_backend*>(__func__, nullptr, [&] {
    return handle_of<shoal_backend>(Registry::instance().init(text(name, "name")).release());
  });
}

void shoal_backend_free(shoal_backend* backend) {
  destroy(backend);
}

const char* shoal_backend_name(const shoal_backend* backend) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(object(backend, "backend").name()); });
}

shoal_device* shoal_backend_device(const shoal_backend* backend) {
  return guard<shoal_device*>(__func__, nullptr,
                              [&] { return handle_of<shoal_device>(&object(backend, "backend").device()); });
}

shoal_status shoal_backend_set_threads(shoal_backend* backend, int threads) {
  return guard(__func__, [&] {
    Backend& target = object(backend, "backend");
    const auto set_threads = find_function(target.device().reg(), functions::kSetThreads);
    require<InvalidArgument>(set_threads != nullptr, "{} has no number of threads", target.name());
    set_threads(target, threads);
  });
}

shoal_status shoal_backend_set_abort_callback(shoal_backend* backend, shoal_abort_callback abort, void* user) {
  return guard(__func__, [&] {
    Backend& target = object(backend, "backend");
    const bool set =
        target.set_abort_callback(abort == nullptr ? AbortCallback() : [abort, user] { return abort(user); });
    require<DeviceError>(set || abort == nullptr, "{} cannot call an abort callback", target.name());
  });
}

shoal_status shoal_backend_synchronize(shoal_backend* backend) {
  return guard(__func__, [&] { object(backend, "backend").synchronize(); });
}

shoal_plan* shoal_plan_new(shoal_backend* backend, shoal_graph* graph) {
  return guard<shoal_plan*>(__func__, nullptr, [&] {
    return handle_of<shoal_plan>(object(backend, "backend").create_plan(object(graph, "graph")).release());
  });
}

void shoal_plan_free(shoal_plan* plan) {
  destroy(plan);
}

size_t shoal_plan_bytes(const shoal_plan* plan) {
  return guard<size_t>(__func__, 0, [&] { return object(plan, "plan").allocated_bytes(); });
}

shoal_status shoal_plan_compute(shoal_plan* plan) {
  return guard(__func__, [&] {
    Backend& backend = backend_of(object(plan, "plan"));
    backend.compute_async(object(plan, "plan"));
    backend.synchronize();
  });
}

shoal_status shoal_plan_compute_async(shoal_plan* plan) {
  return guard(__func__, [&] { backend_of(object(plan, "plan")).compute_async(object(plan, "plan")); });
}

shoal_status shoal_graph_compute(shoal_backend* backend, shoal_graph* graph) {
  return guard(__func__, [&] {
    object(backend, "backend").compute_async(object(graph, "graph"));
    object(backend, "backend").synchronize();
  });
}

shoal_status shoal_graph_compute_async(shoal_backend* backend, shoal_graph* graph) {
  return guard(__func__, [&] { object(backend, "backend").compute_async(object(graph, "graph")); });
}

shoal_status shoal_tensor_set_async(shoal_backend* backend, shoal_tensor* tensor, const void* data, size_t offset,
                                    size_t bytes) {
  return guard(__func__, [&] {
    object(backend, "backend").set_async(object(tensor, "tensor"), checked(data, "data"), offset, bytes);
  });
}

shoal_status shoal_tensor_get_async(shoal_backend* backend, const shoal_tensor* tensor, void* data, size_t offset,
                                    size_t bytes) {
  return guard(__func__, [&] {
    object(backend, "backend").get_async(object(tensor, "tensor"), checked(data, "data"), offset, bytes);
  });
}

shoal_status shoal_tensor_copy_async(shoal_backend* from_backend, shoal_backend* to_backend, const shoal_tensor* from,
                                     shoal_tensor* to) {
  return guard(__func__, [&] {
    object(from_backend, "from_backend")
        .copy_async(object(from, "from"), object(to_backend, "to_backend"), object(to, "to"));
  });
}

shoal_event* shoal_event_new(shoal_device* device) {
  return guard<shoal_event*>(__func__, nullptr, [&] {
    auto event = object(device, "device").new_event();
    require<DeviceError>(event != nullptr, "{} has no events; call shoal_backend_synchronize() instead",
                         object(device, "device").name());
    return handle_of<shoal_event>(event.release());
  });
}

void shoal_event_free(shoal_event* event) {
  destroy(event);
}

shoal_status shoal_event_record(shoal_event* event, shoal_backend* backend) {
  return guard(__func__, [&] { object(event, "event").record(object(backend, "backend")); });
}

shoal_status shoal_event_wait(shoal_event* event, shoal_backend* backend) {
  return guard(__func__, [&] { object(event, "event").wait(object(backend, "backend")); });
}

shoal_status shoal_event_synchronize(shoal_event* event) {
  return guard(__func__, [&] { object(event, "event").synchronize(); });
}

shoal_status shoal_backend_compare(shoal_backend* first, shoal_backend* second, shoal_graph* graph,
                                   const void* const* inputs, shoal_compare_callback callback, void* user) {
  return guard(__func__, [&] {
    Backend& copy_backend = object(second, "second");
    Graph& original = object(graph, "graph");
    checked(callback, "callback");
    sched::LeafCopies leaves(copy_backend.device());
    sched::Comparison comparison(object(first, "first"), original, copy_backend, leaves);
    const auto values = elements(inputs, original.inputs().size(), "inputs");
    for (size_t i = 0; i < values.size(); ++i) {
      Tensor& input = *original.inputs()[i];
      tensor_set(input, checked(values[i], "inputs"), 0, input.bytes());
    }
    const bool complete = comparison.run([&](const sched::ComparedNode& node) {
      return callback(handle_of<shoal_tensor>(&node.node), node.first.data(), node.second.data(), node.first.size(),
                      user);
    });
    require<Aborted>(complete, "the callback stopped the comparison");
  });
}
