#include "tools/startup/engine.h"

#include "models/session/model_plan.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/threads.h"
#include "tools/startup/auto_split.h"

namespace shoal::tools {

Engine load_engine(std::unique_ptr<models::Model> model, const models::DeviceGroups& devices,
                   const models::PlacementOptions& placement_options, const models::SessionOptions& session_options,
                   const models::LoadOptions& load, const std::optional<tuning::FitOptions>& fit) {
  Engine engine;
  engine.model = std::move(model);
  models::PlacementOptions placement = placement_options;
  models::SessionOptions session = session_options;
  const ShareGoal goal{.fit_follows = fit.has_value()};
  const bool has_room = choose_shares(*engine.model, devices, placement, session, load, goal);
  engine.placement = std::make_unique<models::Placement>(*engine.model, devices, placement);
  require_threads(threads_needed(engine.placement->members(), placement.threads));
  // Memory is planned for the threads there are.
  std::vector<std::unique_ptr<Backend>> backends = engine.placement->init();
  if (fit) fit_context(*engine.model, *engine.placement, session, load, *fit);
  if (!has_room && fit && choose_again(*engine.model, devices, placement, session, load, goal, *fit)) {
    backends.clear();
    engine.placement = std::make_unique<models::Placement>(*engine.model, devices, placement);
    backends = engine.placement->init();
  }
  models::LoadOptions how = load;
  std::vector<models::DeviceUse> memory = models::ModelPlan(*engine.model, *engine.placement, session, how).memory;
  if (how.repack && !models::fits(memory)) {
    // As it is in the file a model may need less, or nothing.
    how.repack = false;
    memory = models::ModelPlan(*engine.model, *engine.placement, session, how).memory;
    if (models::fits(memory)) warn("weights are not repacked, for which there is no room: generation may be slower");
  }
  models::require_memory(memory);
  if (const std::string text = models::mapping_warning(memory); !text.empty()) warn(text);
  ProgressBar bar("loading");
  const auto progress = [&](size_t done, size_t total) {
    if (interrupted()) throw Interrupted();
    bar.update(done, total);
  };
  {
    const TraceRowUse row = session.tracer != nullptr ? session.tracer->row("host") : nullptr;
    const TraceScope scope(row.get(), TraceKind::kHost, {"load weights"});
    models::load_weights(*engine.model, *engine.placement, progress, how);
  }
  engine.session = std::make_unique<models::Session>(*engine.model, *engine.placement, std::move(backends), session);
  return engine;
}

}  // namespace shoal::tools
