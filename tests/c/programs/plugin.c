// Loads the plug-in of the first argument, and runs x + x on its device of the second argument. A meta device
// of this device and CPU0 then divides a matrix product. Without a second argument, the device is SIMPLE0, and the
// program unloads the plug-in at the end.
#include <shoal.h>
#include <stdio.h>
#include <stdlib.h>

static void check(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, shoal_last_error());
  exit(1);
}

static void add_on(shoal_device* device) {
  const int64_t shape[] = {2};
  shoal_graph* graph = shoal_graph_new("sum");
  shoal_tensor* x = shoal_graph_input(graph, "x", SHOAL_F32, 1, shape);
  shoal_tensor* sources[] = {x, x};
  shoal_tensor* y = shoal_graph_node(graph, "add", sources, 2, NULL, "y");
  check(shoal_graph_output(graph, y) == SHOAL_OK, "graph");
  shoal_backend* backend = shoal_backend_init(device, NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  check(plan != NULL, "plan");
  float values[] = {1, 2};
  check(shoal_tensor_set(x, values, 0, sizeof values) == SHOAL_OK, "set");
  check(shoal_plan_compute(plan) == SHOAL_OK, "compute");
  check(shoal_tensor_get(y, values, 0, sizeof values) == SHOAL_OK, "get");
  check(values[0] == 2 && values[1] == 4, "values");
  shoal_plan_free(plan);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
}

static shoal_status by_rows(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  (void)tensor, (void)user;
  state->axis = SHOAL_AXIS_1;
  state->segments = 1;
  state->lengths[0] = 2;
  state->lengths[1] = 1;
  return SHOAL_OK;
}

static void multiply_on(shoal_device* device) {
  shoal_device* members[] = {device, shoal_device_by_name("CPU0")};
  shoal_device* both = shoal_meta_device_new(members, 2, by_rows, NULL, NULL);
  check(both != NULL, "meta device");
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse(
      "product", "input %x f32 [2]\nweight %w f32 [2, 3]\n%y = mul_mat(%w, %x)\noutput %y\n", weights);
  shoal_buffer* memory = shoal_weights_allocate(weights, shoal_device_buffer_type(both), SHOAL_USAGE_WEIGHTS);
  check(memory != NULL, "memory");
  const float rows[] = {1, 2, 3, 4, 5, 6}, x[] = {10, 1};
  float y[3];
  check(shoal_tensor_set(shoal_weights_get(weights, 0), rows, 0, sizeof rows) == SHOAL_OK, "set");
  shoal_backend* backend = shoal_backend_init(both, NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  check(plan != NULL, "plan");
  check(shoal_tensor_set(shoal_graph_find(graph, "x"), x, 0, sizeof x) == SHOAL_OK, "set");
  check(shoal_plan_compute(plan) == SHOAL_OK, "compute");
  check(shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y) == SHOAL_OK, "get");
  check(y[0] == 12 && y[1] == 34 && y[2] == 56, "values");
  shoal_plan_free(plan);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
  check(shoal_meta_device_free(both) == SHOAL_OK, "free");
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  check(shoal_plugin_load(argv[1]) == SHOAL_OK, "load");
  shoal_device* device = shoal_device_by_name(argc > 2 ? argv[2] : "SIMPLE0");
  check(device != NULL, "device");
  shoal_device_props props = SHOAL_DEVICE_PROPS_INIT;
  check(shoal_device_get_props(device, &props) == SHOAL_OK, "props");
  add_on(device);
  multiply_on(device);
  if (argc == 2) {
    check(shoal_plugin_unload(props.family) == SHOAL_OK, "unload");
    check(shoal_device_by_name("SIMPLE0") == NULL, "device after unload");
  }
  return 0;
}
