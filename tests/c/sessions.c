// Sessions and samplers in C, with the bundled model on one device and on several devices.
#include <math.h>

#include "tests/c/check.h"

#define CONTEXT 128
#define VOCABULARY 1024

static const char* const kPrompt = "In the beginning God created the heaven and the earth. And the earth was";
static const char* const kContinuation = ", and the throne was like";

static shoal_token prompt[CONTEXT];
static size_t prompt_count;

static shoal_session* session_of(const shoal_model* model, int64_t candidates) {
  shoal_session_options options = SHOAL_SESSION_OPTIONS_INIT;
  options.context = CONTEXT;
  options.batch = 32;
  options.candidates = candidates;
  shoal_session* session = shoal_session_new(model, &options);
  CHECK(session != NULL && shoal_session_context(session) == CONTEXT && shoal_session_batch(session) == 32);
  return session;
}

static shoal_sampler* greedy(void) {
  shoal_sampler_options options = SHOAL_SAMPLER_OPTIONS_INIT;
  options.temperature = 0;
  CHECK(shoal_sampler_candidates(&options) == 1);
  shoal_sampler* sampler = shoal_sampler_new(&options);
  CHECK(sampler != NULL);
  return sampler;
}

/// Generates 8 tokens after the tokens of the session and checks their text.
static void generate(const shoal_model* model, shoal_session* session) {
  char text[128];
  size_t length = 0;
  shoal_sampler* sampler = greedy();
  for (int i = 0; i < 8; ++i) {
    shoal_token token;
    size_t bytes;
    CHECK_OK(shoal_sampler_sample(sampler, session, &token));
    CHECK_OK(shoal_model_detokenize(model, &token, 1, false, text + length, sizeof text - length, &bytes));
    length += bytes;
    CHECK_OK(shoal_session_evaluate(session, &token, 1, 1));
  }
  CHECK(length == strlen(kContinuation) && memcmp(text, kContinuation, length) == 0);
  shoal_sampler_free(sampler);
}

static void texts_are_generated(const shoal_model* model) {
  shoal_session* session = session_of(model, 0);
  CHECK_OK(shoal_session_evaluate(session, prompt, prompt_count, 1));
  CHECK(shoal_session_position(session) == (int64_t)prompt_count);
  generate(model, session);
  // A rewind removes the generated tokens. The last token of the prompt gives the same text again.
  const int64_t last = (int64_t)prompt_count - 1;
  CHECK(shoal_session_rewindable(session, last) == last && !shoal_session_needs_checkpoints(session));
  CHECK_OK(shoal_session_rewind(session, last));
  CHECK_OK(shoal_session_checkpoint(session));
  CHECK_OK(shoal_session_evaluate(session, prompt + last, 1, 1));
  generate(model, session);
  CHECK_FAILS(shoal_session_rewind(session, -1) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "-1");
  shoal_session_free(session);

  session = session_of(model, 4);  // the devices select candidates
  CHECK_OK(shoal_session_evaluate(session, prompt, prompt_count, 1));
  generate(model, session);
  shoal_session_free(session);
}

static void candidates_are_the_best_logits(const shoal_model* model) {
  const float* logits;
  const shoal_candidate* candidates;
  size_t count, candidate_count;
  shoal_session *all = session_of(model, 0), *best = session_of(model, 5);
  CHECK_OK(shoal_session_evaluate(all, prompt, prompt_count, 3));
  CHECK_OK(shoal_session_evaluate(best, prompt, prompt_count, 3));
  CHECK_OK(shoal_session_logits(all, &logits, &count));
  CHECK_OK(shoal_session_candidates(best, &candidates, &candidate_count));
  CHECK(count == 3 * VOCABULARY && candidate_count == 15);
  for (size_t i = 0; i < candidate_count; ++i) {
    const float* output = logits + i / 5 * VOCABULARY;
    CHECK(fabsf(output[candidates[i].token] - candidates[i].logit) < 1e-4f);
    size_t better = 0;
    for (size_t t = 0; t < VOCABULARY; ++t) better += output[t] > output[candidates[i].token];
    CHECK(better == i % 5);
  }
  CHECK_FAILS(shoal_session_candidates(all, &candidates, &count) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "candidates");
  CHECK_FAILS(shoal_session_logits(best, &logits, &count) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "candidates");
  // Samplers use the last output.
  shoal_sampler* sampler = greedy();
  shoal_token from_all, from_best, from_logits;
  CHECK_OK(shoal_sampler_sample(sampler, all, &from_all));
  CHECK_OK(shoal_sampler_sample(sampler, best, &from_best));
  CHECK_OK(shoal_session_logits(all, &logits, &count));
  CHECK_OK(shoal_sampler_sample_logits(sampler, logits + 2 * VOCABULARY, VOCABULARY, &from_logits));
  CHECK(from_all == from_best && from_all == from_logits);
  shoal_sampler_free(sampler);
  shoal_session_free(all), shoal_session_free(best);
}

static void states_move_to_other_devices(const shoal_model* from, const shoal_model* to) {
  shoal_session *first = session_of(from, 0), *second = session_of(to, 0);
  CHECK_OK(shoal_session_evaluate(first, prompt, prompt_count - 1, 1));
  shoal_blob* state = shoal_session_save(first);
  CHECK(state != NULL && shoal_blob_size(state) > 1000);
  CHECK_OK(shoal_session_restore(second, shoal_blob_data(state), shoal_blob_size(state)));
  CHECK(shoal_session_position(second) == (int64_t)prompt_count - 1);
  CHECK_OK(shoal_session_evaluate(second, prompt + prompt_count - 1, 1, 1));
  generate(to, second);
  CHECK_FAILS(shoal_session_restore(second, shoal_blob_data(state), 100) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "");
  shoal_blob_free(state);
  shoal_session_free(first), shoal_session_free(second);
}

