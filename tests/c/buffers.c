// Devices, buffers, tensors and events in C.
#include "tests/c/check.h"

static void devices_have_properties(void) {
  CHECK(shoal_device_count() == 4 && shoal_family_count() >= 1 && strcmp(shoal_family_name(0), "CPU") == 0);
  CHECK(shoal_device_get(1) == shoal_device_by_name("cpu1"));
  CHECK(shoal_device_by_type(SHOAL_DEVICE_CPU) == shoal_device_get(0) && shoal_device_best() == shoal_device_get(0));
  shoal_device_props props = SHOAL_DEVICE_PROPS_INIT;
  CHECK_OK(shoal_device_get_props(shoal_device_get(1), &props));
  CHECK(strcmp(props.name, "CPU1") == 0 && strcmp(props.family, "CPU") == 0 && props.type == SHOAL_DEVICE_CPU);
  CHECK(props.events && props.buffer_from_host_ptr && props.memory_total >= props.memory_free);
  CHECK(props.memory_free > 0 && shoal_device_name(shoal_device_get(1)) == props.name);
  shoal_blob* features = shoal_device_features_text(shoal_device_get(0));
  CHECK(strstr(shoal_blob_data(features), " = ") != NULL);
  CHECK(shoal_blob_size(features) == strlen(shoal_blob_data(features)));
  shoal_blob_free(features);
}

static void dtypes_have_gguf_numbers(void) {
  const struct {
    shoal_dtype dtype;
    const char* name;
    size_t bytes;  // of 256 elements
  } known[] = {{SHOAL_F32, "f32", 1024},      {SHOAL_F16, "f16", 512},       {SHOAL_Q4_0, "q4_0", 144},
               {SHOAL_Q4_1, "q4_1", 160},     {SHOAL_Q5_0, "q5_0", 176},     {SHOAL_Q5_1, "q5_1", 192},
               {SHOAL_Q8_0, "q8_0", 272},     {SHOAL_Q2_K, "q2_K", 84},      {SHOAL_Q3_K, "q3_K", 110},
               {SHOAL_Q4_K, "q4_K", 144},     {SHOAL_Q5_K, "q5_K", 176},     {SHOAL_Q6_K, "q6_K", 210},
               {SHOAL_IQ4_NL, "iq4_nl", 144}, {SHOAL_IQ4_XS, "iq4_xs", 136}, {SHOAL_I32, "i32", 1024},
               {SHOAL_I64, "i64", 2048},      {SHOAL_BF16, "bf16", 512},     {SHOAL_MXFP4, "mxfp4", 136}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    CHECK(strcmp(shoal_dtype_name(known[i].dtype), known[i].name) == 0);
    CHECK(shoal_dtype_by_name(known[i].name) == known[i].dtype);
    CHECK(shoal_dtype_bytes(known[i].dtype, 256) == known[i].bytes);
  }
}

static void tensors_have_memory(void) {
  const int64_t shape[] = {4, 3};
  shoal_weights* weights = shoal_weights_new();
  shoal_tensor* w = shoal_weights_add(weights, "w", SHOAL_F32, 2, shape, SHOAL_ROLE_WEIGHT);
  shoal_tensor* c = shoal_weights_add(weights, "c", SHOAL_F32, 2, shape, SHOAL_ROLE_CACHE);
  int64_t lengths[4];
  CHECK_OK(shoal_tensor_shape(w, lengths));
  CHECK(lengths[0] == 4 && lengths[1] == 3 && lengths[2] == 1 && lengths[3] == 1);
  CHECK(shoal_tensor_elements(w) == 12 && shoal_tensor_bytes(w) == 48 && shoal_tensor_dtype(w) == SHOAL_F32);
  CHECK(shoal_tensor_role(c) == SHOAL_ROLE_CACHE && strcmp(shoal_tensor_op(c), "none") == 0);
  CHECK(shoal_weights_count(weights) == 2 && shoal_weights_get(weights, 1) == c &&
        shoal_weights_find(weights, "w") == w);
  CHECK(shoal_tensor_data(w) == NULL && shoal_tensor_buffer_type(w) == NULL);
  float values[12], read[12] = {0};
  for (int i = 0; i < 12; ++i) values[i] = (float)i;
  CHECK_FAILS(shoal_tensor_set(w, values, 0, 48) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "shoal_tensor_set: ");
  CHECK_FAILS(shoal_tensor_fill(w, 0, 0, 48) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "no memory");

  shoal_buffer_type* type = shoal_device_buffer_type(shoal_device_get(0));
  shoal_buffer* memory = shoal_weights_allocate(weights, type, SHOAL_USAGE_WEIGHTS);
  CHECK(memory != NULL && shoal_buffer_size(memory) >= 96 && shoal_buffer_usage(memory) == SHOAL_USAGE_WEIGHTS);
  CHECK_FAILS(shoal_weights_allocate(weights, type, SHOAL_USAGE_ANY) == NULL, SHOAL_INVALID_ARGUMENT,
              "no tensor needs");
  CHECK(shoal_tensor_buffer_type(w) == type && shoal_buffer_get_type(memory) == type && shoal_tensor_data(w) != NULL);
  CHECK_OK(shoal_tensor_set(w, values, 0, sizeof values));
  CHECK_OK(shoal_tensor_copy(w, c));
  CHECK_OK(shoal_tensor_get(c, read, 4, 44));
  CHECK(read[0] == 1 && read[10] == 11);
  // Two rows of two elements: elements 1, 2 and 5, 6.
  CHECK_OK(shoal_tensor_get_2d(c, read, 4, 8, 2, 16, 12));
  CHECK(read[0] == 1 && read[1] == 2 && read[3] == 5 && read[4] == 6);
  CHECK_OK(shoal_tensor_set_2d(c, values, 4, 8, 2, 16, 8));
  CHECK_OK(shoal_tensor_fill(c, 0, 40, 8));
  CHECK_OK(shoal_tensor_get(c, read, 0, sizeof read));
  CHECK(read[1] == 0 && read[2] == 1 && read[5] == 2 && read[6] == 3 && read[10] == 0 && read[11] == 0 && read[9] == 9);
  CHECK_FAILS(shoal_tensor_get(c, read, 8, 48) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "48");
  CHECK_OK(shoal_buffer_clear(memory, 0));
  CHECK_OK(shoal_tensor_get(w, read, 0, sizeof read));
  CHECK(read[11] == 0);
  CHECK_OK(shoal_buffer_set_usage(memory, SHOAL_USAGE_ANY));
  CHECK(shoal_buffer_usage(memory) == SHOAL_USAGE_ANY);
  CHECK_FAILS(shoal_buffer_set_usage(memory, 3) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "usage number 3");
  CHECK_OK(shoal_buffer_reset(memory));
  CHECK(shoal_tensor_data(w) == NULL);
  shoal_buffer_free(memory);
  shoal_weights_free(weights);
}

