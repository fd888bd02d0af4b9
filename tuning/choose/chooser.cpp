#include "tuning/choose/chooser.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

/// Whether a device of the placement repacks weights. If no device does, the repacking option has no effect on loading.
bool repacks(const models::Placement& placement) {
  const auto members = placement.members();
  return std::any_of(members.begin(), members.end(),
                     [](Device* member) { return &member->weights_type() != &member->buffer_type(); });
}

}  // namespace

size_t margin_of(const models::DeviceUse& use, const Margin& margin) {
  if (!margin.spare_host || !use.on_host) return margin.bytes;
  constexpr size_t kLeast = size_t{64} << 20;
  const size_t total = use.memory.total;
  return std::max({margin.bytes, total / 50, std::min(kLeast, total / 16)});
}

int64_t spare_bytes(const models::DeviceUse& use, const Margin& margin) {
  const size_t needed = use.needed() - (margin.from_disk ? use.mapped : 0) + margin_of(use, margin);
  return static_cast<int64_t>(use.memory.free) - static_cast<int64_t>(needed);
}

int64_t tightest(std::span<const models::DeviceUse> uses, const Margin& margin) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const models::DeviceUse& use : uses) least = std::min(least, spare_bytes(use, margin));
  return least;
}

double Verdict::lacking() const {
  double bytes = 0;
  for (const models::DeviceUse& use : memory) bytes += std::max(0.0, -static_cast<double>(spare_bytes(use)));
  return bytes;
}

bool Verdict::may_fit() const {
  int64_t spare = 0;
  for (const models::DeviceUse& use : memory) spare += spare_bytes(use);
  return fits || spare >= 0;
}

double seconds_of(const Verdict& verdict, Objective objective) {
  if (!verdict.has_time()) return std::numeric_limits<double>::infinity();
  const double prompt = verdict.prompt ? verdict.prompt->seconds : 0;
  const double generation = verdict.generation ? verdict.generation->seconds : 0;
  if (objective == Objective::kGeneration && verdict.generation) return generation;
  if (objective == Objective::kPrompt && verdict.prompt) return prompt;
  return prompt + generation;
}

bool is_better(const Verdict& one, const Verdict& other, Objective objective, double gain) {
  if (one.fits != other.fits) return one.fits;
  if (!one.fits && one.lacking() != other.lacking()) return one.lacking() < other.lacking();
  return seconds_of(one, objective) < seconds_of(other, objective) * (1 - gain);
}

Chooser::Chooser(const models::Model& model, Asked asked, Watch watch)
    : model_(model), asked_(std::move(asked)), watch_(std::move(watch)), rows_(asked_.way_rows) {
  if (rows_ == 0) rows_ = context_of(asked_.fixed) / 2;
}

models::PlacementOptions Chooser::options_of(const Choice& choice, Ways* ways) const {
  models::PlacementOptions options = placement_options(choice, asked_.placement);
  const Choice& fixed = asked_.fixed;
  const AskedWays asked{choice.experts ? choice.experts : fixed.experts, choice.latent ? choice.latent : fixed.latent,
                        asked_.way_tokens, rows_, session_of(choice).dtype_k};
  const Ways faster = take_faster_ways(model_, choice.groups, asked, options);
  if (ways != nullptr) *ways = faster;
  return options;
}

models::SessionOptions Chooser::session_of(const Choice& choice) const {
  return session_options(choice, asked_.session);
}

int64_t Chooser::context_of(const Choice& choice) const {
  return session_size(model_.hparams, session_of(choice)).context;
}

const models::Placement& Chooser::place(const Choice& choice) {
  if (placement_ == nullptr || !are_placed_alike(placed_, choice)) {
    placement_ = std::make_unique<models::Placement>(model_, choice.groups, options_of(choice, &ways_));
    placed_ = choice;
  }
  return *placement_;
}

models::ModelPlan Chooser::plan(const Choice& choice, const Margin& margin, size_t most_prompts, int64_t* spare) {
  if (watch_.poll) watch_.poll();
  const models::Placement& placement = place(choice);
  const models::SessionOptions session = session_of(choice);
  models::ModelPlan plan(model_, placement, session, asked_.load, most_prompts);
  const int64_t left = tightest(plan.memory, margin);
  if (spare != nullptr) *spare = left;
  if (left >= 0 || !asked_.load.repack || asked_.is_repacking_decided || !repacks(placement)) return plan;
  models::LoadOptions load = asked_.load;
  load.repack = false;
  models::ModelPlan other(model_, placement, session, load, most_prompts);
  const int64_t left_by_other = tightest(other.memory, margin);
  if (spare != nullptr) *spare = std::max(left, left_by_other);
  if (margin.from_disk ? models::has_room(plan.memory) : models::fits(plan.memory)) return plan;
  const bool runs = models::has_room(other.memory) && !models::has_room(plan.memory);
  return runs || left_by_other > left ? std::move(other) : std::move(plan);
}

void Chooser::find_figures() {
  if (!knows_machine() && watch_.figures) asked_.placement.machine = watch_.figures();
}

std::vector<models::DeviceUse> Chooser::persistent(const Choice& choice) {
  if (watch_.poll) watch_.poll();
  return models::persistent_use(model_, place(choice), session_of(choice), asked_.load);
}

Verdict Chooser::weighed(const Choice& choice, const models::ModelPlan& plan) const {
  Verdict verdict;
  verdict.choice = choice;
  verdict.choice.context = plan.size.context;
  verdict.memory = plan.memory;
  verdict.fits = models::fits(plan.memory);
  verdict.from_disk = !verdict.fits && models::has_room(plan.memory);
  verdict.work = clipped(asked_.work, plan.size.context);
  return verdict;
}

