// Options and sizes of sessions (session.h) and engines (models/engine/engine.h), and the shapes of their graphs.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/trace.h"
#include "models/arch/architecture.h"
#include "models/place/placement.h"
#include "sched/scheduler.h"

namespace shoal::models {

struct SessionOptions {
  int64_t context = 0;  ///< maximum number of tokens of all sequences; 0: the model's training context
  int64_t batch = 512;  ///< maximum number of tokens in one run of a graph
  DType dtype_k = DType::kF16;
  DType dtype_v = DType::kF16;
  int64_t sequences = 1;   ///< maximum number of sequences in one run of a graph
  int64_t drafts = 0;      ///< maximum number of guessed tokens of a sequence in one run of a graph (engine.h)
  int64_t outputs = 0;     ///< number of outputs that one run of a graph must support at least
  int64_t windows = 0;     ///< KvCacheOptions::windows
  int64_t slots = 1;       ///< number of states of each recurrent layer
  bool op_offload = true;  ///< see sched::SchedulerOptions
  /// Number of best tokens that the devices select for each output. Only these tokens reach the host: use candidates()
  /// instead of logits(). CUDA devices select at most 256 tokens. 0: the devices return all logits.
  int64_t candidates = 0;
  bool keeps_logits = false;  ///< whether logits remain available if the devices select candidates
  int64_t checkpoints = 8;    ///< maximum number of checkpoints; an additional checkpoint replaces the checkpoint whose
                              ///< removal leaves the smallest gap between its neighbours
  int64_t checkpoint_every =
      0;  ///< minimum number of tokens between automatic checkpoints; 0: checkpoints only on request
  /// The tracer receives one row per stream and a row "host". The tracer must outlive the session. nullptr: no trace.
  Tracer* tracer = nullptr;
};

inline constexpr int64_t kKeptStates = 4;
/// Completes the options of an engine (models/engine/engine.h): `slots` and `windows` for options.sequences requests
/// and for `kept` cached beginnings of recurrent models. Plans of the engine (ModelPlan) must use the same options.
/// The number of requests is limited to the tokens of a batch and of the context. With options.candidates, the devices
/// select the best tokens, and the engine reads all logits of a row only if a request needs them.
SessionOptions engine_options(SessionOptions options, int64_t kept = kKeptStates);

/// Maximum number of prompt batches in flight if layers are on several devices.
inline constexpr int kPipelineCopies = 4;

/// Context and batch of a session, in tokens, after defaults and limits are applied.
struct SessionSize {
  int64_t context = 0;
  int64_t batch = 0;
};
/// Throws InvalidArgument if `batch`, `sequences` or `slots` is below 1, or if `context`, `drafts`, `candidates`,
/// `checkpoints` or `checkpoint_every` is below 0.
SessionSize session_size(const Hparams& hparams, const SessionOptions& options);

/// Options of a session's KV cache. `parts` is Placement::latent_parts().
KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts);

/// One run of a graph: the number of tokens without padding, and the shape of the graph.
struct Batch {
  int64_t tokens = 1;
  BatchShape shape;
  bool operator==(const Batch&) const = default;
};
/// Divides `tokens` tokens into batches of `most` tokens and a rest of 1 to `most` tokens. Usually the rest is one
/// batch, padded to the next power of two or to `most`, whichever is smaller. The rest becomes two batches if this
/// division saves more than 32 padding tokens (the cost of an additional run) and the second batch has at least
/// `outputs` tokens. The first of these batches has the largest power of two below the length of the rest, and the
/// second batch has the remaining tokens. The last batch has all outputs, so the rest must have at least `outputs`
/// tokens.
///   700 tokens, 1 output, most = 512: 512 tokens in {512, 1}, 128 tokens in {128, 1}, 60 tokens in {64, 1}
///   5 tokens, 5 outputs, most = 512: 5 tokens in {8, 8}
std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most);
/// Returns the prompt shapes that need the most memory, largest first. Returns at most as many shapes as a session
/// caches.
///   512 -> {512, 1}, {256, 1}, {128, 1}, {64, 1}
std::vector<BatchShape> largest_prompt_shapes(int64_t batch);

/// Maximum number of outputs in one run of a graph: one for each sequence and each of its guessed tokens, or
/// options.outputs if that number is larger.
int64_t most_outputs(const SessionSize& size, const SessionOptions& options);
/// Returns the shapes that a plan contains, besides the shape of a single token: largest_prompt_shapes(), or the
/// largest shapes of batches of several sequences.
std::vector<BatchShape> largest_shapes(const SessionSize& size, const SessionOptions& options);
/// Number of graphs that a runner caches, besides the graph for single tokens.
size_t kept_shapes(const SessionOptions& options);
/// The smallest usual shape for a batch of several sequences.
///   9 tokens of 3 sequences, 2 outputs: {12, 2, 4}
BatchShape shape_for(int64_t tokens, int64_t outputs, int64_t sequences, const SessionSize& size);

/// Number of tokens to run at once, if `tokens` tokens wait: `tokens`, or fewer tokens if two runs are faster than the
/// padding of one run.
///   257 tokens: 256
int64_t tokens_to_run(int64_t tokens, const SessionSize& size);

/// Options of a session's scheduler. Plans of the session must use the same options.
sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options);

}  // namespace shoal::models
