#include "models/session/session_options.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace shoal::models {
namespace {

// The fixed cost of one run of a graph is the time in which a long run computes kRunCost tokens. Each run has this
// cost, because each run reads all weights.
constexpr int64_t kRunCost = 32;
constexpr size_t kKeptPromptShapes = 4, kKeptSequenceShapes = 32;

int64_t round_up(int64_t count, int64_t most) {
  return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), most);
}
/// The largest power of two below `count`. `count` is at least 2.
int64_t power_below(int64_t count) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
}

/// Whether a batch is a part of a prompt or a single token.
bool runs_alone(const SessionOptions& options) {
  return options.sequences == 1 && options.drafts == 0 && options.outputs <= 1;
}

Batch padded(int64_t tokens, int64_t outputs, int64_t most) {
  const int64_t room = round_up(tokens, most);
  return {tokens, {room, round_up(outputs, room)}};
}

}  // namespace

SessionOptions engine_options(SessionOptions options, int64_t kept) {
  options.sequences = std::min(options.sequences, options.batch);
  if (options.context > 0) options.sequences = std::min(options.sequences, options.context);
  // While a request continues a kept state, or guesses tokens, it has two slots.
  options.slots = kept == 0 && options.drafts == 0 ? options.sequences : 2 * options.sequences + kept;
  options.windows = kept == 0 ? options.sequences : 2 * options.sequences;
  options.keeps_logits = true;
  return options;
}

SessionSize session_size(const Hparams& hparams, const SessionOptions& options) {
  require<InvalidArgument>(options.context >= 0,
                           "a context of {} tokens is not possible; use 0 for the training context", options.context);
  require<InvalidArgument>(options.batch >= 1, "a batch of {} tokens is not possible; use 1 or more", options.batch);
  require<InvalidArgument>(options.candidates >= 0, "{} candidates are not possible; use 0 for all logits",
                           options.candidates);
  require<InvalidArgument>(options.sequences >= 1 && options.slots >= 1,
                           "{} sequences with {} states are not possible; use 1 or more", options.sequences,
                           options.slots);
  require<InvalidArgument>(options.drafts >= 0, "{} guessed tokens are not possible; use 0 for no guesses",
                           options.drafts);
  require<InvalidArgument>(options.checkpoints >= 0 && options.checkpoint_every >= 0,
                           "{} checkpoints, one every {} tokens, are not possible; use 0 for no checkpoints",
                           options.checkpoints, options.checkpoint_every);
  SessionSize size;
  size.context = options.context == 0 ? hparams.context : options.context;
  size.batch = std::min(options.batch, size.context);
  return size;
}

KvCacheOptions cache_options(const SessionSize& size, const SessionOptions& options, int64_t parts) {
  return {size.context, options.dtype_k, options.dtype_v, size.batch, parts, options.windows, options.slots};
}

std::vector<Batch> divide_into_batches(int64_t tokens, int64_t outputs, int64_t most) {
  std::vector<Batch> batches;
  for (; tokens > most; tokens -= most) batches.push_back({most, {most, 1}});
  const int64_t first = tokens > 1 ? power_below(tokens) : 0, second = tokens - first;
  const bool divided =
      first > 0 && outputs <= second && first + round_up(second, most) + kRunCost < round_up(tokens, most);
  if (divided) batches.push_back({first, {first, 1}});
  batches.push_back(padded(divided ? second : tokens, outputs, most));
  return batches;
}

std::vector<BatchShape> largest_prompt_shapes(int64_t batch) {
  std::vector<BatchShape> shapes;
  for (int64_t tokens = batch; tokens > 1 && shapes.size() < kKeptPromptShapes; tokens = power_below(tokens)) {
    shapes.push_back({tokens, 1});
  }
  return shapes;
}

int64_t most_outputs(const SessionSize& size, const SessionOptions& options) {
  const int64_t generating = options.sequences * (1 + std::min(options.drafts, size.batch));
  return std::min(std::max(generating, options.outputs), size.batch);
}

std::vector<BatchShape> largest_shapes(const SessionSize& size, const SessionOptions& options) {
  if (runs_alone(options)) return largest_prompt_shapes(size.batch);
  const int64_t sequences = std::min(options.sequences, size.batch);
  const int64_t outputs = most_outputs(size, options);
  return {shape_for(size.batch, outputs, sequences, size), shape_for(outputs, outputs, sequences, size)};
}

size_t kept_shapes(const SessionOptions& options) {
  return runs_alone(options) ? kKeptPromptShapes : kKeptSequenceShapes;
}

BatchShape shape_for(int64_t tokens, int64_t outputs, int64_t sequences, const SessionSize& size) {
  // There are two shapes per power of two, because the time of a batch grows with the number of tokens.
  int64_t room = round_up(tokens, size.batch);
  if (room > 2 && tokens <= room / 4 * 3) room = room / 4 * 3;
  // If each token is an output of a sequence of its own, all three numbers are equal.
  if (sequences == tokens && outputs == tokens) return {room, room, room};
  return {room, round_up(outputs, room), round_up(sequences, room)};
}

int64_t tokens_to_run(int64_t tokens, const SessionSize& size) {
  const auto padded = [&](int64_t count) { return count == 0 ? 0 : shape_for(count, 1, 1, size).tokens; };
  int64_t less = tokens;  // the largest number below `tokens` that needs no padding
  while (less > 0 && padded(less) != less) --less;
  return less + padded(tokens - less) + kRunCost < padded(tokens) ? less : tokens;
}

sched::SchedulerOptions scheduler_options(const Placement& placement, const SessionOptions& options) {
  sched::SchedulerOptions scheduler;
  scheduler.copies = placement.devices().size() > 1 ? kPipelineCopies : 1;
  scheduler.op_offload = options.op_offload;
  scheduler.kept_graphs = kept_shapes(options) + 2;
  return scheduler;
}

}  // namespace shoal::models
