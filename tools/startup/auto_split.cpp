#include "tools/startup/auto_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/remedies_text.h"
#include "tools/startup/host_choice.h"
#include "tuning/host_part.h"

namespace shoal::tools {
namespace {

size_t sharers(const models::DeviceGroups& groups, models::SplitMode mode) {
  return mode == models::SplitMode::kLayer ? groups.size() : tuning::Candidate{groups, mode, {}}.device_count();
}

/// Only what counts is planned, if there is any of it.
tuning::Workload workload_of(const ShareGoal& goal, int64_t context) {
  tuning::Workload workload = tuning::clipped(goal.workload, context);
  if (goal.objective == tuning::Objective::kGeneration && workload.generate > 0) workload.prompt = 0;
  if (goal.objective == tuning::Objective::kPrompt && workload.prompt > 0) workload.generate = 0;
  return workload;
}

/// "22.1 tokens/s"; of a mix "310.5 tokens/s of prompt and 22.1 generated".
std::string speed_text(const tuning::Prediction& prediction) {
  if (prediction.prompt && prediction.generation) {
    return fmt::format("{:.1f} tokens/s of prompt and {:.1f} generated", prediction.prompt->rate,
                       prediction.generation->rate);
  }
  return fmt::format("{:.1f} tokens/s", prediction.prompt ? prediction.prompt->rate : prediction.generation->rate);
}

std::string tell(const tuning::Scenario& scenario, const tuning::BestShares& found) {
  const std::string shares = found.best.candidate.shares.empty() ? "even" : found.best.candidate.ratio();
  std::string text = fmt::format("tensor split {} for {}: ", shares, found.best.candidate.devices());
  if (!found.best.fits) return text + "no shares fit: " + remedies_text(tuning::remedies(scenario, found.best));
  text += "predicted " + speed_text(found.best);
  if (!found.even.fits) return text + ", and even shares do not fit";
  return found.best.split_key == found.even.split_key ? text : text + ", even " + speed_text(found.even);
}

tuning::BestShares search_shares(const tuning::Scenario& scenario, const tuning::Candidate& candidate,
                                 tuning::Objective objective) {
  ProgressBar bar("choosing shares");
  tuning::ShareSearch search{objective};
  search.progress = [&](int done, int most) {
    if (interrupted()) throw Interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(most), fmt::format("{} of at most {}", done, most));
  };
  return tuning::best_shares(scenario, candidate, search);
}

/// A remedy that fits into a list of them: for a cache that several devices have whole.
std::string_view rows_remedy(const Request& request, const models::Placement& placement) {
  const bool is_mirrored =
      models::has_latent_cache(request.model->hparams) && placement.acts_as_one() && placement.latent_parts() == 1;
  return is_mirrored ? "the latent cache by rows (--latent-split rows), " : "";
}

[[noreturn]] void fail_to_fit(const Request& request, const models::Placement& placement, int64_t least) {
  tuning::FitOptions options = *request.fit;
  options.from_disk = true;  // not even so
  models::SessionOptions session = request.session;
  session.context = least;
  const auto memory = models::ModelPlan(*request.model, placement, session, request.load).memory;
  const auto room = [&options](const models::DeviceUse& use) { return tuning::spare_bytes(use, options); };
  const auto tightest = std::min_element(memory.begin(), memory.end(),
                                         [&room](const auto& a, const auto& b) { return room(a) < room(b); });
  const bool for_prompt = options.least() > options.least_context;
  const std::string why = for_prompt ? fmt::format("the prompt has {} tokens", options.prompt)
                                     : fmt::format("--fit-ctx {}", options.least_context);
  fail<DeviceError>(
      "not even a context of {} fits ({}): {} needs {}, must keep {} free (--fit-target) and has {} free; use more "
      "devices, {}a quantised cache (-ctk q8_0 -ctv q8_0), a smaller model, or less of --fit-ctx or --fit-target",
      least, why, tightest->device, format_bytes(tightest->use.total()),
      format_bytes(tuning::margin_of(*tightest, options)), format_bytes(tightest->memory.free),
      rows_remedy(request, placement));
}

/// Where it is the prompt that does not fit, and a shorter one would.
void require_room_for_prompt(const Request& request, const models::Placement& placement) {
  tuning::FitOptions options = *request.fit;
  const int64_t prompt = std::exchange(options.prompt, 0);
  options.least_context = 1;
  if (!options.required) options.margin = 0, options.spare_host = false;
  const std::optional<int64_t> possible =
      tuning::largest_context(*request.model, placement, request.session, request.load, options);
  const bool is_short = !possible || *possible < 2 || *possible > prompt;
  require<DeviceError>(is_short,
                       "the prompt has {} tokens and the largest context that fits is {}{}; use a prompt of at most {} "
                       "tokens, more devices, a quantised cache (-ctk q8_0 -ctv q8_0) or a smaller model",
                       prompt, possible.value_or(0),
                       options.margin > 0 ? fmt::format(", with {} left free on each device (--fit-target)",
                                                        format_bytes(options.margin))
                                          : "",
                       possible.value_or(0) - 1);
}

/// Shares in place of "auto". `says_misfit`: in a line, where none fit.
bool choose(Request& request, models::PlacementOptions& placement, bool says_misfit) {
  if (placement.ratio != kAutoRatio) return true;
  placement.ratio.clear();
  if (sharers(request.devices, placement.mode) < 2) return true;
  const models::Model& model = *request.model;
  choose_machine(request, true);
  placement.machine = request.machine->model;
  const tuning::Workload workload = workload_of(request.goal, session_size(model.hparams, request.session).context);
  const tuning::Scenario scenario{
      model, *request.machine->model, placement, request.session, request.load, workload, {}, request.ways};
  const tuning::Candidate candidate{request.devices, placement.mode, {}};
  const tuning::BestShares found = search_shares(scenario, candidate, request.goal.objective);
  placement.ratio = found.best.candidate.ratio();
  if (found.best.fits || says_misfit) write_err(fmt::format("shoal: {}\n", tell(scenario, found)));
  return found.best.fits;
}

}  // namespace

