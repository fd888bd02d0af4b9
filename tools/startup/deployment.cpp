#include "tools/startup/deployment.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "collectives/absent_communicator.h"
#include "models/session/loader.h"
#include "models/session/orders.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/threads.h"
#include "tools/startup/choice_text.h"
#include "tools/startup/memory_check.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tools {
namespace {

/// The choice of process 0 as JSON, for the other processes.
nlohmann::json choices_of(const Deployment& deployment) {
  const models::SessionOptions& session = deployment.asked.session;
  nlohmann::json choices{{"choice", nlohmann::json::parse(tuning::to_json(deployment.asked.fixed))},
                         {"batch", session.batch},
                         {"candidates", session.candidates},
                         {"repack", deployment.plan->load.repack}};
  if (deployment.machine) {
    choices["machine"] = machine::to_json(*deployment.machine->model);
    choices["origin"] = deployment.machine->origin;
  }
  return choices;
}

/// Throws CommError in every process if the processes have different model files.
void require_same(ProcessGroup& group, const models::GgufFile& file) {
  const nlohmann::json own{{"bytes", file.file_bytes()}, {"header", file.header_digest()}};
  const std::vector<std::string> all = group.gather(own.dump(), "model file");
  const nlohmann::json first = nlohmann::json::parse(all[0]);
  for (int process = 1; process < group.size(); ++process) {
    const nlohmann::json its = nlohmann::json::parse(all[static_cast<size_t>(process)]);
    if (its["bytes"] != first["bytes"] || its["header"] != first["header"]) {
      group.fail(
          fmt::format("{} differs between processes: {} has {} bytes (header #{:08x}), {} has {} bytes (header "
                      "#{:08x}); copy the same file to all hosts",
                      file.path(), group.describe(process), its["bytes"].get<uint64_t>(),
                      its["header"].get<uint64_t>() & 0xffffffff, group.describe(0), first["bytes"].get<uint64_t>(),
                      first["header"].get<uint64_t>() & 0xffffffff));
    }
  }
}

void share_traits(const tuning::Asked& asked) {
  const bool by_tensor = asked.fixed.mode == models::SplitMode::kTensor;
  collectives::share_traits(*processes(), by_tensor ? models::joined(asked.fixed.groups) : asked.fixed.groups,
                            {.implementation = collectives::implementation_or_default(asked.placement.comm)});
}

/// Whether a part of the model is placed on a device outside the chosen groups.
bool uses_host(const tuning::Asked& asked) {
  const models::PlacementOptions& options = asked.placement;
  if (options.device_layers >= 0 || options.expert_layers > 0 || options.cache_on_host) return true;
  const std::vector<Device*> devices = asked.fixed.devices();
  return std::any_of(options.overrides.begin(), options.overrides.end(), [&](const models::TensorOverride& entry) {
    return std::none_of(devices.begin(), devices.end(), [&](const Device* one) { return one->name() == entry.device; });
  });
}

MachineQuery question_of(const Request& request, bool with_host) {
  const tuning::Asked& asked = request.asked;
  MachineQuery question{*request.model, asked.fixed.devices(), asked.placement.threads, asked.placement.comm,
                        request.machine};
  if (!with_host) return question;
  Device* const host = models::find_host(asked.fixed.groups, asked.placement.host);
  const bool is_new = std::find(question.devices.begin(), question.devices.end(), host) == question.devices.end();
  if (host != nullptr && is_new) question.devices.push_back(host);
  return question;
}

/// The request for performance data of the machine. The request includes the host if flags place parts of the model on
/// the host, or if the weights exceed the memory of the devices.
MachineQuery question_of(const Request& request) {
  const tuning::Asked& asked = request.asked;
  const auto have_no_room = [&] {
    size_t free = 0;
    for (const Device* device : asked.fixed.devices()) free += device->memory().free;
    return request.model->weight_bytes() > free;
  };
  const bool needs_host =
      asked.free.host && tuning::find_host(asked.fixed.devices(), asked.placement) != nullptr && have_no_room();
  return question_of(request, needs_host || uses_host(asked));
}

/// Starts the threads of the placement's devices. The threads must run before the plan is made, because planned memory
/// depends on the number of threads.
void start_threads(Deployment& deployment, const models::Placement& placement, int threads) {
  deployment.backends.clear();
  require_threads(threads_needed(placement.members(), threads));
  deployment.backends = placement.init();
}

void take(Deployment& deployment, Request& request, const models::SessionOptions& session, tuning::Chosen chosen) {
  deployment.placement = std::move(chosen.placement);
  deployment.plan = std::move(chosen.plan);
  deployment.ways = chosen.ways;
  deployment.model = std::move(request.model);
  deployment.asked = std::move(request.asked);
  deployment.asked.fixed = std::move(chosen.choice);
  deployment.asked.session = session;
}

/// Returns the request with the settings that process 0 chose. Every process except process 0 calls this function.
tuning::Asked receive_choice(ProcessGroup& group, Request& request, Deployment& deployment) {
  const auto choices = nlohmann::json::parse(group.broadcast("", "choices of process 0"));
  tuning::Asked asked = request.asked;
  asked.free = {};
  asked.fixed = tuning::with_json(asked.fixed, choices["choice"].dump());
  asked.session.batch = choices["batch"];
  asked.session.candidates = choices["candidates"];
  asked.load.repack = choices["repack"];
  asked.is_repacking_decided = true;
  if (!choices.contains("machine")) return asked;
  const std::string origin = choices["origin"];
  asked.placement.machine =
      std::make_shared<machine::MachineModel>(machine::parse_machine(choices["machine"].get<std::string>(), origin));
  deployment.machine = KnownMachine{asked.placement.machine, origin};
  return asked;
}

/// Prints the decisions of the search on stderr. Throws DeviceError if no choice fits into memory.
void report(tuning::Chooser& chooser, const tuning::Chosen& chosen) {
  const tuning::Asked& asked = chooser.asked();
  if (chosen.plan == nullptr) fail_to_fit(chooser, chosen.choice);
  const auto say = [](const std::string& text) { write_err(fmt::format("shoal: {}\n", text)); };
  if (chosen.shares) say(shares_text(chooser, chosen));
  if (chosen.keeps_shares) {
    const std::string ratio = chosen.choice.ratio();
    say(fmt::format("tensor split {} replaces the fastest shares, because {} must stay free on each device",
                    ratio.empty() ? "even" : ratio, format_bytes(asked.margin.bytes)));
  }
  if (!chosen.hosts.empty()) say(host_text(chooser.model(), asked, chosen));
  const bool has_room = models::has_room(chosen.plan->memory);
  if (asked.free.context && !has_room) require_room_for_prompt(chooser, chosen.choice);
  const bool repacks_less = asked.load.repack && !chosen.plan->load.repack;
  if (repacks_less && models::fits(chosen.plan->memory)) {  // no warning if the plan does not fit, because load() then
                                                            // warns of reads from the disk
    warn("weights are not repacked, because there is not enough memory; generation may be slower");
  }
  for (const std::string& note : chosen.notes) say(note);
  const models::SessionOptions session = chooser.session_of(chosen.choice);
  if (const std::string text = models::other_types(chosen.plan->cache, session.dtype_k, session.dtype_v);
      !text.empty()) {
    warn(text);
  }
  if (has_room && chosen.choice.context != chosen.wanted_context) say(context_text(asked, chosen));
}

/// Finds or probes the machine of the request, and stores the machine in the options of the request. Meta devices then
/// plan for the speeds and links of this machine. Throws the errors of find_machine() and require_machine().
std::optional<KnownMachine> choose_machine(Request& request) {
  const tuning::Asked& asked = request.asked;
  const auto acts_as_one = [](const std::vector<Device*>& group) { return group.size() > 1; };
  const bool has_mesh = asked.fixed.mode == models::SplitMode::kTensor
                            ? asked.fixed.device_count() > 1
                            : std::any_of(asked.fixed.groups.begin(), asked.fixed.groups.end(), acts_as_one);
  const bool searches = asked.free.shares && asked.fixed.sharers().size() > 1;
  std::optional<KnownMachine> machine;
  if (searches || request.needs_figures) {
    machine = require_machine(question_of(request));
  } else if (has_mesh) {
    machine = find_machine(question_of(request));
  }
  if (machine) request.asked.placement.machine = machine->model;
  return machine;
}

}  // namespace

