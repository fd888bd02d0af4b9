// Errors of the C interface: NULL handles, unknown numbers, sizes of structs, and texts of different threads.
#include <pthread.h>

#include "tests/c/check.h"

#define NULL_FAILS(call) CHECK_FAILS(call, SHOAL_INVALID_ARGUMENT, "is NULL")
#define STATUS_FAILS(call) NULL_FAILS((call) == SHOAL_INVALID_ARGUMENT)

static void null_devices(void) {
  STATUS_FAILS(shoal_cpu_configure(NULL));
  STATUS_FAILS(shoal_plugin_load(NULL));
  STATUS_FAILS(shoal_plugin_load_from(NULL));
  STATUS_FAILS(shoal_plugin_unload(NULL));
  NULL_FAILS(shoal_device_by_name(NULL) == NULL);
  NULL_FAILS(shoal_device_name(NULL) == NULL);
  STATUS_FAILS(shoal_device_get_props(NULL, NULL));
  STATUS_FAILS(shoal_device_get_props(shoal_device_get(0), NULL));
  NULL_FAILS(shoal_device_features_text(NULL) == NULL);
  NULL_FAILS(!shoal_device_supports_op(NULL, NULL));
  NULL_FAILS(!shoal_device_supports_op(shoal_device_get(0), NULL));
  NULL_FAILS(!shoal_device_supports_buffer_type(NULL, NULL));
  NULL_FAILS(!shoal_device_offload_op(NULL, NULL));
  NULL_FAILS(shoal_device_buffer_type(NULL) == NULL);
  NULL_FAILS(shoal_device_weights_type(NULL) == NULL);
  NULL_FAILS(shoal_device_host_type(NULL) == NULL);
  NULL_FAILS(shoal_blob_data(NULL) == NULL);
  NULL_FAILS(shoal_blob_size(NULL) == 0);
  NULL_FAILS(shoal_dtype_by_name(NULL) == -1);
}

static void null_buffers(void) {
  NULL_FAILS(shoal_buffer_type_name(NULL) == NULL);
  NULL_FAILS(shoal_buffer_type_device(NULL) == NULL);
  NULL_FAILS(shoal_buffer_type_alignment(NULL) == 0);
  NULL_FAILS(shoal_buffer_type_max_size(NULL) == 0);
  NULL_FAILS(shoal_buffer_type_alloc_size(NULL, NULL) == 0);
  NULL_FAILS(!shoal_buffer_type_is_host(NULL));
  NULL_FAILS(shoal_buffer_new(NULL, 8) == NULL);
  NULL_FAILS(shoal_buffer_from_host_new(NULL, NULL, 8) == NULL);
  NULL_FAILS(shoal_buffer_from_host_new(shoal_device_get(0), NULL, 8) == NULL);
  NULL_FAILS(shoal_buffer_get_type(NULL) == NULL);
  NULL_FAILS(shoal_buffer_size(NULL) == 0);
  NULL_FAILS(shoal_buffer_base(NULL) == NULL);
  NULL_FAILS(shoal_buffer_usage(NULL) == -1);
  STATUS_FAILS(shoal_buffer_set_usage(NULL, SHOAL_USAGE_ANY));
  STATUS_FAILS(shoal_buffer_clear(NULL, 0));
  STATUS_FAILS(shoal_buffer_reset(NULL));
  STATUS_FAILS(shoal_buffer_place(NULL, NULL, 0));
  NULL_FAILS(shoal_weights_add(NULL, "w", SHOAL_F32, 1, NULL, SHOAL_ROLE_WEIGHT) == NULL);
  NULL_FAILS(shoal_weights_count(NULL) == 0);
  NULL_FAILS(shoal_weights_get(NULL, 0) == NULL);
  NULL_FAILS(shoal_weights_find(NULL, "w") == NULL);
  NULL_FAILS(shoal_weights_allocate(NULL, NULL, SHOAL_USAGE_WEIGHTS) == NULL);
}