void Chooser::time(Verdict& verdict, const models::Placement& placement, const models::ModelPlan& plan) const {
  if (watch_.poll) watch_.poll();
  if (!knows_machine()) return;
  std::tie(verdict.prompt, verdict.generation) =
      predict(model_, placement, plan, machine(), session_of(verdict.choice), verdict.work, watch_.poll);
}

Verdict Chooser::judge(const Choice& choice, const models::Placement& placement, const models::ModelPlan& plan) {
  Verdict verdict = weighed(choice, plan);
  verdict.split_key = split_key(model_, placement);
  time(verdict, placement, plan);
  return verdict;
}

Verdict Chooser::judge(const Choice& choice) {
  const std::string split = split_key(model_, place(choice));
  Choice rest = choice;  // the next lines clear the fields that the split key covers
  rest.groups.clear(), rest.shares.clear();
  rest.host = {};
  rest.context = context_of(choice);
  const std::string key = fmt::format("{} {} {}", choice.devices_text(), split, to_json(rest));
  if (const auto known = known_.find(key); known != known_.end()) {
    Verdict verdict = known->second;
    verdict.choice = choice;
    verdict.choice.context = known->second.choice.context;
    return verdict;
  }
  const models::ModelPlan made = plan(choice, {}, 1);
  Verdict verdict = weighed(choice, made);
  verdict.split_key = split;
  time(verdict, place(choice), made);
  return known_.emplace(key, std::move(verdict)).first->second;
}

Verdict Chooser::weigh(const Choice& choice) {
  return weighed(choice, plan(choice, {}, 1));
}

void Chooser::settle(const Choice& choice, bool again) {
  std::unique_ptr<models::Placement> before;  // the previous placement; it must exist until the callback has destroyed
                                              // the backends of its devices
  if (again || (placement_ != nullptr && !are_placed_alike(placed_, choice))) before = std::move(placement_);
  const models::Placement& placement = place(choice);
  if (watch_.placed) watch_.placed(placement);
}

Chosen Chooser::choose() {
  Chosen out;
  Choice choice = asked_.fixed;
  out.wanted_context = context_of(choice);
  choice = with_shares(out, choice);
  const bool has_room = !out.shares || out.shares->fits;
  if (asked_.free.cache_k || asked_.free.cache_v) {
    for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
      if (asked_.free.cache_k) choice.cache_k = type;
      if (asked_.free.cache_v) choice.cache_v = type;
      if (tightest(plan(choice, asked_.margin, 1).memory, asked_.margin) >= 0) break;
    }
    const models::SessionOptions session = session_of(choice);
    out.notes.push_back(
        fmt::format("keys are cached as {} and values as {}", name_of(session.dtype_k), name_of(session.dtype_v)));
  }
  if (asked_.free.host) {
    Choice least = choice;
    least.context = std::clamp<int64_t>(asked_.least(), 1, out.wanted_context);
    out.hosts = host_parts(*this, least, asked_.margin);
    if (!out.hosts.empty()) {
      choice.host = out.hosts.front().choice.host;
      choice.shares = out.hosts.front().choice.shares;
    }
  }
  settle(choice);
  std::optional<models::ModelPlan> planned;
  if (asked_.free.context) {
    const int64_t least = std::min(out.wanted_context, asked_.least());
    planned = largest_plan(*this, choice, asked_.margin, least, asked_.most_prompts);
    out.leaves_margin = planned.has_value();
    if (!planned && asked_.must_fit) {
      out.choice = choice;
      return out;
    }
    choice.context = planned ? planned->size.context : least;
    if (!planned && least < out.wanted_context) planned = largest_plan(*this, choice, {}, least, asked_.most_prompts);
    if (!has_room) {
      // The chosen context may be smaller than the wanted context, so the search for shares may now find shares that
      // fit.
      Chooser again(model_, asked_, {.poll = watch_.poll, .progress = watch_.progress});
      again.rows_ = rows_;
      const Choice other = again.with_shares(out, choice);
      const bool is_other = out.shares->fits && other.ratio() != choice.ratio();
      const auto fitted = is_other ? largest_plan(again, other, asked_.margin, least, 1) : std::nullopt;
      const bool is_as_large = fitted && fitted->size.context == choice.context;
      out.keeps_shares = is_other && !is_as_large && out.leaves_margin;
      if (is_as_large) {
        choice = other;
        planned.reset();
        settle(choice);
      }
    }
  }
  // The layout of a latent cache is chosen for the context that fits.
  const bool is_split_undecided = asked_.way_rows == 0 && has_latent_cache(model_.hparams) && !choice.latent;
  if (is_split_undecided && rows_ != context_of(choice) / 2) {
    rows_ = context_of(choice) / 2;
    planned.reset();
    settle(choice, true);
  }
  if (!planned) planned = plan(choice, {}, asked_.most_prompts);
  out.choice = choice;
  out.choice.context = planned->size.context;
  place(choice);
  out.ways = ways_;
  out.choice.experts = ways_.experts;
  out.choice.latent = ways_.latent;
  out.placement = std::move(placement_);
  out.plan = std::make_unique<models::ModelPlan>(std::move(*planned));
  return out;
}

Choice Chooser::with_shares(Chosen& chosen, const Choice& choice) {
  if (!asked_.free.shares || choice.sharers().size() < 2) return choice;
  FoundShares found = fastest_shares(*this, choice);
  Choice out = choice;
  out.shares = found.best.choice.shares;
  chosen.shares = std::move(found.best);
  chosen.even = std::move(found.even);
  return out;
}

}  // namespace shoal::tuning