void choose_machine(Request& request, bool required) {
  const auto acts_as_one = [](const std::vector<Device*>& group) { return group.size() > 1; };
  const bool has_mesh = request.placement.mode == models::SplitMode::kTensor
                            ? request.devices.size() > 1 || request.devices.front().size() > 1
                            : std::any_of(request.devices.begin(), request.devices.end(), acts_as_one);
  if (request.machine || (!required && !has_mesh)) return;
  const MachineQuestion question(*request.model, request.devices,
                                 needs_host(request) ? tuning::with_all_on_host(request.placement) : request.placement,
                                 request.goal.machine);
  request.machine = required ? require_machine(question) : find_machine(question);
  if (request.machine) request.placement.machine = request.machine->model;
}

bool choose_shares(Request& request) {
  return choose(request, request.placement, !request.fit);  // else choose_again() follows
}

bool choose_again(Request& request) {
  models::PlacementOptions other = request.placement;
  other.ratio = kAutoRatio;
  if (!choose(request, other, true) || other.ratio == request.placement.ratio) return false;
  const models::Model& model = *request.model;
  const int64_t context = session_size(model.hparams, request.session).context;
  take_faster_ways(model, request.devices, request.ways, other);
  const models::Placement there(model, request.devices, other);
  if (tuning::largest_context(model, there, request.session, request.load, *request.fit) != context) {
    const std::string& ratio = request.placement.ratio;
    write_err(fmt::format("shoal: tensor split {} instead, which leaves {} free on each device\n",
                          ratio.empty() ? "even" : ratio, format_bytes(request.fit->margin)));
    return false;
  }
  request.placement = other;
  return true;
}

std::optional<models::ModelPlan> fit_context(Request& request, const models::Placement& placement) {
  const models::Model& model = *request.model;
  const tuning::FitOptions& options = *request.fit;
  models::SessionOptions& session = request.session;
  const int64_t wanted = session_size(model.hparams, session).context;
  auto planned = tuning::largest_plan(model, placement, session, request.load, options);
  const int64_t least = std::min(wanted, options.least());
  if (!planned && options.required) {
    require_room_for_prompt(request, placement);
    fail_to_fit(request, placement, least);
  }
  session.context = planned ? planned->size.context : least;
  if (session.context == wanted) return planned;
  const bool has_margin = planned.has_value();
  if (!has_margin) {
    planned = tuning::largest_plan(model, placement, session, request.load, {.least_context = least});
  }
  if (!planned) {
    require_room_for_prompt(request, placement);
    return std::nullopt;  // it is no remedy, and what is missing is said as an error
  }
  request.remark = fmt::format(
      "shoal: context {} instead of {}: {}\n", session.context, wanted,
      has_margin ? fmt::format("what fits, with at least {} left free on each device (--fit-target)",
                               format_bytes(options.margin))
                 : fmt::format("more would leave less than {} free (--fit-target)", format_bytes(options.margin)));
  return planned;
}

}  // namespace shoal::tools