static void null_tensors(void) {
  int64_t shape[4];
  char byte = 0;
  NULL_FAILS(shoal_tensor_name(NULL) == NULL);
  NULL_FAILS(shoal_tensor_dtype(NULL) == -1);
  NULL_FAILS(shoal_tensor_role(NULL) == -1);
  NULL_FAILS(shoal_tensor_op(NULL) == NULL);
  STATUS_FAILS(shoal_tensor_shape(NULL, shape));
  NULL_FAILS(shoal_tensor_elements(NULL) == 0);
  NULL_FAILS(shoal_tensor_bytes(NULL) == 0);
  NULL_FAILS(shoal_tensor_source_count(NULL) == 0);
  NULL_FAILS(shoal_tensor_source(NULL, 0) == NULL);
  NULL_FAILS(shoal_tensor_buffer_type(NULL) == NULL);
  NULL_FAILS(shoal_tensor_data(NULL) == NULL);
  STATUS_FAILS(shoal_tensor_set(NULL, &byte, 0, 1));
  STATUS_FAILS(shoal_tensor_get(NULL, &byte, 0, 1));
  STATUS_FAILS(shoal_tensor_fill(NULL, 0, 0, 1));
  STATUS_FAILS(shoal_tensor_set_2d(NULL, &byte, 0, 1, 1, 1, 1));
  STATUS_FAILS(shoal_tensor_get_2d(NULL, &byte, 0, 1, 1, 1, 1));
  STATUS_FAILS(shoal_tensor_copy(NULL, NULL));
  STATUS_FAILS(shoal_tensor_set_async(NULL, NULL, &byte, 0, 1));
  STATUS_FAILS(shoal_tensor_get_async(NULL, NULL, &byte, 0, 1));
  STATUS_FAILS(shoal_tensor_copy_async(NULL, NULL, NULL, NULL));
  NULL_FAILS(shoal_tensor_shard(NULL, 0) == NULL);
  NULL_FAILS(shoal_tensor_layout_text(NULL) == NULL);
}

static void null_graphs(void) {
  NULL_FAILS(shoal_graph_parse("g", NULL, NULL) == NULL);
  NULL_FAILS(shoal_graph_parse("g", "", NULL) == NULL);
  NULL_FAILS(shoal_graph_input(NULL, "x", SHOAL_F32, 1, NULL) == NULL);
  NULL_FAILS(shoal_graph_node(NULL, "add", NULL, 0, NULL, NULL) == NULL);
  NULL_FAILS(shoal_graph_node(NULL, NULL, NULL, 0, NULL, NULL) == NULL);
  NULL_FAILS(shoal_graph_node(NULL, "add", NULL, 2, NULL, NULL) == NULL);
  STATUS_FAILS(shoal_graph_output(NULL, NULL));
  NULL_FAILS(shoal_graph_input_count(NULL) == 0);
  NULL_FAILS(shoal_graph_get_input(NULL, 0) == NULL);
  NULL_FAILS(shoal_graph_node_count(NULL) == 0);
  NULL_FAILS(shoal_graph_get_node(NULL, 0) == NULL);
  NULL_FAILS(shoal_graph_find(NULL, "x") == NULL);
  NULL_FAILS(shoal_graph_text(NULL) == NULL);
  STATUS_FAILS(shoal_op_register(NULL));
  STATUS_FAILS(shoal_op_unregister(NULL));
  NULL_FAILS(shoal_op_check_text(NULL, NULL, 0) == NULL);
  NULL_FAILS(shoal_backend_init(NULL, NULL) == NULL);
  NULL_FAILS(shoal_backend_init_by_name(NULL) == NULL);
  NULL_FAILS(shoal_backend_name(NULL) == NULL);
  NULL_FAILS(shoal_backend_device(NULL) == NULL);
  STATUS_FAILS(shoal_backend_set_threads(NULL, 1));
  STATUS_FAILS(shoal_backend_set_abort_callback(NULL, NULL, NULL));
  STATUS_FAILS(shoal_backend_synchronize(NULL));
  STATUS_FAILS(shoal_backend_compare(NULL, NULL, NULL, NULL, NULL, NULL));
  NULL_FAILS(shoal_plan_new(NULL, NULL) == NULL);
  NULL_FAILS(shoal_plan_bytes(NULL) == 0);
  NULL_FAILS(shoal_plan_text(NULL) == NULL);
  NULL_FAILS(shoal_plan_json_text(NULL) == NULL);
  STATUS_FAILS(shoal_plan_compute(NULL));
  STATUS_FAILS(shoal_plan_compute_async(NULL));
  STATUS_FAILS(shoal_graph_compute(NULL, NULL));
  STATUS_FAILS(shoal_graph_compute_async(NULL, NULL));
  NULL_FAILS(shoal_event_new(NULL) == NULL);
  STATUS_FAILS(shoal_event_record(NULL, NULL));
  STATUS_FAILS(shoal_event_wait(NULL, NULL));
  STATUS_FAILS(shoal_event_synchronize(NULL));
}

