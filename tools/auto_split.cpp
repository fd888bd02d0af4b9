#include "tools/auto_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/params.h"
#include "graph/error.h"
#include "tools/flags.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace shoal::tools {
namespace {

std::vector<Device*> all_of(const models::DeviceGroups& groups) {
  std::vector<Device*> devices;
  for (const auto& group : groups) devices.insert(devices.end(), group.begin(), group.end());
  return devices;
}

std::string speed_text(const models::Prediction& prediction, models::Objective objective) {
  const bool prompt = objective == models::Objective::kPrompt || !prediction.generation;
  const double rate = prompt ? prediction.prompt->rate : prediction.generation->rate;
  return fmt::format("{:.1f} tokens/s", rate);
}

}  // namespace

void choose_shares(const models::Model& model, const models::DeviceGroups& groups, models::PlacementOptions& placement,
                   const models::SessionOptions& session, const models::LoadOptions& load,
                   const std::string& machine_name, models::Objective objective) {
  if (placement.ratio != kAutoRatio) return;
  placement.ratio.clear();
  const std::vector<Device*> devices = all_of(groups);
  const bool by_layer = placement.mode == models::SplitMode::kLayer;
  if ((by_layer ? groups.size() : devices.size()) < 2) return;
  const KnownMachine machine = require_machine({model, devices, placement.threads, machine_name});
  models::Workload workload = models::clipped({}, models::session_size(model.hparams, session).context);
  (objective == models::Objective::kGeneration ? workload.prompt : workload.generate) = 0;
  const models::Scenario scenario{model, machine.model, placement, session, load, workload};
  ProgressBar bar("choosing shares");
  models::ShareSearch search{objective, 96, {}};
  search.progress = [&](int done, int most) {
    if (interrupted()) throw Interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(most), fmt::format("{} of at most {}", done, most));
  };
  const models::BestShares found = models::best_shares(scenario, {groups, placement.mode, {}}, search);
  bar.clear();
  placement.ratio = found.best.candidate.ratio();
  const std::string shares = placement.ratio.empty() ? "even" : placement.ratio;
  const bool is_even = found.best.split_key == found.even.split_key;
  write_err(fmt::format("shoal: tensor split {} for {}: predicted {}{}\n", shares, found.best.candidate.devices(),
                        speed_text(found.best, objective),
                        is_even           ? ""
                        : found.even.fits ? fmt::format(", even {}", speed_text(found.even, objective))
                                          : ", and even shares do not fit"));
}

void fit_context(const models::Model& model, const models::Placement& placement, models::SessionOptions& session,
                 const models::LoadOptions& load, const models::FitOptions& options) {
  const int64_t wanted = models::session_size(model.hparams, session).context;
  const std::optional<int64_t> context = models::largest_context(model, placement, session, load, options);
  if (!context) {
    models::SessionOptions least = session;
    least.context = std::min(wanted, options.least_context);
    const auto memory = models::ModelPlan(model, placement, least, load).memory;
    const auto room = [&options](const models::DeviceUse& use) {
      return models::margin_bytes(use) - static_cast<int64_t>(models::margin_of(use, options));
    };
    const auto tightest = std::min_element(memory.begin(), memory.end(),
                                           [&room](const auto& a, const auto& b) { return room(a) < room(b); });
    fail<DeviceError>(
        "not even a context of {} fits (--fit-ctx {}): {} needs {}, is to keep {} (--fit-target) and has {} free; use "
        "more devices, a quantised cache (-ctk q8_0 -ctv q8_0), a smaller model, or less of --fit-ctx or --fit-target",
        least.context, options.least_context, tightest->device, format_bytes(tightest->use.total()),
        format_bytes(models::margin_of(*tightest, options)), format_bytes(tightest->memory.free));
  }
  session.context = *context;
  if (*context == wanted) return;
  write_err(fmt::format("shoal: context {} instead of {}: what fits, with at least {} left free on each device\n",
                        *context, wanted, format_bytes(options.margin)));
}

}  // namespace shoal::tools
