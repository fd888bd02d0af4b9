// External ops in C: an op with a rule runs on a meta device.
#include "graph/external_op_c.h"
#include "tests/c/check.h"

static int32_t infer(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  if (node->sources[0].dtype != SHOAL_OP_F32) {
    snprintf(error, error_size, "a source of dtype f32");
    return 1;
  }
  *result = node->sources[0];
  return 0;
}

static void square(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t* shape = node->result->shape;
  const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
  const float* from = node->sources[0].data;
  float* to = node->result->data;
  for (int64_t i = launch->part; i < count; i += launch->parts) to[i] = from[i] * from[i];
}

static shoal_status by_columns(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  (void)tensor, (void)user;
  state->axis = SHOAL_AXIS_1;
  return SHOAL_OK;
}

static void runs_on_a_meta_device(void) {
  shoal_device* members[] = {shoal_device_get(0), shoal_device_get(1)};
  shoal_device* device = shoal_meta_device_new(members, 2, by_columns, NULL, NULL);
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph =
      shoal_graph_parse("g", "weight %w f32 [2, 4]\n%y = external(%w) {op=\"c_square\"}\noutput %y\n", weights);
  CHECK(graph != NULL);
  shoal_buffer* memory = shoal_weights_allocate(weights, shoal_device_buffer_type(device), SHOAL_USAGE_WEIGHTS);
  const float w[] = {1, 2, 3, 4, 5, 6, 7, 8};
  float y[8];
  CHECK_OK(shoal_tensor_set(shoal_weights_get(weights, 0), w, 0, sizeof w));
  shoal_backend* backend = shoal_backend_init(device, NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  CHECK(plan != NULL);
  shoal_blob* layout = shoal_tensor_layout_text(shoal_graph_find(graph, "y"));
  CHECK(strcmp(shoal_blob_data(layout), "split 1 [2:{0} 2:{1}]") == 0);
  shoal_blob_free(layout);
  CHECK_OK(shoal_plan_compute(plan));
  CHECK_OK(shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y));
  for (int i = 0; i < 8; ++i) CHECK(y[i] == w[i] * w[i]);
  CHECK_FAILS(shoal_op_unregister("c_square") != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "c_square");
  shoal_plan_free(plan);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
  CHECK_OK(shoal_meta_device_free(device));
}

void test_ops(const char* model) {
  (void)model;
  const shoal_op_kernel kernel = {.size = sizeof kernel, .family = "CPU", .run = square};
  const shoal_op op = {.size = sizeof op,
                       .name = "c_square",
                       .rule = "a b c d -> a b c d",
                       .min_sources = 1,
                       .max_sources = 1,
                       .infer = infer,
                       .kernels = &kernel,
                       .kernel_count = 1};
  CHECK_OK(shoal_op_register(&op));
  CHECK_FAILS(shoal_op_register(&op) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "c_square");
  runs_on_a_meta_device();
  const char* const graphs[] = {"input %x f32 [3, 4, 2, 2]\n%y = external(%x) {op=\"c_square\"}\noutput %y\n"};
  shoal_blob* report = shoal_op_check_text("c_square", graphs, 1);
  CHECK(report != NULL && strcmp(shoal_blob_data(report), "op 'c_square' is correct") == 0);
  shoal_blob_free(report);
  CHECK_OK(shoal_op_unregister("c_square"));
  CHECK_FAILS(shoal_op_check_text("c_square", graphs, 1) == NULL, SHOAL_INVALID_ARGUMENT, "c_square");
}
