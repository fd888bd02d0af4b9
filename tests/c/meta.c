// Meta devices and split-state callbacks in C. Values are small integers, so all sums are exact.
#include "tests/c/check.h"

#define DEVICES 4

static const char* const kBlock =
    "input  %x f32 [8, 2]\n"
    "weight %fused f32 [8, 16]\n"  // three matrices of 8, 4 and 4 rows
    "weight %down f32 [16, 6]\n"
    "%h = mul_mat(%fused, %x)\n"
    "%a = unary(%h) {kind=relu}\n"
    "%s = mul_mat(%down, %a)\n"
    "%y = unary(%s) {kind=relu}\n"
    "output %y\n";

/// The layout of the block's weights on `devices` devices, and the expected layout text of "fused".
struct Case {
  size_t devices;
  const char* expected;
  shoal_status (*fill)(bool is_fused, shoal_split_state* state);
};

static shoal_status segments(bool is_fused, shoal_split_state* state) {
  const int64_t lengths[] = {6, 2, 3, 1, 1, 3};
  state->axis = is_fused ? SHOAL_AXIS_1 : SHOAL_AXIS_0;
  state->segments = 3;
  memcpy(state->lengths, lengths, sizeof lengths);
  return SHOAL_OK;
}

static shoal_status zero_share(bool is_fused, shoal_split_state* state) {
  state->axis = is_fused ? SHOAL_AXIS_1 : SHOAL_AXIS_0;
  state->segments = 1;
  state->lengths[1] = 11;
  state->lengths[2] = 5;
  return SHOAL_OK;
}

static shoal_status shared_runs(bool is_fused, shoal_split_state* state) {
  state->axis = is_fused ? SHOAL_AXIS_1 : SHOAL_AXIS_0;
  state->runs = 2;
  state->run[0] = (shoal_run){8, is_fused ? 3 : 1};  // rows on devices 0 and 1
  state->run[1] = (shoal_run){8, is_fused ? 12 : 4};
  return SHOAL_OK;
}

static shoal_status ratio(bool is_fused, shoal_split_state* state) {
  state->axis = is_fused ? SHOAL_AXIS_1 : SHOAL_AXIS_0;
  state->ratio[0] = 3;
  state->ratio[1] = 0;
  return SHOAL_OK;
}

static shoal_status mirrored(bool is_fused, shoal_split_state* state) {
  (void)is_fused, (void)state;  // the state is mirrored before the call
  return SHOAL_OK;
}

static const struct Case kCases[] = {
    {2, "split 1 [6:{0} 2:{1} 3:{0} 1:{1} 1:{0} 3:{1}]", segments},
    {3, "split 1 [11:{1} 5:{2}]", zero_share},
    {4, "split 1 [8:{0,1} 8:{2,3}]", shared_runs},
    {1, "mirrored", mirrored},
    {3, "split 1 [12:{0} 4:{2}]", ratio},
};

static shoal_status callback(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  const struct Case* from = user;
  CHECK(state->size == sizeof *state && state->devices == from->devices && state->axis == SHOAL_AXIS_MIRRORED);
  CHECK(state->segments == 0 && state->runs == 0 && state->lengths[0] == 0);
  return from->fill(strcmp(shoal_tensor_name(tensor), "fused") == 0, state);
}

static void reference(const float* x, const float* fused, const float* down, float* y) {
  for (int t = 0; t < 2; ++t) {
    float a[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = 0;
      for (int k = 0; k < 8; ++k) a[i] += fused[i * 8 + k] * x[t * 8 + k];
      if (a[i] < 0) a[i] = 0;
    }
    for (int i = 0; i < 6; ++i) {
      y[t * 6 + i] = 0;
      for (int k = 0; k < 16; ++k) y[t * 6 + i] += down[i * 16 + k] * a[k];
      if (y[t * 6 + i] < 0) y[t * 6 + i] = 0;
    }
  }
}