static bool stop(void* user) {
  return *(bool*)user;
}

static void aborted_sessions_rewind(const shoal_model* model) {
  const float* logits;
  size_t count;
  bool stops = true;
  shoal_session* session = session_of(model, 0);
  CHECK_OK(shoal_session_evaluate(session, prompt, 4, 1));
  CHECK_OK(shoal_session_synchronize(session));
  CHECK_OK(shoal_session_set_abort_callback(session, stop, &stops));
  shoal_status status = shoal_session_evaluate(session, prompt + 4, 1, 1);
  if (status == SHOAL_OK) status = shoal_session_logits(session, &logits, &count);
  CHECK(status == SHOAL_ABORTED);
  stops = false;
  CHECK_FAILS(shoal_session_evaluate(session, prompt + 4, 1, 1) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "rewind");
  CHECK_OK(shoal_session_rewind(session, shoal_session_rewindable(session, shoal_session_position(session))));
  CHECK(shoal_session_position(session) == 4);
  CHECK_OK(shoal_session_evaluate(session, prompt + 4, prompt_count - 4, 1));
  CHECK_OK(shoal_session_set_abort_callback(session, NULL, NULL));
  generate(model, session);
  shoal_session_free(session);
}

static void wrong_arguments_are_rejected(const shoal_model* model) {
  const shoal_token outside = VOCABULARY;
  shoal_session_options options = SHOAL_SESSION_OPTIONS_INIT;
  options.type_k = 999;
  CHECK_FAILS(shoal_session_new(model, &options) == NULL, SHOAL_INVALID_ARGUMENT, "dtype number 999");
  options.type_k = SHOAL_F16;
  options.batch = 0;
  CHECK_FAILS(shoal_session_new(model, &options) == NULL, SHOAL_INVALID_ARGUMENT, "batch");
  shoal_session* session = session_of(model, 0);
  CHECK_FAILS(shoal_session_evaluate(session, prompt, 2, 0) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "outputs");
  CHECK_FAILS(shoal_session_evaluate(session, prompt, 2, 3) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "outputs");
  CHECK_FAILS(shoal_session_evaluate(session, NULL, 2, 1) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "'tokens' is NULL");
  CHECK_FAILS(shoal_session_evaluate(session, &outside, 1, 1) != SHOAL_OK, SHOAL_INVALID_ARGUMENT, "1024");
  shoal_session_free(session);

  shoal_sampler_options sampling = SHOAL_SAMPLER_OPTIONS_INIT;
  sampling.top_p = 2;
  CHECK_FAILS(shoal_sampler_new(&sampling) == NULL, SHOAL_INVALID_ARGUMENT, "top_p");
  CHECK_FAILS(shoal_sampler_candidates(&sampling) == -1, SHOAL_INVALID_ARGUMENT, "top_p");
}

static void penalties_count_accepted_tokens(void) {
  const float logits[] = {1, 3, 2.5f};
  const shoal_logit_bias bias = {0, 0.75f};
  shoal_sampler_options options = SHOAL_SAMPLER_OPTIONS_INIT;
  options.temperature = 0;
  options.frequency_penalty = 1;
  options.biases = &bias;
  options.bias_count = 1;
  CHECK(shoal_sampler_candidates(&options) == 0);  // a positive bias needs all logits
  shoal_sampler* sampler = shoal_sampler_new(&options);
  // The logits are {1.75, 3, 2.5}, {1.75, 2, 2.5} and, after another token 1, {1.75, 1, 1.5}.
  const shoal_token expected[] = {1, 2, 0};
  for (int i = 0; i < 3; ++i) {
    shoal_token token;
    CHECK_OK(shoal_sampler_sample_logits(sampler, logits, 3, &token));
    CHECK(token == expected[i]);
    if (i == 1) CHECK_OK(shoal_sampler_accept(sampler, 1));
  }
  shoal_sampler_free(sampler);
}

void test_sessions(const char* path) {
  shoal_device* devices[4];
  for (size_t i = 0; i < 4; ++i) devices[i] = shoal_device_get(i);
  shoal_model_options options = SHOAL_MODEL_OPTIONS_INIT;
  shoal_model* one = shoal_model_load(path, devices, 1, NULL);
  options.ratio = "2,1,1";
  options.threads = 1;
  shoal_model* three = shoal_model_load(path, devices, 3, &options);
  options.ratio = NULL;
  options.split_mode = SHOAL_SPLIT_LAYER;
  options.no_mapping = true, options.no_repacking = true;
  shoal_model* layers = shoal_model_load(path, devices + 2, 2, &options);
  CHECK(one != NULL && three != NULL && layers != NULL);
  CHECK_OK(shoal_model_tokenize(one, kPrompt, strlen(kPrompt), false, prompt, CONTEXT, &prompt_count));
  texts_are_generated(one);
  texts_are_generated(three);
  texts_are_generated(layers);
  candidates_are_the_best_logits(three);
  states_move_to_other_devices(one, three);
  states_move_to_other_devices(three, layers);
  aborted_sessions_rewind(one);
  aborted_sessions_rewind(three);
  wrong_arguments_are_rejected(one);
  penalties_count_accepted_tokens();
  shoal_model_free(one), shoal_model_free(three), shoal_model_free(layers);
}
