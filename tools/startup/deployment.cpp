#include "tools/startup/deployment.h"

#include "models/session/loader.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/threads.h"
#include "tools/startup/memory_check.h"

namespace shoal::tools {
namespace {

void place(Deployment& deployment, const Request& request) {
  deployment.backends.clear();
  deployment.placement = std::make_unique<models::Placement>(*request.model, request.devices, request.placement);
  if (!request.starts_threads) return;
  // Memory is planned for the threads there are.
  require_threads(threads_needed(deployment.placement->members(), request.placement.threads));
  deployment.backends = deployment.placement->init();
}

}  // namespace

tuning::Candidate Deployment::candidate() const {
  tuning::Candidate candidate{devices, placement_options.mode, {}};
  const bool by_layer = placement_options.mode == models::SplitMode::kLayer;
  const size_t sharers = by_layer ? devices.size() : candidate.device_count();
  if (!placement_options.ratio.empty()) {
    candidate.shares = models::parse_ratio(placement_options.ratio, static_cast<int>(sharers));
  }
  return candidate;
}

Deployment resolve(Request request) {
  Deployment deployment;
  const bool has_room = choose_shares(request);
  choose_machine(request);
  place(deployment, request);
  std::optional<models::ModelPlan> planned;
  if (request.fit) planned = fit_context(request, *deployment.placement);
  if (!has_room && request.fit && choose_again(request)) {
    place(deployment, request);
    planned.reset();
  }
  if (!planned) planned = models::plan_to_load(*request.model, *deployment.placement, request.session, request.load);
  const bool repacks_less = request.load.repack && !planned->load.repack;
  if (repacks_less && models::fits(planned->memory)) {
    warn("weights are not repacked, for which there is no room: generation may be slower");
  }
  deployment.model = std::move(request.model);
  deployment.devices = std::move(request.devices);
  deployment.machine = std::move(request.machine);
  deployment.placement_options = std::move(request.placement);
  deployment.session_options = request.session;
  deployment.load_options = request.load;
  deployment.plan = std::make_unique<models::ModelPlan>(std::move(*planned));
  return deployment;
}

void load(Deployment& deployment) {
  require_memory(deployment.plan->memory);
  if (const std::string text = mapping_warning(deployment.plan->memory); !text.empty()) warn(text);
  ProgressBar bar("loading");
  const auto progress = [&](size_t done, size_t total) {
    if (interrupted()) throw Interrupted();
    bar.update(done, total);
  };
  Tracer* tracer = deployment.session_options.tracer;
  const TraceRowUse row = tracer != nullptr ? tracer->row("host") : nullptr;
  const TraceScope scope(row.get(), TraceKind::kHost, {"load weights"});
  deployment.plan->announce(*deployment.model, *deployment.placement);
  models::load_weights(*deployment.model, *deployment.placement, progress, deployment.plan->load);
}

void start_session(Deployment& deployment) {
  deployment.session =
      std::make_unique<models::Session>(*deployment.model, *deployment.placement, std::move(deployment.backends),
                                        deployment.session_options, std::move(*deployment.plan));
  deployment.plan.reset();
}

}  // namespace shoal::tools
