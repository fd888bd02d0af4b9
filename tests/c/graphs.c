// Graphs, plans and the comparison of backends in C.
#include "tests/c/check.h"

static const char* const kText =
    "input  %x f32 [4, 2]\n"
    "weight %w f32 [4, 3]\n"
    "%h = mul_mat(%w, %x)  # f32 [3, 2]\n"
    "%y = scale(%h) {scale=0.5, bias=1}  # f32 [3, 2]\n"
    "output %y\n";

/// Builds the graph of kText with one call per node.
static shoal_graph* build(shoal_weights* weights) {
  const int64_t x_shape[] = {4, 2}, w_shape[] = {4, 3};
  shoal_graph* graph = shoal_graph_new("built");
  shoal_tensor* sources[] = {shoal_weights_add(weights, "w", SHOAL_F32, 2, w_shape, SHOAL_ROLE_WEIGHT),
                             shoal_graph_input(graph, "x", SHOAL_F32, 2, x_shape)};
  shoal_tensor* h = shoal_graph_node(graph, "mul_mat", sources, 2, NULL, "h");
  shoal_tensor* y = shoal_graph_node(graph, "scale", &h, 1, "scale=0.5, bias=1", "y");
  CHECK_OK(shoal_graph_output(graph, y));
  CHECK(shoal_tensor_source_count(h) == 2 && shoal_tensor_source(h, 1) == sources[1]);
  CHECK(strcmp(shoal_tensor_op(y), "scale") == 0 && shoal_tensor_role(y) == SHOAL_ROLE_COMPUTE);
  return graph;
}

static void builders_and_text_give_the_same_graph(void) {
  shoal_weights *a = shoal_weights_new(), *b = shoal_weights_new();
  shoal_graph *built = build(a), *parsed = shoal_graph_parse("parsed", kText, b);
  CHECK(built != NULL && parsed != NULL);
  shoal_blob *built_text = shoal_graph_text(built), *parsed_text = shoal_graph_text(parsed);
  CHECK(strstr(shoal_blob_data(built_text), "%y = scale(%h) {scale=0.5, bias=1}") != NULL);
  CHECK(strcmp(shoal_blob_data(built_text), shoal_blob_data(parsed_text)) == 0);
  CHECK(shoal_graph_node_count(built) == 2 && shoal_graph_get_node(built, 1) == shoal_graph_find(built, "y"));
  CHECK(shoal_graph_input_count(built) == 1 && shoal_graph_get_input(built, 0) == shoal_graph_find(built, "x"));
  CHECK_FAILS(shoal_graph_get_node(built, 2) == NULL, SHOAL_INVALID_ARGUMENT, "node number 2");
  CHECK_FAILS(shoal_graph_find(built, "z") == NULL, SHOAL_INVALID_ARGUMENT, "'z'");
  shoal_blob_free(built_text), shoal_blob_free(parsed_text);
  shoal_graph_free(built), shoal_graph_free(parsed);
  shoal_weights_free(a), shoal_weights_free(b);
}

