#include "models/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "models/engine/drafts.h"
#include "models/engine/engine_request.h"

namespace shoal::models {
namespace {

// While other requests generate, a step has at least this number of prompt tokens. More tokens replace the padding.
constexpr int64_t kLeastPromptTokens = 32;

}  // namespace

Engine::Engine(const Model& model, const Placement& placement, std::vector<std::unique_ptr<Backend>> backends,
               const SessionOptions& options, std::shared_ptr<ModelPlan> plan, const Tokenizer* tokenizer)
    : model_(model),
      tokenizer_(tokenizer),
      most_sequences_(options.sequences),
      most_drafts_(options.drafts),
      most_outputs_(models::most_outputs(session_size(model.hparams, options), options)),
      runner_(model, placement, std::move(backends), options, std::move(plan)),
      memory_(runner_.cache()),
      most_tokens_(std::min(runner_.cache().longest, memory_.most_tokens())),
      mask_((static_cast<size_t>(model.hparams.vocab) + 31) / 32) {
  require<InvalidArgument>(options.keeps_logits, "the options of an engine are incomplete; use engine_options()");
  require<InvalidArgument>(options.sequences <= runner_.size().batch,
                           "{} requests at the same time need a context of as many tokens, but it has {}; use fewer "
                           "requests or a larger context",
                           options.sequences, runner_.size().batch);
}

Engine::~Engine() = default;

RequestId Engine::submit(std::vector<int32_t> prompt, const RequestOptions& options) {
  require<InvalidArgument>(!prompt.empty(), "the prompt has no tokens; give at least one token");
  const auto size = static_cast<int64_t>(prompt.size());
  require<InvalidArgument>(
      size <= most_tokens_,
      "the prompt has {} tokens, but the context holds {} tokens; use a shorter prompt or a larger "
      "context",
      size, most_tokens_);
  for (const int32_t token : prompt) {
    require<InvalidArgument>(token >= 0 && token < model_.hparams.vocab, "token {} is not in a vocabulary of {} tokens",
                             token, model_.hparams.vocab);
  }
  for (const auto& [token, bias] : options.sampling.biases) {
    require<InvalidArgument>(token >= 0 && token < model_.hparams.vocab,
                             "the bias of token {} is outside the vocabulary of {} tokens", token,
                             model_.hparams.vocab);
  }
  require<InvalidArgument>(options.stops.empty() || tokenizer_ != nullptr, "stop strings need a tokenizer");
  require<InvalidArgument>(options.most_tokens >= -1 && options.logprobs >= -1,
                           "limits of {} tokens and {} log probabilities: expected -1 or more", options.most_tokens,
                           options.logprobs);
  require<InvalidArgument>(!options.lists_prompt || options.logprobs >= 0,
                           "a list of the prompt's tokens needs the number of log probabilities (logprobs)");
  require<InvalidArgument>(options.draft >= 0 && options.draft <= most_drafts_,
                           "{} guessed tokens, but the engine was made for 0 to {} guessed tokens "
                           "(SessionOptions::drafts)",
                           options.draft, most_drafts_);
  const std::lock_guard lock(mutex_);
  submitted_.push_back(std::make_unique<Request>(++last_id_, std::move(prompt), options, tokenizer_));
  return last_id_;
}

void Engine::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
}

void Engine::insert(std::unique_ptr<Request> request) {
  const auto after = std::find_if(requests_.begin(), requests_.end(),
                                  [&](const auto& other) { return other->place > request->place; });
  requests_.insert(after, std::move(request));
}

void Engine::receive() {
  std::vector<std::unique_ptr<Request>> submitted;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
  }
  for (auto& request : submitted) insert(std::move(request));
  for (const RequestId id : cancelled) {
    for (const auto& request : requests_) {
      if (request->id == id && !request->is_finished) end(*request, Finish::kCancelled);
    }
  }
  std::erase_if(requests_, [](const auto& request) { return request->is_finished; });
}

Engine::Request* Engine::last_running() const {
  const auto found =
      std::find_if(requests_.rbegin(), requests_.rend(), [](const auto& request) { return request->is_running(); });
  return found == requests_.rend() ? nullptr : found->get();
}

void Engine::preempt(Request& request) {
  request.memory.reset();
  ++stats_.preemptions;
}

