/* Second part of the C interface: models and generation. shoal.h has the rules for errors, ownership and threads.
 * Programs include shoal.h.
 *
 *   shoal_model* model = shoal_model_load("m.gguf", devices, 2, NULL);
 *   shoal_session* session = shoal_session_new(model, NULL);
 *   shoal_sampler* sampler = shoal_sampler_new(NULL);
 *   shoal_model_tokenize(model, text, length, false, tokens, capacity, &count);
 *   shoal_session_evaluate(session, tokens, count, 1);
 *   shoal_sampler_sample(sampler, session, &token);     the next token; repeat with evaluate
 *
 * A model must outlive its sessions. A session evaluates one sequence. */
#ifndef SHOAL_MODELS_H
#define SHOAL_MODELS_H

#include <shoal.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t shoal_token;

/* ---- Models ---- */

typedef int32_t shoal_split_mode;
enum {
  SHOAL_SPLIT_TENSOR = 0, /* all devices act as one meta device */
  SHOAL_SPLIT_LAYER = 1,  /* each device has some of the layers */
};

/* Receives the progress from one thread at a time. The result false stops the loading with SHOAL_ABORTED. */
typedef bool (*shoal_progress_callback)(size_t done_bytes, size_t total_bytes, void* user);

typedef struct shoal_model_options {
  size_t size;
  shoal_split_mode split_mode;
  int32_t threads;       /* threads of each CPU device; 0: default */
  const char* ratio;     /* one share per device, such as "3,1"; NULL: equal shares */
  int64_t device_layers; /* the last `device_layers` layers are on the devices, earlier layers on the CPU; -1: all */
  int64_t expert_layers; /* the experts of the first `expert_layers` layers with experts are on the CPU; default 0 */
  bool cache_on_host;    /* the KV cache is on the CPU */
  bool no_mapping;       /* do not use weights in the mapping of the file */
  bool no_repacking;     /* do not convert weights to the fastest layout of the device */
  shoal_progress_callback progress;
  void* user; /* for `progress` */
} shoal_model_options;
#define SHOAL_MODEL_OPTIONS_INIT \
  { .size = sizeof(shoal_model_options), .device_layers = -1 }

/* Opens a GGUF file, places its weights on the devices and loads them. For a model in several files, `path` is the
 * first file. With device_count 0, the model is on shoal_device_best(). `options` may be NULL. */
SHOAL_API shoal_model* shoal_model_load(const char* path, shoal_device* const* devices, size_t device_count,
                                        const shoal_model_options* options);
/* Free the sessions of the model first. */
SHOAL_API void shoal_model_free(shoal_model* model);

typedef struct shoal_model_info {
  size_t size;
  const char* architecture; /* valid until the model is freed */
  int64_t layers, context, embedding, vocabulary, heads, kv_heads;
  size_t weight_bytes;
  int64_t weight_elements;
} shoal_model_info;
#define SHOAL_MODEL_INFO_INIT \
  { .size = sizeof(shoal_model_info) }
SHOAL_API shoal_status shoal_model_get_info(const shoal_model* model, shoal_model_info* info);
/* Keys of the file's metadata, and the text of a number, a truth value or a text. An array is an error. */
SHOAL_API size_t shoal_model_key_count(const shoal_model* model);
SHOAL_API shoal_blob* shoal_model_key_text(const shoal_model* model, size_t index);
SHOAL_API shoal_blob* shoal_model_value_text(const shoal_model* model, const char* key);

/* ---- Tokens ---- */

/* Stores the tokens of `bytes` bytes of text and their number in `count`. If `capacity` is too small, stores nothing
 * and returns SHOAL_TOO_SMALL. With `is_template`, the text of control tokens becomes control tokens. Adds BOS and EOS
 * if the file asks for them. */
SHOAL_API shoal_status shoal_model_tokenize(const shoal_model* model, const char* text, size_t bytes, bool is_template,
                                            shoal_token* tokens, size_t capacity, size_t* count);
/* Stores the text of the tokens without a zero byte, and its length in `bytes`. Control tokens have no text. With
 * `whole`, spaces that shoal_model_tokenize() added are removed; use false for the continuation of a text. The text of
 * one token may be part of a UTF-8 sequence. */
SHOAL_API shoal_status shoal_model_detokenize(const shoal_model* model, const shoal_token* tokens, size_t count,
                                              bool whole, char* text, size_t capacity, size_t* bytes);
/* The piece of the vocabulary as stored in the file; valid until the model is freed. */
SHOAL_API const char* shoal_model_piece(const shoal_model* model, shoal_token token);
SHOAL_API float shoal_model_score(const shoal_model* model, shoal_token token);
/* -1 if the tokenizer has no such token. */
SHOAL_API shoal_token shoal_model_bos(const shoal_model* model);
SHOAL_API shoal_token shoal_model_eos(const shoal_model* model);
SHOAL_API bool shoal_model_adds_bos(const shoal_model* model);
SHOAL_API bool shoal_model_adds_eos(const shoal_model* model);
/* Whether the token ends generation, and whether it is a control token. */
SHOAL_API bool shoal_model_is_end(const shoal_model* model, shoal_token token);
SHOAL_API bool shoal_model_is_control(const shoal_model* model, shoal_token token);

