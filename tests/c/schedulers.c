// The scheduler in C: a meta device of CPU0 and CPU1 stores the first weight, and CPU2 stores the second weight.
#include "tests/c/check.h"

static shoal_status by_rows(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  (void)tensor, (void)user;
  state->axis = SHOAL_AXIS_1;
  state->segments = 1;
  state->lengths[0] = 3, state->lengths[1] = 1;
  return SHOAL_OK;
}

/// Observes the node `name`. Stops the run at this node if `stops` is true.
struct Observer {
  const char* name;
  float sum;
  bool stops;
};

static bool observe(const shoal_tensor* node, bool ask, void* user) {
  struct Observer* observer = user;
  if (ask) return strcmp(shoal_tensor_name(node), observer->name) == 0;
  float values[4];
  CHECK_OK(shoal_tensor_get(node, values, 0, sizeof values));
  observer->sum = values[0] + values[1] + values[2] + values[3];
  return !observer->stops;
}

static shoal_weights* weight_on(shoal_device* device, const char* name, float diagonal, shoal_buffer** memory) {
  const int64_t shape[] = {4, 4};
  float values[16] = {0};
  for (int i = 0; i < 4; ++i) values[i * 5] = diagonal;
  shoal_weights* weights = shoal_weights_new();
  shoal_tensor* w = shoal_weights_add(weights, name, SHOAL_F32, 2, shape, SHOAL_ROLE_WEIGHT);
  *memory = shoal_weights_allocate(weights, shoal_device_buffer_type(device), SHOAL_USAGE_WEIGHTS);
  CHECK(*memory != NULL);
  CHECK_OK(shoal_tensor_set(w, values, 0, sizeof values));
  return weights;
}

static void run(shoal_backend* meta, shoal_backend* cpu, shoal_tensor* first, shoal_tensor* second) {
  const int64_t shape[] = {4};
  shoal_graph* graph = shoal_graph_new("g");
  shoal_tensor* x = shoal_graph_input(graph, "x", SHOAL_F32, 1, shape);
  shoal_tensor* h = shoal_graph_node(graph, "mul_mat", (shoal_tensor*[]){first, x}, 2, NULL, "h");
  shoal_tensor* s = shoal_graph_node(graph, "scale", &h, 1, "{scale=2}", "s");
  shoal_tensor* y = shoal_graph_node(graph, "mul_mat", (shoal_tensor*[]){second, s}, 2, NULL, "y");
  CHECK_OK(shoal_graph_output(graph, y));

  shoal_scheduler_options options = SHOAL_SCHEDULER_OPTIONS_INIT;
  options.kept_plans = 2;
  shoal_scheduler* scheduler = shoal_scheduler_new((shoal_backend*[]){meta, cpu}, 2, &options);
  CHECK(scheduler != NULL && shoal_scheduler_backend_count(scheduler) == 2);
  CHECK(shoal_scheduler_backend(scheduler, 1) == cpu);
  CHECK_FAILS(shoal_scheduler_backend(scheduler, 2) == NULL, SHOAL_INVALID_ARGUMENT, "2");
  CHECK_FAILS(shoal_scheduler_splits(scheduler) == 0, SHOAL_INVALID_ARGUMENT, "no scheduled graph");
  shoal_blob* text = shoal_scheduler_schedule_text(scheduler, graph);
  CHECK(strstr(shoal_blob_data(text), "schedule of g: 2 splits on 2 backends") != NULL);
  shoal_blob_free(text);

  CHECK_OK(shoal_scheduler_reserve(scheduler, graph));
  CHECK_OK(shoal_scheduler_set_backend(scheduler, s, cpu));
  CHECK_OK(shoal_scheduler_allocate(scheduler, graph));
  CHECK(shoal_scheduler_backend_of(scheduler, h) == meta && shoal_scheduler_backend_of(scheduler, s) == cpu);
  CHECK(shoal_scheduler_splits(scheduler) == 2 && shoal_scheduler_copies(scheduler) == 2);
  CHECK(shoal_scheduler_buffer_size(scheduler, 0) > 0);
  CHECK(shoal_buffer_type_device(shoal_scheduler_buffer_type(scheduler, 1)) == shoal_device_get(2));

  float values[] = {1, 2, 3, 4}, result[4] = {0};
  CHECK_OK(shoal_tensor_set(x, values, 0, sizeof values));
  CHECK_OK(shoal_scheduler_compute_async(scheduler, graph));
  CHECK_OK(shoal_scheduler_get_async(scheduler, y, result, 0, sizeof result));
  CHECK_OK(shoal_scheduler_synchronize(scheduler));
  for (int i = 0; i < 4; ++i) CHECK(result[i] == values[i] * 2 * 3 * 5);

  struct Observer observer = {"h", 0, false};
  CHECK_OK(shoal_scheduler_set_eval_callback(scheduler, observe, &observer));
  CHECK_OK(shoal_scheduler_compute(scheduler, graph));
  CHECK(observer.sum == 30);
  observer.stops = true;
  CHECK_FAILS(shoal_scheduler_compute(scheduler, graph) == SHOAL_ABORTED, SHOAL_ABORTED, "callback");
  CHECK_OK(shoal_scheduler_set_eval_callback(scheduler, NULL, NULL));
  CHECK_OK(shoal_scheduler_set_backend(scheduler, s, NULL));
  CHECK_OK(shoal_scheduler_compute(scheduler, graph));
  CHECK(shoal_scheduler_backend_of(scheduler, s) == meta);
  CHECK_OK(shoal_scheduler_reset(scheduler));
  shoal_scheduler_free(scheduler);
  shoal_graph_free(graph);
}

void test_schedulers(const char* model) {
  (void)model;
  shoal_device* members[] = {shoal_device_get(0), shoal_device_get(1)};
  shoal_device* device = shoal_meta_device_new(members, 2, by_rows, NULL, NULL);
  shoal_backend *meta = shoal_backend_init(device, NULL), *cpu = shoal_backend_init(shoal_device_get(2), NULL);
  shoal_buffer *first_memory, *second_memory;
  shoal_weights* first = weight_on(device, "first", 3, &first_memory);
  shoal_weights* second = weight_on(shoal_device_get(2), "second", 5, &second_memory);
  run(meta, cpu, shoal_weights_get(first, 0), shoal_weights_get(second, 0));
  CHECK_FAILS(shoal_scheduler_new((shoal_backend*[]){cpu, cpu}, 2, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "twice");
  shoal_scheduler_options options = SHOAL_SCHEDULER_OPTIONS_INIT;
  options.copies = 0;
  CHECK_FAILS(shoal_scheduler_new(&cpu, 1, &options) == NULL, SHOAL_INVALID_ARGUMENT, "copies");
  shoal_backend_free(meta), shoal_backend_free(cpu);
  shoal_buffer_free(first_memory), shoal_buffer_free(second_memory);
  shoal_weights_free(first), shoal_weights_free(second);
  CHECK_OK(shoal_meta_device_free(device));
}
