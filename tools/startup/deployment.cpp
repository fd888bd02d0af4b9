#include "tools/startup/deployment.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "collectives/absent_communicator.h"
#include "models/session/loader.h"
#include "models/session/orders.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/threads.h"
#include "tools/startup/host_choice.h"
#include "tools/startup/memory_check.h"

namespace shoal::tools {
namespace {

void place(Deployment& deployment, Request& request) {
  deployment.backends.clear();
  deployment.ways = take_faster_ways(*request.model, request.devices, request.ways, request.placement);
  deployment.placement = std::make_unique<models::Placement>(*request.model, request.devices, request.placement);
  if (!request.starts_threads) return;
  // Memory is planned for the threads there are.
  require_threads(threads_needed(deployment.placement->members(), request.placement.threads));
  deployment.backends = deployment.placement->init();
}

/// What process 0 has chosen, for the others.
nlohmann::json choices_of(const Request& request, const models::ModelPlan& plan) {
  const models::SessionOptions& session = request.session;
  nlohmann::json choices{{"ratio", request.placement.ratio},
                         {"experts", models::name_of(request.placement.experts)},
                         {"latent", models::name_of(request.placement.latent)},
                         {"context", session.context},
                         {"batch", session.batch},
                         {"candidates", session.candidates},
                         {"repack", plan.load.repack}};
  if (request.machine) {
    choices["machine"] = machine::to_json(*request.machine->model);
    choices["origin"] = request.machine->origin;
  }
  return choices;
}

void take_choices(const nlohmann::json& choices, Request& request) {
  request.placement.ratio = choices["ratio"];
  request.ways.experts = tuning::parse_expert_split(choices["experts"].get<std::string>());
  request.ways.latent = tuning::parse_latent_split(choices["latent"].get<std::string>());
  models::SessionOptions& session = request.session;
  session.context = choices["context"];
  session.batch = choices["batch"];
  session.candidates = choices["candidates"];
  request.load.repack = choices["repack"];
  if (!choices.contains("machine")) return;
  const std::string origin = choices["origin"];
  request.machine = KnownMachine{
      std::make_shared<machine::MachineModel>(machine::parse_machine(choices["machine"].get<std::string>(), origin)),
      origin};
  request.placement.machine = request.machine->model;
}

/// Throws CommError, everywhere, where the processes do not have the same file.
void require_same(ProcessGroup& group, const models::GgufFile& file) {
  const nlohmann::json own{{"bytes", file.file_bytes()}, {"header", file.header_digest()}};
  const std::vector<std::string> all = group.gather(own.dump(), "model file");
  const nlohmann::json first = nlohmann::json::parse(all[0]);
  for (int process = 1; process < group.size(); ++process) {
    const nlohmann::json its = nlohmann::json::parse(all[static_cast<size_t>(process)]);
    if (its["bytes"] != first["bytes"] || its["header"] != first["header"]) {
      group.fail(
          fmt::format("{} is another file in {} ({} bytes, header #{:08x}) than in {} ({} bytes, header #{:08x}); "
                      "copy the same file to all hosts",
                      file.path(), group.describe(process), its["bytes"].get<uint64_t>(),
                      its["header"].get<uint64_t>() & 0xffffffff, group.describe(0), first["bytes"].get<uint64_t>(),
                      first["header"].get<uint64_t>() & 0xffffffff));
    }
  }
}

Deployment finish(Request request, Deployment deployment, models::ModelPlan plan) {
  deployment.model = std::move(request.model);
  deployment.devices = std::move(request.devices);
  deployment.machine = std::move(request.machine);
  deployment.placement_options = std::move(request.placement);
  deployment.asked_ways = request.ways;
  deployment.session_options = request.session;
  deployment.load_options = request.load;
  deployment.plan = std::make_unique<models::ModelPlan>(std::move(plan));
  return deployment;
}

/// In a process that does not lead.
Deployment resolve_as_told(ProcessGroup& group, Request request) {
  take_choices(nlohmann::json::parse(group.broadcast("", "choices of process 0")), request);
  Deployment deployment;
  place(deployment, request);
  models::ModelPlan plan(*request.model, *deployment.placement, request.session, request.load);
  return finish(std::move(request), std::move(deployment), std::move(plan));
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

void share_traits(const Request& request) {
  if (processes() == nullptr) return;
  const bool by_tensor = request.placement.mode == models::SplitMode::kTensor;
  collectives::share_traits(*processes(), by_tensor ? models::joined(request.devices) : request.devices,
                            {.implementation = collectives::implementation_or_default(request.placement.comm)});
}

Deployment resolve(Request request) {
  ProcessGroup* const group = processes();
  // Of a text that fills its context a token sees half on the average.
  const auto half_of_context = [&] { return session_size(request.model->hparams, request.session).context / 2; };
  int64_t& rows = request.ways.rows;
  const bool sees_half = rows == 0;
  if (sees_half) rows = half_of_context();
  request.ways.cache_type = request.session.dtype_k;
  if (group != nullptr) {
    require_same(*group, request.model->file);
    share_traits(request);
  }
  if (request.placement.ratio == kAutoRatio) {
    measure_for_processes({*request.model, request.devices, request.placement, request.goal.machine});
  }
  if (!is_leader()) return resolve_as_told(*group, std::move(request));
  Deployment deployment;
  const bool has_room = choose_shares(request);
  choose_machine(request);
  place(deployment, request);
  if (choose_host_part(request)) place(deployment, request);
  std::optional<models::ModelPlan> planned;
  if (request.fit) planned = fit_context(request, *deployment.placement);
  if (!has_room && request.fit && choose_again(request)) {
    place(deployment, request);
    planned.reset();
  }
  const bool may_lie_otherwise = has_latent_cache(request.model->hparams) && !request.ways.latent;
  if (sees_half && may_lie_otherwise && rows != half_of_context()) {
    rows = half_of_context();  // of what fits
    place(deployment, request);
    planned.reset();
  }
  if (!planned) planned = models::plan_to_load(*request.model, *deployment.placement, request.session, request.load);
  const bool repacks_less = request.load.repack && !planned->load.repack;
  if (repacks_less && models::fits(planned->memory)) {  // load() warns of weights that are read from the disk
    warn("weights are not repacked, for which there is no room: generation may be slower");
  }
  const models::SessionOptions& session = request.session;
  if (const std::string text = models::other_types(planned->cache, session.dtype_k, session.dtype_v); !text.empty()) {
    warn(text);
  }
  if (models::has_room(planned->memory)) write_err(request.remark);  // an error follows otherwise
  if (group != nullptr)
    group->broadcast(choices_of(request, *planned).dump(), "choices of process 0");
  return finish(std::move(request), std::move(deployment), std::move(*planned));
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
  const auto start = std::chrono::steady_clock::now();
  models::load_weights(*deployment.model, *deployment.placement, progress, deployment.plan->load);
  deployment.load_time = std::chrono::steady_clock::now() - start;
}

void start_session(Deployment& deployment) {
  deployment.session =
      std::make_unique<models::Session>(*deployment.model, *deployment.placement, std::move(deployment.backends),
                                        deployment.session_options, std::move(*deployment.plan));
  deployment.plan.reset();
  if (processes() != nullptr && is_leader()) deployment.session->lead(*processes());
}

void follow_leader(Request request) {
  Deployment deployment = resolve(std::move(request));
  load(deployment);
  start_session(deployment);
  models::follow(*deployment.session, *processes());
}

}  // namespace shoal::tools