static void wrong_nodes_are_rejected(void) {
  const int64_t shape[] = {4, 2};
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_new(NULL);
  shoal_tensor* x = shoal_graph_input(graph, "x", SHOAL_F32, 2, shape);
  shoal_tensor* none = NULL;
  CHECK_FAILS(shoal_graph_node(graph, "none", &x, 1, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'none'");
  CHECK_FAILS(shoal_graph_node(graph, "multiply", &x, 1, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'multiply'");
  CHECK_FAILS(shoal_graph_node(graph, "scale", &none, 1, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "scale");
  CHECK_FAILS(shoal_graph_node(graph, "scale", &x, 1, "{factor=2}", NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'factor'");
  CHECK_FAILS(shoal_graph_node(graph, "scale", &x, 1, "{scale=2", NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'}'");
  CHECK_FAILS(shoal_graph_node(graph, "scale", &x, 1, "scale=2}", NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'}'");
  CHECK_FAILS(shoal_graph_node(graph, "mul_mat", &x, 1, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "mul_mat");
  CHECK_FAILS(shoal_graph_input(graph, "x", SHOAL_F32, 2, shape) == NULL, SHOAL_INVALID_ARGUMENT, "x");
  CHECK_FAILS(shoal_graph_parse("g", "input %x f32 [4]\nweigh %w\n", weights) == NULL, SHOAL_INVALID_ARGUMENT,
              "line 2");
  CHECK(shoal_graph_node(graph, "scale", &x, 1, "{}", NULL) != NULL && shoal_graph_node_count(graph) == 1);
  shoal_graph_free(graph);
  shoal_weights_free(weights);
}

static void plans_compute(void) {
  const float w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, x[8] = {1, 0, 0, 1, 0, 2, 0, 0};
  const float expected[6] = {3.5f, 7.5f, 11.5f, 3, 7, 11};
  float y[6];
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse("g", kText, weights);
  shoal_backend* backend = shoal_backend_init(shoal_device_get(0), NULL);
  CHECK(shoal_device_supports_op(shoal_device_get(0), shoal_graph_find(graph, "h")));
  CHECK(!shoal_device_offload_op(shoal_device_get(0), shoal_graph_find(graph, "h")));
  CHECK_FAILS(shoal_plan_new(backend, graph) == NULL, SHOAL_INVALID_ARGUMENT, "w");  // the weight has no memory
  shoal_buffer* memory =
      shoal_weights_allocate(weights, shoal_device_weights_type(shoal_device_get(0)), SHOAL_USAGE_WEIGHTS);
  CHECK_OK(shoal_tensor_set(shoal_weights_get(weights, 0), w, 0, sizeof w));
  shoal_plan* plan = shoal_plan_new(backend, graph);
  CHECK(plan != NULL && shoal_plan_bytes(plan) > 0);
  CHECK_FAILS(shoal_plan_text(plan) == NULL, SHOAL_INVALID_ARGUMENT, "meta");
  CHECK_FAILS(shoal_plan_new(backend, graph) == NULL, SHOAL_INVALID_ARGUMENT, "plan");  // one plan per graph
  CHECK_OK(shoal_tensor_set(shoal_graph_find(graph, "x"), x, 0, sizeof x));
  CHECK_OK(shoal_plan_compute(plan));
  CHECK_OK(shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y));
  CHECK(memcmp(y, expected, sizeof y) == 0);
  CHECK_OK(shoal_plan_compute_async(plan));
  CHECK_OK(shoal_backend_synchronize(backend));
  shoal_plan_free(plan);
  // Without a plan of the caller, the backend caches a plan.
  CHECK_OK(shoal_graph_compute_async(backend, graph));
  CHECK_OK(shoal_tensor_set(shoal_graph_find(graph, "x"), x, 0, sizeof x));
  CHECK_OK(shoal_graph_compute(backend, graph));
  CHECK_OK(shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y));
  CHECK(memcmp(y, expected, sizeof y) == 0);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
}

static bool stop(void* calls) {
  ++*(int*)calls;
  return true;
}

static void abort_callbacks_stop_runs(void) {
  int calls = 0;
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse("g", "input %x f32 [4]\n%y = scale(%x)\noutput %y\n", weights);
  shoal_backend* backend = shoal_backend_init(shoal_device_get(0), NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  CHECK_OK(shoal_backend_set_abort_callback(backend, stop, &calls));
  CHECK_FAILS(shoal_plan_compute(plan) == SHOAL_ABORTED, SHOAL_ABORTED, "shoal_plan_compute: ");
  CHECK(calls == 1);
  CHECK_OK(shoal_backend_set_abort_callback(backend, NULL, NULL));
  CHECK_OK(shoal_plan_compute(plan));
  shoal_backend_free(backend);
  CHECK_FAILS(shoal_plan_compute(plan) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "backend of the plan");
  shoal_plan_free(plan);
  shoal_graph_free(graph);
  shoal_weights_free(weights);
}

static bool compare(const shoal_tensor* node, const void* first, const void* second, size_t bytes, void* user) {
  CHECK(bytes == shoal_tensor_bytes(node) && memcmp(first, second, bytes) == 0);
  return ++*(int*)user < 3;
}

static void backends_are_compared(void) {
  const float w[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const void* inputs[] = {x};
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse("g", kText, weights);
  shoal_buffer* memory =
      shoal_weights_allocate(weights, shoal_device_buffer_type(shoal_device_get(0)), SHOAL_USAGE_WEIGHTS);
  CHECK_OK(shoal_tensor_set(shoal_weights_get(weights, 0), w, 0, sizeof w));
  shoal_backend* first = shoal_backend_init(shoal_device_get(0), NULL);
  shoal_backend* second = shoal_backend_init(shoal_device_get(1), NULL);
  int nodes = 0;
  CHECK_OK(shoal_backend_compare(first, second, graph, inputs, compare, &nodes));
  CHECK(nodes == 2);
  CHECK_FAILS(shoal_backend_compare(first, second, graph, inputs, compare, &nodes) == SHOAL_ABORTED, SHOAL_ABORTED,
              "callback");
  CHECK(nodes == 3);
  shoal_backend_free(first), shoal_backend_free(second);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
}

void test_graphs(const char* model) {
  (void)model;
  builders_and_text_give_the_same_graph();
  wrong_nodes_are_rejected();
  plans_compute();
  abort_callbacks_stop_runs();
  backends_are_compared();
}