static void run_case(const struct Case* from) {
  float x[16], fused[128], down[96], y[12], expected[12], shard[128];
  for (int i = 0; i < 16; ++i) x[i] = (float)(i % 5 - 2);
  for (int i = 0; i < 128; ++i) fused[i] = (float)(i * 7 % 9 - 4);
  for (int i = 0; i < 96; ++i) down[i] = (float)(i * 5 % 7 - 3);
  reference(x, fused, down, expected);

  shoal_device* members[DEVICES];
  for (size_t i = 0; i < DEVICES; ++i) members[i] = shoal_device_get(i);
  shoal_meta_options options = SHOAL_META_OPTIONS_INIT;
  options.member_params = "threads=1";
  options.comm_timeout = 60;
  options.communicator = "host";
  shoal_device* device = shoal_meta_device_new(members, from->devices, callback, (void*)from, &options);
  CHECK(device != NULL && shoal_meta_device_member_count(device) == from->devices);
  CHECK(shoal_meta_device_member(device, from->devices - 1) == members[from->devices - 1]);
  CHECK_FAILS(shoal_meta_device_member(device, from->devices) == NULL, SHOAL_INVALID_ARGUMENT, "rank");
  shoal_device_props props = SHOAL_DEVICE_PROPS_INIT;
  CHECK_OK(shoal_device_get_props(device, &props));
  CHECK(props.type == SHOAL_DEVICE_META && strcmp(props.family, "META") == 0);

  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse("block", kBlock, weights);
  shoal_buffer* memory = shoal_weights_allocate(weights, shoal_device_buffer_type(device), SHOAL_USAGE_WEIGHTS);
  CHECK(memory != NULL);
  shoal_tensor* w = shoal_weights_find(weights, "fused");
  CHECK_OK(shoal_tensor_set(w, fused, 0, sizeof fused));
  CHECK_OK(shoal_tensor_set(shoal_weights_find(weights, "down"), down, 0, sizeof down));
  shoal_blob* layout = shoal_tensor_layout_text(w);
  CHECK(strcmp(shoal_blob_data(layout), from->expected) == 0);
  shoal_blob_free(layout);
  // The last device stores the last rows of "fused", or all rows.
  shoal_tensor* last = shoal_tensor_shard(w, from->devices - 1);
  const size_t bytes = shoal_tensor_bytes(last);
  CHECK(last != NULL && bytes >= 128);
  CHECK_OK(shoal_tensor_get(last, shard, 0, bytes));
  CHECK(memcmp((char*)shard + bytes - 96, (char*)fused + sizeof fused - 96, 96) == 0);
  CHECK_FAILS(shoal_tensor_shard(w, from->devices) == NULL, SHOAL_INVALID_ARGUMENT, "rank");

  shoal_backend* backend = shoal_backend_init(device, NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  CHECK(plan != NULL);
  shoal_blob *text = shoal_plan_text(plan), *json = shoal_plan_json_text(plan);
  CHECK(strstr(shoal_blob_data(text), "plan of block") != NULL);
  CHECK(strstr(shoal_blob_data(json), "\"all_reduce\"") != NULL || from->devices == 1);
  shoal_blob_free(text), shoal_blob_free(json);
  CHECK_OK(shoal_tensor_set(shoal_graph_find(graph, "x"), x, 0, sizeof x));
  CHECK_OK(shoal_plan_compute(plan));
  CHECK_OK(shoal_tensor_get(shoal_graph_find(graph, "y"), y, 0, sizeof y));
  CHECK(memcmp(y, expected, sizeof y) == 0);

  shoal_plan_free(plan);
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
  CHECK_OK(shoal_meta_device_free(device));
}

static shoal_status split_batch(const shoal_tensor* tensor, shoal_split_state* state, shoal_constraint* constraint,
                                void* user) {
  if (strcmp(shoal_tensor_name(tensor), "x") != 0) return SHOAL_OK;
  state->axis = *(int32_t*)user;
  *constraint = *(int32_t*)user == SHOAL_AXIS_1 ? SHOAL_CONSTRAINT_REQUIRED : 7;
  return SHOAL_OK;
}

static shoal_status mirror(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  (void)tensor, (void)state, (void)user;
  return SHOAL_OK;
}

static void inputs_have_constraints(void) {
  shoal_device* members[] = {shoal_device_get(0), shoal_device_get(1)};
  int32_t axis = SHOAL_AXIS_1;
  shoal_meta_options options = SHOAL_META_OPTIONS_INIT;
  options.constraints = split_batch;
  options.constraints_user = &axis;
  shoal_device* device = shoal_meta_device_new(members, 2, mirror, NULL, &options);
  shoal_weights* weights = shoal_weights_new();
  shoal_graph* graph = shoal_graph_parse("block", kBlock, weights);
  shoal_buffer* memory = shoal_weights_allocate(weights, shoal_device_buffer_type(device), SHOAL_USAGE_WEIGHTS);
  shoal_backend* backend = shoal_backend_init(device, NULL);
  shoal_plan* plan = shoal_plan_new(backend, graph);
  CHECK(plan != NULL);
  shoal_blob* layout = shoal_tensor_layout_text(shoal_graph_find(graph, "a"));
  CHECK(strcmp(shoal_blob_data(layout), "split 1 [1:{0} 1:{1}]") == 0);
  shoal_blob_free(layout);
  shoal_plan_free(plan);
  axis = SHOAL_AXIS_0;
  CHECK_FAILS(shoal_plan_new(backend, graph) == NULL, SHOAL_INVALID_ARGUMENT, "constraint number 7");
  shoal_backend_free(backend);
  shoal_graph_free(graph);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
  CHECK_OK(shoal_meta_device_free(device));
}

/// Number of the wrong answer that wrong() gives.
enum { FAILS, AXIS, SUM, MANY, BOTH, ARRAY, OWNERS, WRONG_COUNT };

static shoal_status wrong(const shoal_tensor* tensor, shoal_split_state* state, void* user) {
  static int64_t other[2] = {2, 2};
  (void)tensor;
  state->axis = SHOAL_AXIS_1;
  state->segments = 1;
  state->lengths[0] = 2, state->lengths[1] = 2;
  switch (*(int*)user) {
    case FAILS:
      return SHOAL_ABORTED;
    case AXIS:
      state->axis = 77;
      break;
    case SUM:
      state->lengths[1] = 5;
      break;
    case MANY:
      state->segments = SHOAL_MAX_SEGMENTS + 1;
      break;
    case BOTH:
      state->runs = 1, state->run[0] = (shoal_run){4, 1};
      break;
    case ARRAY:
      state->lengths = other;
      break;
    case OWNERS:
      state->segments = 0, state->runs = 1, state->run[0] = (shoal_run){4, 4};
      break;
  }
  return SHOAL_OK;
}

static void wrong_answers_are_rejected(void) {
  const char* const words[WRONG_COUNT] = {"status 5", "axis number 77", "the length 5", "65 segments", "w", "array",
                                          "w"};
  const int64_t shape[] = {3, 4};
  shoal_device* members[] = {shoal_device_get(0), shoal_device_get(1)};
  int kind = 0;
  shoal_device* device = shoal_meta_device_new(members, 2, wrong, &kind, NULL);
  shoal_weights* weights = shoal_weights_new();
  shoal_weights_add(weights, "w", SHOAL_F32, 2, shape, SHOAL_ROLE_WEIGHT);
  for (; kind < WRONG_COUNT; ++kind) {
    CHECK_FAILS(shoal_weights_allocate(weights, shoal_device_buffer_type(device), SHOAL_USAGE_WEIGHTS) == NULL,
                kind == FAILS ? SHOAL_ABORTED : SHOAL_INVALID_ARGUMENT, words[kind]);
  }
  shoal_weights_free(weights);
  CHECK_OK(shoal_meta_device_free(device));
}

static void wrong_devices_are_rejected(void) {
  shoal_device* twice[] = {shoal_device_get(0), shoal_device_get(0)};
  shoal_device* null[] = {shoal_device_get(0), NULL};
  shoal_meta_options options = SHOAL_META_OPTIONS_INIT;
  CHECK_FAILS(shoal_meta_device_new(twice, 2, callback, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "CPU0");
  CHECK_FAILS(shoal_meta_device_new(null, 2, callback, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT,
              "'devices' is NULL");
  CHECK_FAILS(shoal_meta_device_new(null, 0, callback, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "device");
  CHECK_FAILS(shoal_meta_device_new(twice, 1, NULL, NULL, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "'callback' is NULL");
  options.communicator = "smoke signals";
  CHECK_FAILS(shoal_meta_device_new(twice, 1, callback, NULL, &options) == NULL, SHOAL_INVALID_ARGUMENT, "smoke");
  options.communicator = NULL;
  options.comm_timeout = -1;
  CHECK_FAILS(shoal_meta_device_new(twice, 1, callback, NULL, &options) == NULL, SHOAL_INVALID_ARGUMENT, "-1");
  CHECK_FAILS(shoal_meta_device_free(shoal_device_get(0)) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "has not created");
  CHECK_FAILS(shoal_meta_device_member_count(shoal_device_get(0)) == 0, SHOAL_INVALID_ARGUMENT, "CPU0");
}

void test_meta(const char* model) {
  (void)model;
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) run_case(&kCases[i]);
  inputs_have_constraints();
  wrong_answers_are_rejected();
  wrong_devices_are_rejected();
}