tuning::Watch watch_of(ProgressBar& bar) {
  tuning::Watch watch{.poll = stop_if_interrupted};
  watch.progress = [&bar](int done, int most) {
    stop_if_interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(most),
               fmt::format("tested {} of at most {} splits", done, most));
  };
  return watch;
}

Deployment resolve(Request request) {
  ProcessGroup* const group = processes();
  tuning::Asked& asked = request.asked;
  if (group != nullptr) {
    require_same(*group, request.model->file);
    share_traits(asked);
    if (asked.free.shares || request.needs_figures) measure_for_processes(question_of(request));
  }
  Deployment deployment;
  if (is_leader()) {
    deployment.machine = choose_machine(request);
  } else {
    asked = receive_choice(*group, request, deployment);
  }
  ProgressBar bar("choosing shares");
  tuning::Watch watch = watch_of(bar);
  if (request.starts_threads) {
    watch.placed = [&](const models::Placement& placement) {
      start_threads(deployment, placement, asked.placement.threads);
    };
  }
  watch.figures = [&]() -> std::shared_ptr<const machine::MachineModel> {
    const MachineQuery question = question_of(request, true);
    const auto known = find_machine(question);
    return known && lack_of(*known, question).empty() ? known->model : nullptr;
  };
  tuning::Chooser chooser(*request.model, asked, watch);
  tuning::Chosen chosen = chooser.choose();
  bar.clear();
  if (is_leader()) report(chooser, chosen);
  take(deployment, request, chooser.session_of(chosen.choice), std::move(chosen));
  if (group != nullptr && is_leader()) group->broadcast(choices_of(deployment).dump(), "choices of process 0");
  return deployment;
}

