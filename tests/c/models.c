// Models and tokens in C, with the bundled model (5 million weights, 1024 tokens).
#include "tests/c/check.h"

static void info_and_metadata(const shoal_model* model) {
  shoal_model_info info = SHOAL_MODEL_INFO_INIT;
  CHECK_OK(shoal_model_get_info(model, &info));
  CHECK(strcmp(info.architecture, "llama") == 0 && info.layers == 6 && info.embedding == 256);
  CHECK(info.vocabulary == 1024 && info.heads == 8 && info.kv_heads == 4 && info.context > 0);
  CHECK(info.weight_elements > 4000000 && info.weight_bytes < (size_t)info.weight_elements);
  size_t index = 0;
  for (; index < shoal_model_key_count(model); ++index) {
    shoal_blob* key = shoal_model_key_text(model, index);
    const bool found = strcmp(shoal_blob_data(key), "llama.block_count") == 0;
    shoal_blob_free(key);
    if (found) break;
  }
  CHECK(index < shoal_model_key_count(model));
  CHECK_FAILS(shoal_model_key_text(model, 100000) == NULL, SHOAL_INVALID_ARGUMENT, "100000");
  shoal_blob* layers = shoal_model_value_text(model, "llama.block_count");
  shoal_blob* name = shoal_model_value_text(model, "general.architecture");
  CHECK(strcmp(shoal_blob_data(layers), "6") == 0 && strcmp(shoal_blob_data(name), "llama") == 0);
  shoal_blob_free(layers), shoal_blob_free(name);
  CHECK_FAILS(shoal_model_value_text(model, "no.key") == NULL, SHOAL_INVALID_ARGUMENT, "no.key");
  CHECK_FAILS(shoal_model_value_text(model, "tokenizer.ggml.tokens") == NULL, SHOAL_INVALID_ARGUMENT, "1024 string");
}

static void tokens(const shoal_model* model) {
  const char* text = "In the beginning God created the heaven";
  shoal_token ids[64];
  char decoded[64];
  size_t count = 0, bytes = 0;
  CHECK_FAILS(shoal_model_tokenize(model, text, strlen(text), false, ids, 2, &count) == SHOAL_TOO_SMALL,
              SHOAL_TOO_SMALL, "the array has 2");
  CHECK(count > 2 && count < 64);
  CHECK_OK(shoal_model_tokenize(model, text, strlen(text), false, ids, count, &count));
  CHECK(shoal_model_adds_bos(model) == (ids[0] == shoal_model_bos(model)) && !shoal_model_adds_eos(model));
  CHECK(shoal_model_detokenize(model, ids, count, true, NULL, 0, &bytes) == SHOAL_TOO_SMALL && bytes == strlen(text));
  CHECK_OK(shoal_model_detokenize(model, ids, count, true, decoded, sizeof decoded, &bytes));
  CHECK(bytes == strlen(text) && memcmp(decoded, text, bytes) == 0);
  CHECK(shoal_model_is_end(model, shoal_model_eos(model)) && !shoal_model_is_end(model, ids[count - 1]));
  CHECK(shoal_model_is_control(model, shoal_model_eos(model)) && strlen(shoal_model_piece(model, ids[1])) > 0);
  CHECK(shoal_model_score(model, ids[1]) <= 0);
  CHECK_FAILS(shoal_model_piece(model, 1024) == NULL, SHOAL_INVALID_ARGUMENT, "0 to 1023");
  CHECK_FAILS(!shoal_model_is_control(model, -1), SHOAL_INVALID_ARGUMENT, "token -1");
  // Only a template may contain control tokens.
  const char* bos = shoal_model_piece(model, shoal_model_bos(model));
  size_t plain = 0, control = 0;
  CHECK_OK(shoal_model_tokenize(model, bos, strlen(bos), false, ids, 64, &plain));
  CHECK_OK(shoal_model_tokenize(model, bos, strlen(bos), true, ids, 64, &control));
  CHECK(control == 1 && ids[0] == shoal_model_bos(model) && plain > control);
  CHECK_OK(shoal_model_tokenize(model, NULL, 0, false, ids, 64, &count));
  CHECK(count <= 1);
}

static bool stop_at_half(size_t done, size_t total, void* user) {
  ++*(int*)user;
  return done * 2 < total;
}

static void loading_reports_errors(const char* path) {
  shoal_device* device = shoal_device_get(0);
  int calls = 0;
  CHECK_FAILS(shoal_model_load("not/there.gguf", &device, 1, NULL) == NULL, SHOAL_INVALID_ARGUMENT, "not/there.gguf");
  shoal_model_options options = SHOAL_MODEL_OPTIONS_INIT;
  options.progress = stop_at_half;
  options.user = &calls;
  CHECK_FAILS(shoal_model_load(path, &device, 1, &options) == NULL, SHOAL_ABORTED, "progress");
  CHECK(calls > 0);
  options.progress = NULL;
  options.split_mode = 9;
  CHECK_FAILS(shoal_model_load(path, &device, 1, &options) == NULL, SHOAL_INVALID_ARGUMENT, "split mode number 9");
  options.split_mode = SHOAL_SPLIT_TENSOR;
  options.ratio = "1,2,3";
  CHECK_FAILS(shoal_model_load(path, &device, 1, &options) == NULL, SHOAL_INVALID_ARGUMENT, "1,2,3");
}

void test_models(const char* path) {
  loading_reports_errors(path);
  shoal_model* model = shoal_model_load(path, NULL, 0, NULL);
  CHECK(model != NULL);
  info_and_metadata(model);
  tokens(model);
  shoal_model_free(model);
}