/* ---- Sessions ---- */

typedef struct shoal_session_options {
  size_t size;
  int64_t context;    /* tokens; 0: the model's training context */
  int64_t batch;      /* most tokens in one run of a graph */
  shoal_dtype type_k; /* dtypes of the KV cache */
  shoal_dtype type_v;
  int64_t candidates;       /* best tokens that the devices select, instead of all logits; 0: all logits */
  int64_t checkpoints;      /* most checkpoints */
  int64_t checkpoint_every; /* tokens between automatic checkpoints; 0: none */
  bool no_op_offload;       /* devices do not copy weights from host memory for large batches */
} shoal_session_options;
#define SHOAL_SESSION_OPTIONS_INIT \
  { .size = sizeof(shoal_session_options), .batch = 512, .type_k = SHOAL_F16, .type_v = SHOAL_F16, .checkpoints = 8 }

SHOAL_API shoal_session* shoal_session_new(const shoal_model* model, const shoal_session_options* options);
SHOAL_API void shoal_session_free(shoal_session* session);
SHOAL_API int64_t shoal_session_context(const shoal_session* session);
SHOAL_API int64_t shoal_session_batch(const shoal_session* session);
/* Number of tokens in the cache. */
SHOAL_API int64_t shoal_session_position(const shoal_session* session);

/* Appends tokens and keeps the logits of the last `outputs` tokens, at least 1. Queues the work. */
SHOAL_API shoal_status shoal_session_evaluate(shoal_session* session, const shoal_token* tokens, size_t count,
                                              size_t outputs);
SHOAL_API shoal_status shoal_session_synchronize(shoal_session* session);
/* Waits for the logits of the latest evaluate: one value per token of the vocabulary for each output, oldest output
 * first. The values are valid until the next call with this session. An error if the devices select candidates. */
SHOAL_API shoal_status shoal_session_logits(shoal_session* session, const float** logits, size_t* count);
typedef struct shoal_candidate {
  shoal_token token;
  float logit;
} shoal_candidate;
/* The best tokens of each output, best first. An error if the devices return all logits. */
SHOAL_API shoal_status shoal_session_candidates(shoal_session* session, const shoal_candidate** candidates,
                                                size_t* count);
/* See shoal_backend_set_abort_callback(). After an abort, rewind the session to continue. */
SHOAL_API shoal_status shoal_session_set_abort_callback(shoal_session* session, shoal_abort_callback abort, void* user);

/* Removes all tokens from `position` on. shoal_session_rewindable() returns the largest possible position up to
 * `position`. shoal_session_checkpoint() makes the current position possible for models that need checkpoints. */
SHOAL_API shoal_status shoal_session_rewind(shoal_session* session, int64_t position);
SHOAL_API int64_t shoal_session_rewindable(const shoal_session* session, int64_t position);
SHOAL_API shoal_status shoal_session_checkpoint(shoal_session* session);
/* Whether the model has recurrent layers or layers with a window, which rewind only to checkpoints. */
SHOAL_API bool shoal_session_needs_checkpoints(const shoal_session* session);
/* Saves the cache. Another session of the same model may restore it, also on other devices. After a restore, there are
 * no logits until the next evaluate. */
SHOAL_API shoal_blob* shoal_session_save(shoal_session* session);
SHOAL_API shoal_status shoal_session_restore(shoal_session* session, const void* state, size_t bytes);

/* ---- Sampling ---- */

typedef struct shoal_logit_bias {
  shoal_token token;
  float bias;
} shoal_logit_bias;

/* models/session/sampler.h describes the order of the steps. */
typedef struct shoal_sampler_options {
  size_t size;
  float temperature; /* 0: the token with the highest logit */
  int32_t top_k;     /* 0: all tokens */
  float top_p;
  float min_p;
  uint64_t seed;
  float repeat_penalty; /* 1: no penalty */
  float presence_penalty;
  float frequency_penalty;
  int32_t penalty_last_n; /* number of tokens that penalties consider; -1: all tokens */
  const shoal_logit_bias* biases;
  size_t bias_count;
} shoal_sampler_options;
#define SHOAL_SAMPLER_OPTIONS_INIT                                                                           \
  {                                                                                                          \
    .size = sizeof(shoal_sampler_options), .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, \
    .repeat_penalty = 1, .penalty_last_n = 64                                                                \
  }

SHOAL_API shoal_sampler* shoal_sampler_new(const shoal_sampler_options* options);
SHOAL_API void shoal_sampler_free(shoal_sampler* sampler);
/* Number of candidates that sessions must select for this sampler; 0: all logits. */
SHOAL_API int64_t shoal_sampler_candidates(const shoal_sampler_options* options);
/* Adds a token of the prompt to the tokens that penalties consider. */
SHOAL_API shoal_status shoal_sampler_accept(shoal_sampler* sampler, shoal_token token);
/* Samples from the last output of the session, or from `count` logits, and accepts the token. */
SHOAL_API shoal_status shoal_sampler_sample(shoal_sampler* sampler, shoal_session* session, shoal_token* token);
SHOAL_API shoal_status shoal_sampler_sample_logits(shoal_sampler* sampler, const float* logits, size_t count,
                                                   shoal_token* token);

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_MODELS_H */
