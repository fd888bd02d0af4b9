// A two-layer perceptron on two devices that act as one device, in C.
#include <shoal.h>
#include <stdio.h>
#include <stdlib.h>

static void* check(void* object) {
  if (object == NULL) {
    fprintf(stderr, "c_mlp: error: %s\n", shoal_last_error());
    exit(1);
  }
  return object;
}

// Device 0 stores 4 of the 6 hidden elements, and device 1 stores 2. The hidden elements are axis 1 of `up` and axis 0
// of `down`.
static shoal_status split(const shoal_tensor* weight, shoal_split_state* state, void* user) {
  (void)user;
  state->axis = shoal_tensor_name(weight)[0] == 'u' ? SHOAL_AXIS_1 : SHOAL_AXIS_0;
  state->segments = 1;
  state->lengths[0] = 4;
  state->lengths[1] = 2;
  return SHOAL_OK;
}

int main(void) {
  shoal_cpu_configure("devices=2,threads=1");  // for GPUs: shoal_plugin_load_all(), CUDA0 and CUDA1
  shoal_device* members[] = {check(shoal_device_by_name("CPU0")), check(shoal_device_by_name("CPU1"))};
  shoal_device* device = check(shoal_meta_device_new(members, 2, split, NULL, NULL));

  // y = relu(down * relu(up * x)). The first axis is innermost, so `up` maps 4 elements to 6.
  shoal_weights* weights = check(shoal_weights_new());
  shoal_graph* graph = check(shoal_graph_parse("mlp",
                                               "input  %x f32 [4]\n"
                                               "weight %up f32 [4, 6]\n"
                                               "weight %down f32 [6, 3]\n"
                                               "%hidden = mul_mat(%up, %x)\n"
                                               "%active = unary(%hidden) {kind=relu}\n"
                                               "%sum = mul_mat(%down, %active)\n"
                                               "%y = unary(%sum) {kind=relu}\n"
                                               "output %y\n",
                                               weights));
  shoal_buffer* memory = check(shoal_weights_allocate(weights, shoal_device_weights_type(device), SHOAL_USAGE_WEIGHTS));
  float up[24], down[18], x[4] = {1, 2, 3, 4}, y[3];
  for (int i = 0; i < 24; ++i) up[i] = 1;
  for (int i = 0; i < 18; ++i) down[i] = (float)i;
  shoal_tensor_set(shoal_weights_find(weights, "up"), up, 0, sizeof up);
  shoal_tensor_set(shoal_weights_find(weights, "down"), down, 0, sizeof down);

  // The plan has one all-reduce, which adds the partial sums of both devices before the last relu.
  shoal_backend* backend = check(shoal_backend_init(device, NULL));
  shoal_plan* plan = check(shoal_plan_new(backend, graph));
  shoal_blob* text = check(shoal_plan_text(plan));
  printf("%s", (const char*)shoal_blob_data(text));

  shoal_tensor_set(shoal_graph_find(graph, "x"), x, 0, sizeof x);
  if (shoal_plan_compute(plan) != SHOAL_OK) check(NULL);
  shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y);
  printf("y = %g %g %g\n", y[0], y[1], y[2]);  // 10 * (0+..+5), 10 * (6+..+11), 10 * (12+..+17)

  shoal_blob_free(text);
  shoal_plan_free(plan);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
  return shoal_meta_device_free(device) == SHOAL_OK ? 0 : 1;
}
