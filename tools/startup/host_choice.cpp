#include "tools/startup/host_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"
#include "tuning/host_part.h"

namespace shoal::tools {
namespace {

using tuning::Candidate;
using tuning::Prediction;

models::SessionOptions with_least_context(const Request& request) {
  models::SessionOptions session = request.session;
  const int64_t wanted = session_size(request.model->hparams, session).context;
  session.context = std::clamp<int64_t>(request.fit->least(), 1, wanted);
  return session;
}

bool fits(const std::vector<models::DeviceUse>& memory, const tuning::FitOptions& fit) {
  return std::all_of(memory.begin(), memory.end(),
                     [&](const models::DeviceUse& use) { return tuning::spare_bytes(use, fit) >= 0; });
}

/// With everything on the devices.
bool fits_on_devices(const Request& request, const models::SessionOptions& session) {
  models::PlacementOptions options = request.placement;
  take_faster_ways(*request.model, request.devices, request.ways, options);
  const models::Placement there(*request.model, request.devices, options);
  if (!fits(models::persistent_use(*request.model, there, session, request.load), *request.fit)) return false;
  return fits(models::plan_to_load(*request.model, there, session, request.load, 1).memory, *request.fit);
}

/// A machine that is named has the hosts that its name says, and not those that are here.
bool has_host(const Request& request) {
  if (!request.goal.machine.empty() && request.placement.host == nullptr) return false;
  return tuning::host_beside(models::joined(request.devices).front(), request.placement) != nullptr;
}

double rate_of(const Prediction& prediction) {
  return prediction.generation ? prediction.generation->rate : prediction.prompt->rate;
}

/// The fastest first. Without figures of all devices in the order that they are in.
std::vector<std::pair<Candidate, std::optional<Prediction>>> by_speed(const tuning::Scenario* scenario,
                                                                      std::vector<Candidate> candidates,
                                                                      tuning::Objective objective) {
  std::vector<std::pair<Candidate, std::optional<Prediction>>> out;
  for (Candidate& candidate : candidates) {
    std::optional<Prediction> prediction;
    try {
      if (scenario != nullptr) prediction = scenario->predict(candidate);
    } catch (const InvalidArgument&) {
      scenario = nullptr;  // figures that happen to be kept are of no use
    }
    out.emplace_back(std::move(candidate), std::move(prediction));
  }
  if (std::all_of(out.begin(), out.end(), [](const auto& one) { return one.second.has_value(); })) {
    std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) {
      return seconds_of(*a.second, objective) < seconds_of(*b.second, objective);
    });
  }
  return out;
}

/// "the experts of 49 of 58 layers", "41 of 61 layers", "the embedding", "... and ...".
std::string what_stays(const models::Model& model, const tuning::HostPart& part) {
  const int64_t layers = model.hparams.layers, with_experts = models::layers_with_experts(model);
  std::string text;
  if (part.expert_layers > 0) {
    text = fmt::format("the experts of {} of {} layers", std::min(part.expert_layers, with_experts), with_experts);
  }
  if (part.device_layers < 0) return text;
  return text + (text.empty() ? "" : " and ") +
         (part.device_layers >= layers ? "the embedding"
                                       : fmt::format("{} of {} layers", layers - part.device_layers, layers));
}

std::string flags_of(const Candidate& candidate, const Request& request) {
  std::string text = candidate.host.flags();
  if (candidate.ratio() != request.placement.ratio && !candidate.shares.empty()) text += " -ts " + candidate.ratio();
  return text;
}

}  // namespace

bool needs_host(const Request& request) {
  const std::vector<Device*> devices = models::joined(request.devices).front();
  if (!has_host(request)) return false;
  size_t free = 0;
  for (const Device* device : devices) free += device->memory().free;
  return request.model->weight_bytes() > free;
}

bool choose_host_part(Request& request) {
  const std::vector<Device*> devices = models::joined(request.devices).front();
  if (!request.fit || !has_host(request)) return false;
  const models::SessionOptions session = with_least_context(request);
  if (fits_on_devices(request, session)) return false;

  MachineQuestion question(*request.model, request.devices, tuning::with_all_on_host(request.placement),
                           request.goal.machine);
  std::optional<KnownMachine> known = request.machine ? request.machine : find_machine(question);
  if (known && !lack_of(*known, question).empty()) known.reset();
  const machine::MachineModel none;
  const int64_t context = session_size(request.model->hparams, session).context;
  tuning::Workload workload = tuning::clipped(request.goal.workload, context);
  if (workload.generate > 0 && request.goal.objective == tuning::Objective::kGeneration) workload.prompt = 0;
  const auto poll = [] {
    if (interrupted()) throw Interrupted();
  };
  const tuning::Scenario scenario{
      *request.model, known ? *known->model : none, request.placement, session, request.load, workload, poll,
      request.ways};
  Candidate way{request.devices, request.placement.mode, {}};
  const bool by_layer = way.mode == models::SplitMode::kLayer;
  if (!request.placement.ratio.empty()) {
    way.shares = models::parse_ratio(request.placement.ratio,
                                     static_cast<int>(by_layer ? request.devices.size() : devices.size()));
  }
  std::vector<Candidate> candidates = host_parts(scenario, std::span(&way, 1), *request.fit);
  if (candidates.empty()) return false;
  const auto sorted = by_speed(known ? &scenario : nullptr, std::move(candidates), request.goal.objective);
  const Candidate& best = sorted.front().first;
  std::string text = fmt::format("shoal: {} stay on the host, as if by {}", what_stays(*request.model, best.host),
                                 flags_of(best, request));
  if (const auto& prediction = sorted.front().second) {
    text += fmt::format(": predicted {:.3g} tokens/s", rate_of(*prediction));
    for (size_t i = 1; i < sorted.size() && sorted[i].second; ++i) {
      text += fmt::format(", with {} {:.3g}", flags_of(sorted[i].first, request), rate_of(*sorted[i].second));
    }
  }
  write_err(text + "\n");
  request.placement = tuning::placement_of(best, request.placement);
  return true;
}

}  // namespace shoal::tools
