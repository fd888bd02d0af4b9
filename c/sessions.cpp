// C functions for sessions and samplers.
#include "models/session/session.h"

#include "c/models.h"
#include "models/session/session_state.h"

using namespace shoal;
using namespace shoal::c;

namespace {

models::SessionOptions options_of(const shoal_session_options* given) {
  const shoal_session_options options = read(given, SHOAL_SESSION_OPTIONS_INIT, "options");
  models::SessionOptions result;
  result.context = options.context;
  result.batch = options.batch;
  result.dtype_k = dtype_of(options.type_k);
  result.dtype_v = dtype_of(options.type_v);
  result.op_offload = !options.no_op_offload;
  result.candidates = options.candidates;
  result.checkpoints = options.checkpoints;
  result.checkpoint_every = options.checkpoint_every;
  return result;
}

models::SamplerParams params_of(const shoal_sampler_options* given) {
  const shoal_sampler_options options = read(given, SHOAL_SAMPLER_OPTIONS_INIT, "options");
  models::SamplerParams params;
  params.temp = options.temperature;
  params.top_k = options.top_k;
  params.top_p = options.top_p;
  params.min_p = options.min_p;
  params.seed = options.seed;
  params.repeat_penalty = options.repeat_penalty;
  params.presence_penalty = options.presence_penalty;
  params.frequency_penalty = options.frequency_penalty;
  params.penalty_last_n = options.penalty_last_n;
  for (const auto& [token, bias] : elements(options.biases, options.bias_count, "biases")) params.biases[token] += bias;
  return params;
}

/// The last of several outputs of equal length.
template <class T>
std::span<const T> last_output(std::span<const T> all, size_t outputs) {
  return all.last(all.size() / outputs);
}

}  // namespace

shoal_session* shoal_session_new(const shoal_model* model, const shoal_session_options* options) {
  return guard<shoal_session*>(__func__, nullptr, [&] {
    const shoal_model& m = object(model, "model");
    return new shoal_session{{*m.model, *m.placement, m.placement->init(), options_of(options)}};
  });
}

void shoal_session_free(shoal_session* session) {
  destroy(session);
}

int64_t shoal_session_context(const shoal_session* session) {
  return guard<int64_t>(__func__, -1, [&] { return object(session, "session").session.context(); });
}

int64_t shoal_session_batch(const shoal_session* session) {
  return guard<int64_t>(__func__, -1, [&] { return object(session, "session").session.batch(); });
}

int64_t shoal_session_position(const shoal_session* session) {
  return guard<int64_t>(__func__, -1, [&] { return object(session, "session").session.position(); });
}

bool shoal_session_needs_checkpoints(const shoal_session* session) {
  return guard(__func__, false, [&] { return object(session, "session").session.needs_checkpoints(); });
}

shoal_status shoal_session_evaluate(shoal_session* session, const shoal_token* tokens, size_t count, size_t outputs) {
  return guard(__func__, [&] {
    shoal_session& s = object(session, "session");
    require<InvalidArgument>(outputs >= 1 && outputs <= count, "there are {} tokens; outputs must be 1 to {}, got {}",
                             count, count, outputs);
    s.session.evaluate(elements(tokens, count, "tokens"), static_cast<int64_t>(outputs));
    s.outputs = outputs;
  });
}

shoal_status shoal_session_synchronize(shoal_session* session) {
  return guard(__func__, [&] { object(session, "session").session.synchronize(); });
}

shoal_status shoal_session_logits(shoal_session* session, const float** logits, size_t* count) {
  return guard(__func__, [&] {
    checked(logits, "logits"), checked(count, "count");
    const auto values = object(session, "session").session.logits();
    *logits = values.data();
    *count = values.size();
  });
}

shoal_status shoal_session_candidates(shoal_session* session, const shoal_candidate** candidates, size_t* count) {
  return guard(__func__, [&] {
    checked(candidates, "candidates"), checked(count, "count");
    shoal_session& s = object(session, "session");
    s.candidates.clear();
    for (const auto& [id, logit] : s.session.candidates()) s.candidates.push_back({id, logit});
    *candidates = s.candidates.data();
    *count = s.candidates.size();
  });
}

shoal_status shoal_session_set_abort_callback(shoal_session* session, shoal_abort_callback abort, void* user) {
  return guard(__func__, [&] {
    sched::Scheduler& scheduler = object(session, "session").session.scheduler();
    for (int i = 0; i < scheduler.backends(); ++i) {
      Backend& backend = scheduler.backend(i);
      const bool set =
          backend.set_abort_callback(abort == nullptr ? AbortCallback() : [abort, user] { return abort(user); });
      require<DeviceError>(set || abort == nullptr, "{} cannot call an abort callback", backend.name());
    }
  });
}

shoal_status shoal_session_rewind(shoal_session* session, int64_t position) {
  return guard(__func__, [&] { object(session, "session").session.rewind(position); });
}

int64_t shoal_session_rewindable(const shoal_session* session, int64_t position) {
  return guard<int64_t>(__func__, -1, [&] { return object(session, "session").session.rewindable(position); });
}

shoal_status shoal_session_checkpoint(shoal_session* session) {
  return guard(__func__, [&] { object(session, "session").session.checkpoint(); });
}

shoal_blob* shoal_session_save(shoal_session* session) {
  return guard<shoal_blob*>(__func__, nullptr,
                            [&] { return blob_of(models::save_state(object(session, "session").session)); });
}

shoal_status shoal_session_restore(shoal_session* session, const void* state, size_t bytes) {
  return guard(__func__, [&] {
    const auto* data = static_cast<const std::byte*>(state);
    models::restore_state(object(session, "session").session, elements(data, bytes, "state"));
  });
}

shoal_sampler* shoal_sampler_new(const shoal_sampler_options* options) {
  return guard<shoal_sampler*>(__func__, nullptr,
                               [&] { return new shoal_sampler{models::Sampler(params_of(options))}; });
}

void shoal_sampler_free(shoal_sampler* sampler) {
  destroy(sampler);
}

int64_t shoal_sampler_candidates(const shoal_sampler_options* options) {
  return guard<int64_t>(__func__, -1, [&] {
    const models::SamplerParams params = params_of(options);
    models::check_params(params);
    return models::candidates_needed(params);
  });
}

shoal_status shoal_sampler_accept(shoal_sampler* sampler, shoal_token token) {
  return guard(__func__, [&] { object(sampler, "sampler").sampler.accept(token); });
}

shoal_status shoal_sampler_sample(shoal_sampler* sampler, shoal_session* session, shoal_token* token) {
  return guard(__func__, [&] {
    models::Sampler& from = object(sampler, "sampler").sampler;
    shoal_session& s = object(session, "session");
    checked(token, "token");
    *token = s.session.selects() ? from.sample_best(last_output(s.session.candidates(), s.outputs))
                                 : from.sample(last_output(s.session.logits(), s.outputs));
    from.accept(*token);
  });
}

shoal_status shoal_sampler_sample_logits(shoal_sampler* sampler, const float* logits, size_t count,
                                         shoal_token* token) {
  return guard(__func__, [&] {
    models::Sampler& from = object(sampler, "sampler").sampler;
    *checked(token, "token") = from.sample(elements(logits, count, "logits"));
    from.accept(*token);
  });
}