/// Gives memory to a waiting request if its tokens and one more token fit.
bool Engine::start(Request& request) {
  if (std::ranges::count_if(requests_, [](const auto& one) { return one->is_running(); }) == most_sequences_) {
    return false;
  }
  auto memory = std::make_unique<SequenceMemory>(memory_, request.options.salt);
  const int64_t size = request.size(), page = memory_.page();
  // The last token and listed tokens are always computed, because their logits are needed.
  const int64_t known = memory->attach(request.tokens, request.lists_prompt() ? request.listed_tokens : size - 1);
  const std::vector<int64_t> needed = memory->pages_for(std::min(size + 1, most_tokens_));
  for (size_t group = 0; group < needed.size(); ++group) {
    if (runner_.cache().groups[group].window > 0) continue;  // the pools have room for the windows of all requests
    int64_t reserved = 0;
    for (const auto& other : requests_) {
      if (other->is_running()) reserved += other->memory->pages_for(other->reserved)[group];
    }
    if (needed[group] + reserved > memory_.pages()[group].free_units()) return false;
  }
  request.reserved = std::min(size + 1, most_tokens_);
  request.kept_positions.clear();
  if (memory_.has_states()) {
    for (const int64_t position : {known, request.options.junction, size - 1}) {
      const int64_t end = position / page * page;
      if (position > 0 && end > memory->computed() && end < size) request.kept_positions.push_back(end);
    }
    std::sort(request.kept_positions.begin(), request.kept_positions.end());
  }
  if (!request.has_started) request.cached_tokens = memory->computed();
  request.has_started = true;
  stats_.cached_tokens += std::min(memory->computed(), request.prompt_tokens);
  request.memory = std::move(memory);
  report(request, request.memory->computed());
  return true;
}

/// Number of drafted tokens, at most `most`, with which a step of `tokens` other tokens is predicted to produce the
/// most tokens per second.
int64_t Engine::draft_length(const Request& request, int64_t most, int64_t tokens) const {
  const auto padded = [&](int64_t count) { return shape_for(count, 1, 1, runner_.size()).tokens; };
  const double plain = times_.seconds(padded(tokens));
  int64_t best = 0;
  // Rates are tokens per time of a step without drafts. An old time may be too high, but wrong drafts must end.
  double best_rate = 1.05, expected = 1, chance = 1;
  for (int64_t length = 1; length <= most; ++length) {
    chance *= request.accepted;
    expected += chance;
    // Drafts of an unknown time are tried, so that their time becomes known.
    const int64_t room = padded(tokens + length);
    const double slower = times_.knows(room) && plain > 0 ? std::max(times_.seconds(room) / plain, 1.0) : 1;
    const double rate = expected / slower;
    if (rate > best_rate) best = length, best_rate = rate;
  }
  return best;
}

void Engine::add_generating(std::vector<Part>& parts) {
  int64_t tokens = std::count_if(requests_.begin(), requests_.end(),
                                 [](const auto& request) { return request->is_running() && request->pending() == 1; });
  for (auto at = requests_.begin(); at != requests_.end(); ++at) {
    Request& request = **at;
    if (!request.is_running() || request.pending() != 1) continue;
    Part part{&request, 1, {}, true};
    // All requests can have a token in this step. Drafts end at the end of a page, so that its state is kept.
    int64_t room = std::min(runner_.size().batch - most_sequences_ - tokens, most_tokens_ - request.size());
    if (state_page() > 0) room = std::min(room, state_page() - 1 - request.memory->computed() % state_page());
    part.drafts = draft_tokens(request.tokens, std::min(request.options.draft, room));
    part.drafts.resize(static_cast<size_t>(draft_length(request, static_cast<int64_t>(part.drafts.size()), tokens)));
    if (!part.drafts.empty() &&
        !request.memory->extend(request.size() + static_cast<int64_t>(part.drafts.size()), true)) {
      part.drafts.clear();
    }
    tokens += static_cast<int64_t>(part.drafts.size());
    if (part.drafts.empty()) {
      while (request.is_running() && !request.memory->extend(request.size())) preempt(*last_running());
    }
    if (!request.is_running()) break;  // all later requests have also lost their memory
    parts.push_back(std::move(part));
  }
}

int64_t Engine::prompt_budget(int64_t generating) const {
  const int64_t most = runner_.size().batch - generating;
  if (generating == 0) return most;
  const auto padded = [&](int64_t tokens) { return shape_for(tokens, 1, 1, runner_.size()).tokens; };
  int64_t budget = std::min(padded(generating + kLeastPromptTokens) - generating, most);
  for (int64_t room = padded(generating + budget); budget < most; room = padded(room + 1)) {
    const double seconds = times_.seconds(room);
    if (seconds == 0 || seconds > token_seconds_) break;
    budget = room - generating;
  }
  return budget;
}