static void null_meta_and_schedulers(void) {
  NULL_FAILS(shoal_meta_device_new(NULL, 2, NULL, NULL, NULL) == NULL);
  NULL_FAILS(shoal_meta_device_member_count(NULL) == 0);
  NULL_FAILS(shoal_meta_device_member(NULL, 0) == NULL);
  NULL_FAILS(shoal_scheduler_new(NULL, 1, NULL) == NULL);
  STATUS_FAILS(shoal_scheduler_reserve(NULL, NULL));
  STATUS_FAILS(shoal_scheduler_allocate(NULL, NULL));
  STATUS_FAILS(shoal_scheduler_compute(NULL, NULL));
  STATUS_FAILS(shoal_scheduler_compute_async(NULL, NULL));
  STATUS_FAILS(shoal_scheduler_get_async(NULL, NULL, NULL, 0, 0));
  STATUS_FAILS(shoal_scheduler_synchronize(NULL));
  STATUS_FAILS(shoal_scheduler_reset(NULL));
  STATUS_FAILS(shoal_scheduler_set_backend(NULL, NULL, NULL));
  NULL_FAILS(shoal_scheduler_backend_of(NULL, NULL) == NULL);
  NULL_FAILS(shoal_scheduler_backend_count(NULL) == 0);
  NULL_FAILS(shoal_scheduler_backend(NULL, 0) == NULL);
  NULL_FAILS(shoal_scheduler_buffer_type(NULL, 0) == NULL);
  NULL_FAILS(shoal_scheduler_buffer_size(NULL, 0) == 0);
  NULL_FAILS(shoal_scheduler_splits(NULL) == 0);
  NULL_FAILS(shoal_scheduler_copies(NULL) == 0);
  NULL_FAILS(shoal_scheduler_schedule_text(NULL, NULL) == NULL);
  STATUS_FAILS(shoal_scheduler_set_eval_callback(NULL, NULL, NULL));
}

static void null_models(void) {
  size_t count;
  shoal_token token;
  NULL_FAILS(shoal_model_load(NULL, NULL, 0, NULL) == NULL);
  STATUS_FAILS(shoal_model_get_info(NULL, NULL));
  NULL_FAILS(shoal_model_key_count(NULL) == 0);
  NULL_FAILS(shoal_model_key_text(NULL, 0) == NULL);
  NULL_FAILS(shoal_model_value_text(NULL, "k") == NULL);
  STATUS_FAILS(shoal_model_tokenize(NULL, "a", 1, false, &token, 1, &count));
  STATUS_FAILS(shoal_model_tokenize(NULL, NULL, 1, false, &token, 1, &count));
  STATUS_FAILS(shoal_model_detokenize(NULL, NULL, 0, false, NULL, 0, &count));
  NULL_FAILS(shoal_model_piece(NULL, 0) == NULL);
  NULL_FAILS(shoal_model_score(NULL, 0) == 0);
  NULL_FAILS(shoal_model_bos(NULL) == -1);
  NULL_FAILS(shoal_model_eos(NULL) == -1);
  NULL_FAILS(!shoal_model_adds_bos(NULL));
  NULL_FAILS(!shoal_model_adds_eos(NULL));
  NULL_FAILS(!shoal_model_is_end(NULL, 0));
  NULL_FAILS(!shoal_model_is_control(NULL, 0));
}