static void host_memory_is_wrapped(void) {
  static _Alignas(64) float host[16];
  const int64_t shape[] = {8};
  shoal_device* device = shoal_device_get(0);
  shoal_buffer* buffer = shoal_buffer_from_host_new(device, host, sizeof host);
  CHECK(buffer != NULL && shoal_buffer_base(buffer) == host);
  shoal_weights* weights = shoal_weights_new();
  shoal_tensor* w = shoal_weights_add(weights, "w", SHOAL_F32, 1, shape, SHOAL_ROLE_WEIGHT);
  CHECK_FAILS(shoal_buffer_place(buffer, w, 48) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "48");
  CHECK_OK(shoal_buffer_place(buffer, w, 0));
  host[7] = 3;
  float value;
  CHECK_OK(shoal_tensor_get(w, &value, 28, 4));
  CHECK(value == 3);
  shoal_buffer_free(buffer);
  CHECK(shoal_tensor_data(w) == NULL);
  shoal_weights_free(weights);
}

static void buffer_types_have_properties(void) {
  shoal_device* device = shoal_device_get(0);
  shoal_buffer_type* type = shoal_device_buffer_type(device);
  CHECK(shoal_buffer_type_device(type) == device && shoal_buffer_type_is_host(type));
  CHECK(shoal_buffer_type_alignment(type) >= 16 && shoal_buffer_type_max_size(type) > 1 << 20);
  CHECK(strlen(shoal_buffer_type_name(type)) > 0 && shoal_device_weights_type(device) != NULL);
  CHECK(shoal_device_supports_buffer_type(device, type));
  shoal_buffer* buffer = shoal_buffer_new(type, 100);
  CHECK(buffer != NULL && shoal_buffer_size(buffer) >= 100);
  shoal_buffer_free(buffer);
  CHECK_FAILS(shoal_buffer_new(type, (size_t)1 << 60) == NULL, SHOAL_OUT_OF_MEMORY, "CPU0");
}

static void streams_copy_in_order(void) {
  const int64_t shape[] = {64};
  shoal_backend* first = shoal_backend_init(shoal_device_get(0), "threads=1");
  shoal_backend* second = shoal_backend_init_by_name("CPU1:threads=1");
  CHECK(first != NULL && second != NULL && shoal_backend_device(second) == shoal_device_get(1));
  CHECK(strlen(shoal_backend_name(first)) > 0);
  CHECK_OK(shoal_backend_set_threads(first, 2));
  shoal_weights *a = shoal_weights_new(), *b = shoal_weights_new();
  shoal_tensor* from = shoal_weights_add(a, "from", SHOAL_F32, 1, shape, SHOAL_ROLE_CACHE);
  shoal_tensor* to = shoal_weights_add(b, "to", SHOAL_F32, 1, shape, SHOAL_ROLE_CACHE);
  shoal_buffer* from_memory = shoal_weights_allocate(a, shoal_device_buffer_type(shoal_device_get(0)), SHOAL_USAGE_ANY);
  shoal_buffer* to_memory = shoal_weights_allocate(b, shoal_device_buffer_type(shoal_device_get(1)), SHOAL_USAGE_ANY);
  shoal_event* event = shoal_event_new(shoal_device_get(0));
  CHECK(event != NULL);
  float values[64], read[64] = {0};
  for (int i = 0; i < 64; ++i) values[i] = (float)(i * i);
  CHECK_OK(shoal_tensor_set_async(first, from, values, 0, sizeof values));
  CHECK_OK(shoal_event_record(event, first));
  CHECK_OK(shoal_event_wait(event, second));
  CHECK_OK(shoal_tensor_copy_async(first, second, from, to));
  CHECK_OK(shoal_tensor_get_async(second, to, read, 0, sizeof read));
  CHECK_OK(shoal_event_synchronize(event));
  CHECK_OK(shoal_backend_synchronize(second));
  CHECK(memcmp(values, read, sizeof read) == 0);
  shoal_event_free(event);
  shoal_backend_free(first);
  shoal_backend_free(second);
  shoal_buffer_free(from_memory);
  shoal_buffer_free(to_memory);
  shoal_weights_free(a);
  shoal_weights_free(b);
}

void test_buffers(const char* model) {
  (void)model;
  devices_have_properties();
  dtypes_have_gguf_numbers();
  tensors_have_memory();
  host_memory_is_wrapped();
  buffer_types_have_properties();
  streams_copy_in_order();
}