void Engine::add_prompts(std::vector<Part>& parts) {
  const int64_t generating = std::accumulate(parts.begin(), parts.end(), int64_t{0},
                                             [](int64_t sum, const Part& part) { return sum + part.size(); });
  int64_t budget = prompt_budget(generating);
  std::vector<std::pair<Request*, int64_t>> prompts;  // in order, with their numbers of tokens in this step
  int64_t waiting = 0;
  for (const auto& request : requests_) {
    if (request->is_running() && request->pending() == 1) continue;
    prompts.emplace_back(request.get(), 0);
    waiting += request->pending();
  }
  if (prompts.empty() || budget <= 0) return;
  budget = tokens_to_run(std::min(budget, waiting) + generating, runner_.size()) - generating;
  if (budget <= 0) budget = 1;
  bool can_start = true;
  // Each request has one output of its own. Requests that list their prompts share the other outputs.
  int64_t spare_outputs = std::max<int64_t>(0, most_outputs_ - most_sequences_ * (1 + most_drafts_));
  const auto give = [&](std::pair<Request*, int64_t>& prompt, int64_t most) {
    auto& [request, tokens] = prompt;
    // If a request does not fit, no later request starts before it in this step, so it does not wait for ever.
    if (!request->is_running() && !(can_start = can_start && start(*request))) return;
    int64_t more = std::min(most, request->until_kept(state_page()) - tokens);
    if (request->lists_prompt()) {
      const int64_t own = tokens == 0 ? 1 : 0;
      more = std::min(more, own + spare_outputs);
      spare_outputs -= more - own;
    }
    tokens += more;
    budget -= more;
  };
  // The first prompt gets half of the tokens, so every prompt makes progress when it is the first. The shortest prompts
  // get the rest, so that they do not wait for long ones.
  give(prompts.front(), (budget + 1) / 2);
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return prompts[a].first->pending() < prompts[b].first->pending(); });
  for (const size_t i : order) {
    if (budget > 0) give(prompts[i], budget);
  }
  for (const auto& [request, tokens] : prompts) {
    if (tokens == 0) continue;
    const int64_t begin = request->memory->computed(), to = std::min(begin + tokens, request->memory->reach());
    if (to > begin && request->memory->extend(to)) {
      parts.push_back({request, to - begin, {}, to == request->size(), request->lists_prompt()});
    }
  }
}

bool Engine::step() {
  receive();
  if (requests_.empty()) {
    if (std::exchange(is_busy_, false)) runner_.wait_for("earlier steps");
    return false;
  }
  std::vector<Part> parts;
  add_generating(parts);
  add_prompts(parts);
  if (parts.empty()) {
    // The running prompts need more memory together than the cache has. The last prompt waits.
    Request* last = last_running();
    check(last != nullptr, "no request can start, although the cache is empty");
    preempt(*last);
    return true;
  }
  run(parts);
  std::erase_if(requests_, [](const auto& request) { return request->is_finished; });
  return true;
}

void Engine::run(std::vector<Part>& parts) {
  std::vector<int32_t> tokens, positions, sequences, outputs;
  std::vector<BatchSequence> of;
  for (Part& part : parts) {
    const Request& request = *part.request;
    const int64_t begin = request.memory->computed();
    const auto from = request.tokens.begin() + begin;
    tokens.insert(tokens.end(), from, from + part.tokens);
    tokens.insert(tokens.end(), part.drafts.begin(), part.drafts.end());
    part.first_output = static_cast<int64_t>(outputs.size());
    for (int64_t i = 0; i < part.size(); ++i) {
      if (i >= part.first_listed()) outputs.push_back(static_cast<int32_t>(positions.size()));
      positions.push_back(static_cast<int32_t>(begin + i));
      sequences.push_back(static_cast<int32_t>(of.size()));
    }
    of.push_back(request.memory->batch_sequence());
  }
  const auto count = static_cast<int64_t>(outputs.size());
  if (outputs.empty()) outputs.push_back(0);
  const BatchShape shape = shape_for(static_cast<int64_t>(tokens.size()), static_cast<int64_t>(outputs.size()),
                                     static_cast<int64_t>(of.size()), runner_.size());
  const int64_t compilations = runner_.compilations();
  const auto begin = std::chrono::steady_clock::now();
  runner_.run({tokens, {positions, sequences, of}, outputs, shape});
  // If the schedule is a pipeline, the first device starts the next step while later devices finish this one.
  const bool overlaps = count == 0 && runner_.is_pipeline();
  std::vector<TokenLogit> best;
  if (count > 0 && runner_.candidates_per_output() > 0) {
    const std::span<const TokenLogit> found = runner_.candidates(count);
    best.assign(found.begin(), found.end());
  } else if (!overlaps) {
    runner_.wait_for("a step");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const bool is_alone = !overlaps && !is_busy_;
  if (is_alone && runner_.compilations() == compilations) times_.add(shape.tokens, seconds.count());
  is_busy_ = overlaps;
  ++stats_.steps;
  const auto each = static_cast<size_t>(runner_.candidates_per_output());
  for (Part& part : parts) {
    finish_part(part, std::span(best).subspan(static_cast<size_t>(part.first_output) * each,
                                              static_cast<size_t>(part.outputs()) * each));
  }
}

std::vector<Output> Engine::take_outputs() {
  return std::exchange(outputs_, {});
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  for (const auto& request : requests_) {
    ++(request->is_running() ? stats.running : stats.waiting);
    if (request->is_running()) stats.used_tokens += request->memory->computed();
  }
  return stats;
}

}  // namespace shoal::models