void load(Deployment& deployment, const models::LoadProgress& observer) {
  require_memory(deployment.plan->memory);
  if (const std::string text = mapping_warning(deployment.plan->memory); !text.empty()) warn(text);
  ProgressBar bar("loading");
  const auto progress = [&](size_t done, size_t total) {
    if (interrupted()) throw Interrupted();
    bar.update(done, total);
    if (observer) observer(done, total);
  };
  Tracer* tracer = deployment.asked.session.tracer;
  const TraceRowUse row = tracer != nullptr ? tracer->row("host") : nullptr;
  const TraceScope scope(row.get(), TraceKind::kHost, {"load weights"});
  deployment.plan->announce(*deployment.model, *deployment.placement);
  const auto start = std::chrono::steady_clock::now();
  models::load_weights(*deployment.model, *deployment.placement, progress, deployment.plan->load);
  deployment.load_time = std::chrono::steady_clock::now() - start;
}

void start_engine(Deployment& deployment, const models::Tokenizer* tokenizer) {
  deployment.engine =
      std::make_unique<models::Engine>(*deployment.model, *deployment.placement, std::move(deployment.backends),
                                       deployment.asked.session, std::move(deployment.plan), tokenizer);
  if (processes() != nullptr) deployment.engine->runner().lead(*processes());
}

void follow_leader(Request request) {
  Deployment deployment = resolve(std::move(request));
  load(deployment);
  models::Runner runner(*deployment.model, *deployment.placement, std::move(deployment.backends),
                        deployment.asked.session, std::move(deployment.plan));
  models::follow(runner, *processes());
}

}  // namespace shoal::tools
