#include "models/session/session.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "models/session/cache_rows.h"

namespace shoal::models {

Session::Session(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
                 const SessionOptions& options, std::shared_ptr<ModelPlan> plan)
    : runner_(model, placement, std::move(backends), options, std::move(plan)),
      pages_(runner_.cache()),
      most_checkpoints_(options.checkpoints),
      checkpoint_every_(options.checkpoint_every) {
  for (size_t layer = 0; layer < cache().layers.size(); ++layer) {
    if (!model.hparams.layer(static_cast<int64_t>(layer)).attends()) recurrent_ = true;
    if (!cache().has_window(layer)) continue;
    const int64_t rows = cache().rows_of(layer);
    ring_rows_ = ring_rows_ == 0 ? rows : std::min(ring_rows_, rows);
    longest_window_ = std::max(longest_window_, model.hparams.layer(static_cast<int64_t>(layer)).attention.window);
  }
}

void Session::evaluate(std::span<const int32_t> tokens, int64_t outputs) {
  int64_t count = static_cast<int64_t>(tokens.size());
  require<InvalidArgument>(count > 0, "no tokens to evaluate");
  require<InvalidArgument>(count <= context() - position_,
                           "{} tokens do not fit: {} of the context's {} tokens are used; use a larger context", count,
                           position_, context());
  for (int32_t token : tokens) {
    require<InvalidArgument>(token >= 0 && token < model().hparams.vocab,
                             "token {} is not in a vocabulary of {} tokens", token, model().hparams.vocab);
  }
  int64_t last = (count - 1) % batch() + 1;
  require<InvalidArgument>(outputs >= 1 && outputs <= last,
                           "{} outputs were requested, but the last batch has {} tokens", outputs, last);
  check_whole();
  runner_.drop_results();  // there are no results if a batch fails
  outputs_ = outputs;
  const BatchSequence sequence = pages_.sequence();
  std::vector<int32_t> positions, sequences, wanted;
  for (const Batch& batch : divide_into_batches(count, outputs, batch())) {
    const bool is_last = static_cast<size_t>(batch.tokens) == tokens.size();
    positions.resize(static_cast<size_t>(batch.tokens));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
    sequences.assign(positions.size(), 0);
    wanted.resize(static_cast<size_t>(is_last ? outputs : 1));
    std::iota(wanted.begin(), wanted.end(), static_cast<int32_t>(batch.tokens) - static_cast<int32_t>(wanted.size()));
    tearing([&] {
      runner_.run({tokens.first(positions.size()), {positions, sequences, {&sequence, 1}}, wanted, batch.shape});
    });
    tokens = tokens.subspan(positions.size());
    position_ += batch.tokens;
    if (ring_rows_ > 0) oldest_ = std::max(oldest_, position_ - ring_rows_);
    const int64_t last = checkpoints_.empty() ? 0 : checkpoints_.rbegin()->first;
    if (checkpoint_every_ > 0 && position_ - last >= checkpoint_every_) make_checkpoint();
  }
}

template <class Work>
void Session::tearing(const Work& work) {
  try {
    work();
  } catch (...) {
    runner_.drop_results();
    torn_ = true;
    throw;
  }
}

void Session::wait_for(std::string_view what) {
  tearing([&] { runner_.wait_for(what); });
  if (!torn_) whole_ = position_;
}

void Session::synchronize() {
  wait_for("everything");
}

void Session::check_whole() const {
  require<InvalidArgument>(!torn_, "the evaluation from token {} on has failed; rewind to token {} and evaluate again",
                           whole_, rewindable(position_));
}

std::span<const float> Session::logits() {
  require<InvalidArgument>(runner_.has_results(), "no logits yet; evaluate tokens first");
  require<InvalidArgument>(!selects(),
                           "the devices select {} candidates and return no logits; make the session without candidates",
                           runner_.candidates_per_output());
  std::span<const float> logits;
  tearing([&] { logits = runner_.logits(0, outputs_); });
  if (!torn_) whole_ = position_;
  return logits;
}

std::span<const TokenLogit> Session::candidates() {
  require<InvalidArgument>(runner_.has_results(), "no candidates yet; evaluate tokens first");
  require<InvalidArgument>(selects(), "the devices return logits; make the session with candidates");
  std::span<const TokenLogit> best;
  tearing([&] { best = runner_.candidates(outputs_); });
  if (!torn_) whole_ = position_;
  return best;
}

bool Session::keeps(int64_t position) const {
  if (position == 0) return true;
  if (torn_ && (recurrent_ || position > whole_)) return false;
  if (position == position_) return true;
  return !recurrent_ && oldest_ <= std::max<int64_t>(0, position - longest_window_ + 1);
}

bool Session::can_rewind(int64_t position) const {
  return keeps(position) || checkpoints_.contains(position);
}

int64_t Session::rewindable(int64_t position) const {
  position = std::min(position, torn_ ? whole_ : position_);
  if (can_rewind(position)) return position;
  const auto after = checkpoints_.upper_bound(position);
  return after == checkpoints_.begin() ? 0 : std::prev(after)->first;
}

void Session::checkpoint() {
  check_whole();
  make_checkpoint();
}

void Session::make_checkpoint() {
  if (!needs_checkpoints() || position_ == 0 || most_checkpoints_ == 0 || checkpoints_.contains(position_)) return;
  std::vector<std::byte> contents;
  tearing([&] { contents = runner_.read_cache(position_, CacheScope::kOverwritten); });
  whole_ = position_;
  checkpoints_.emplace(position_, std::move(contents));
  if (static_cast<int64_t>(checkpoints_.size()) <= most_checkpoints_) return;
  // Drops the checkpoint whose removal leaves the smallest gap between its neighbors. Never drops the new checkpoint.
  auto closest = checkpoints_.begin();
  int64_t gap = std::numeric_limits<int64_t>::max(), before = 0;
  for (auto at = checkpoints_.begin(); std::next(at) != checkpoints_.end(); before = at->first, ++at) {
    if (std::next(at)->first - before >= gap) continue;
    gap = std::next(at)->first - before;
    closest = at;
  }
  checkpoints_.erase(closest);
}

size_t Session::checkpoint_bytes(int64_t tokens) const {
  return needs_checkpoints() ? cache_bytes(cache(), model().hparams, tokens, CacheScope::kOverwritten) : 0;
}

void Session::rewind(int64_t position) {
  require<InvalidArgument>(position >= 0 && position <= position_, "cannot rewind to token {} of {}", position,
                           position_);
  if (!can_rewind(position)) {
    if (position > whole_) check_whole();
    const std::string kept =
        recurrent_ ? "recurrent layers keep only the latest state"
                   : fmt::format("layers with a window of {} keep tokens from {} on", longest_window_, oldest_);
    fail<InvalidArgument>(
        "cannot rewind to token {} of {}: {}, and this token has no checkpoint; rewind to token {} and evaluate again",
        position, position_, kept, rewindable(position));
  }
  if (!keeps(position)) {
    const std::vector<std::byte>& contents = checkpoints_.at(position);
    tearing([&] { runner_.write_cache(position, CacheScope::kOverwritten, contents); });
    oldest_ = ring_rows_ == 0 ? 0 : std::max<int64_t>(0, position - longest_window_);
  }
  position_ = position;
  whole_ = std::min(whole_, position);
  torn_ = false;
  if (position == 0) oldest_ = 0;
  drop_checkpoints_after(position);
}

void Session::drop_checkpoints_after(int64_t position) {
  checkpoints_.erase(checkpoints_.upper_bound(position), checkpoints_.end());
}

void Session::set_position(int64_t position) {
  require<InvalidArgument>(position >= 0 && position <= context(), "position {} is outside the context of {}", position,
                           context());
  position_ = whole_ = position;
  oldest_ = ring_rows_ == 0 ? 0 : std::max<int64_t>(0, position - longest_window_);
  runner_.drop_results();
  torn_ = false;
  checkpoints_.clear();
}

}  // namespace shoal::models