static void null_sessions(void) {
  const float* logits;
  const shoal_candidate* candidates;
  size_t count;
  shoal_token token = 0;
  NULL_FAILS(shoal_session_new(NULL, NULL) == NULL);
  NULL_FAILS(shoal_session_context(NULL) == -1);
  NULL_FAILS(shoal_session_batch(NULL) == -1);
  NULL_FAILS(shoal_session_position(NULL) == -1);
  NULL_FAILS(!shoal_session_needs_checkpoints(NULL));
  STATUS_FAILS(shoal_session_evaluate(NULL, &token, 1, 1));
  STATUS_FAILS(shoal_session_synchronize(NULL));
  STATUS_FAILS(shoal_session_logits(NULL, &logits, &count));
  STATUS_FAILS(shoal_session_logits(NULL, NULL, NULL));
  STATUS_FAILS(shoal_session_candidates(NULL, &candidates, &count));
  STATUS_FAILS(shoal_session_set_abort_callback(NULL, NULL, NULL));
  STATUS_FAILS(shoal_session_rewind(NULL, 0));
  NULL_FAILS(shoal_session_rewindable(NULL, 0) == -1);
  STATUS_FAILS(shoal_session_checkpoint(NULL));
  NULL_FAILS(shoal_session_save(NULL) == NULL);
  STATUS_FAILS(shoal_session_restore(NULL, &token, 1));
  STATUS_FAILS(shoal_sampler_accept(NULL, 0));
  STATUS_FAILS(shoal_sampler_sample(NULL, NULL, &token));
  STATUS_FAILS(shoal_sampler_sample_logits(NULL, NULL, 0, &token));
}

static void free_accepts_null(void) {
  shoal_blob_free(NULL), shoal_buffer_free(NULL), shoal_weights_free(NULL), shoal_graph_free(NULL);
  shoal_backend_free(NULL), shoal_plan_free(NULL), shoal_event_free(NULL), shoal_scheduler_free(NULL);
  shoal_model_free(NULL), shoal_session_free(NULL), shoal_sampler_free(NULL);
  CHECK_OK(shoal_meta_device_free(NULL));
}

static void unknown_numbers(void) {
  const int64_t shape[] = {2, 2, 2, 2, 2};
  shoal_weights* weights = shoal_weights_new();
  CHECK_FAILS(shoal_dtype_name(1000) == NULL, SHOAL_INVALID_ARGUMENT, "dtype number 1000");
  CHECK_FAILS(shoal_dtype_name(-1) == NULL, SHOAL_INVALID_ARGUMENT, "dtype number -1");
  CHECK_FAILS(shoal_dtype_bytes(SHOAL_Q8_0, 31) == 0, SHOAL_INVALID_ARGUMENT, "31");
  CHECK_FAILS(shoal_dtype_bytes(SHOAL_F32, -1) == 0, SHOAL_INVALID_ARGUMENT, "-1");
  CHECK_FAILS(shoal_dtype_by_name("f33") == -1, SHOAL_INVALID_ARGUMENT, "'f33'");
  CHECK_FAILS(shoal_device_by_type(99) == NULL, SHOAL_INVALID_ARGUMENT, "device type number 99");
  CHECK_FAILS(shoal_device_by_type(SHOAL_DEVICE_ACCELERATOR) == NULL, SHOAL_INVALID_ARGUMENT, "accelerator");
  CHECK_FAILS(shoal_device_get(1000) == NULL, SHOAL_INVALID_ARGUMENT, "1000");
  CHECK_FAILS(shoal_device_by_name("CPU99") == NULL, SHOAL_INVALID_ARGUMENT, "CPU0");
  CHECK_FAILS(shoal_family_name(1000) == NULL, SHOAL_INVALID_ARGUMENT, "1000");
  CHECK_FAILS(shoal_weights_add(weights, "w", SHOAL_F32, 5, shape, SHOAL_ROLE_WEIGHT) == NULL, SHOAL_INVALID_ARGUMENT,
              "1 to 4 axes");
  CHECK_FAILS(shoal_weights_add(weights, "w", SHOAL_F32, 1, NULL, SHOAL_ROLE_WEIGHT) == NULL, SHOAL_INVALID_ARGUMENT,
              "'shape' is NULL");
  CHECK_FAILS(shoal_weights_add(weights, "w", SHOAL_F32, 1, shape, 17) == NULL, SHOAL_INVALID_ARGUMENT,
              "role number 17");
  CHECK_FAILS(shoal_weights_add(weights, "w", SHOAL_F32, 1, shape, SHOAL_ROLE_INPUT) == NULL, SHOAL_INVALID_ARGUMENT,
              "shoal_weights_add: ");
  CHECK_FAILS(shoal_weights_get(weights, 0) == NULL, SHOAL_INVALID_ARGUMENT, "number is 0");
  CHECK(shoal_weights_add(weights, "w", SHOAL_F32, 1, shape, SHOAL_ROLE_WEIGHT) != NULL);
  CHECK_FAILS(shoal_weights_allocate(weights, shoal_device_buffer_type(shoal_device_get(0)), -1) == NULL,
              SHOAL_INVALID_ARGUMENT, "usage number -1");
  shoal_weights_free(weights);
  CHECK(strcmp(shoal_status_name(SHOAL_ABORTED), "aborted") == 0);
  CHECK(strcmp(shoal_status_name(99), "unknown status") == 0 && strcmp(shoal_status_name(-1), "unknown status") == 0);
}

static void struct_sizes(void) {
  // A caller of an older version knows fewer members. The library writes only these members.
  shoal_device_props props;
  memset(&props, 0x55, sizeof props);
  props.size = offsetof(shoal_device_props, description);
  CHECK_OK(shoal_device_get_props(shoal_device_by_name("CPU0"), &props));
  CHECK(strcmp(props.name, "CPU0") == 0 && props.size == offsetof(shoal_device_props, description));
  const unsigned char* rest = (const unsigned char*)&props + props.size;
  for (size_t i = 0; i < sizeof props - props.size; ++i) CHECK(rest[i] == 0x55);
  props.size = 0;
  CHECK_FAILS(shoal_device_get_props(shoal_device_by_name("CPU0"), &props) != SHOAL_OK, SHOAL_INVALID_ARGUMENT,
              "_INIT");

  // A caller of a newer version may have further members. They must be zero.
  struct {
    shoal_sampler_options known;
    uint64_t unknown;
  } options = {SHOAL_SAMPLER_OPTIONS_INIT, 0};
  options.known.size = sizeof options;
  shoal_sampler* sampler = shoal_sampler_new(&options.known);
  CHECK(sampler != NULL);
  shoal_sampler_free(sampler);
  options.unknown = 1;
  CHECK_FAILS(shoal_sampler_new(&options.known) == NULL, SHOAL_INVALID_ARGUMENT, "does not know");
}

static void* fail_in_thread(void* unused) {
  CHECK(shoal_last_status() == SHOAL_OK && strcmp(shoal_last_error(), "") == 0);
  CHECK_FAILS(shoal_dtype_by_name("thread") == -1, SHOAL_INVALID_ARGUMENT, "'thread'");
  return unused;
}

static void threads_have_their_own_errors(void) {
  CHECK_FAILS(shoal_dtype_by_name("main") == -1, SHOAL_INVALID_ARGUMENT, "'main'");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(strstr(shoal_last_error(), "'main'") != NULL);
  CHECK(shoal_dtype_by_name("f32") == SHOAL_F32);
  CHECK(strstr(shoal_last_error(), "'main'") != NULL);  // a success does not change the text
}

void test_errors(const char* model) {
  (void)model;
  CHECK(shoal_last_status() == SHOAL_OK && strcmp(shoal_last_error(), "") == 0);
  CHECK(shoal_version() == SHOAL_VERSION_MAJOR * 1000 + SHOAL_VERSION_MINOR);
  null_devices();
  null_buffers();
  null_tensors();
  null_graphs();
  null_meta_and_schedulers();
  null_models();
  null_sessions();
  free_accepts_null();
  unknown_numbers();
  struct_sizes();
  threads_have_their_own_errors();
}
