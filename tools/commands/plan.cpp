// shoal plan: shows the layouts of all tensors, the steps, and the memory of each device, without loading weights.
// Predicts the speed if the machine is known.
#include <fmt/core.h>

#include <memory>

#include "base/text.h"
#include "devices/cpu/cpu_device.h"
#include "models/session/model_plan.h"
#include "tools/bench/bench_report.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"
#include "tools/cli/progress.h"
#include "tools/cli/prompt.h"
#include "tools/cli/text.h"
#include "tools/cli/threads.h"
#include "tools/report/plan_report.h"
#include "tools/startup/deployment.h"
#include "tools/startup/memory_check.h"

namespace shoal::tools {
namespace {

struct PlanFlags {
  ChoiceFlags choice;
  SamplingFlags sampling;
  OutputFlag output;
  WorkloadFlags workload;
  std::optional<tuning::Objective> asked_objective;
  std::string machine;  ///< name or file of a machine; "": this machine
  bool recommend = false;
  int rank = -1;
  bool schedule = false;

  void check() {
    choice.devices.check();
    check_objective();
    if (rank < static_cast<int>(choice.devices.names.size())) return;
    throw UsageError(
        fmt::format("--rank {}: ranks are 0 to {}; give one of them", rank, choice.devices.names.size() - 1));
  }

  /// The requested objective. The default is generation. If the work has prompt tokens and no generated tokens, the
  /// default is prompt.
  tuning::Objective objective() const {
    const auto [prompt, generate] = asked_work();
    const bool only_prompt = generate == 0 && prompt > 0;
    return asked_objective.value_or(only_prompt ? tuning::Objective::kPrompt : tuning::Objective::kGeneration);
  }

  void check_objective() const {
    if (!recommend && choice.devices.ratio != kAutoRatio) return;
    const auto [prompt, generate] = asked_work();
    try {
      tuning::require_work({prompt, generate, 0}, objective());
    } catch (const InvalidArgument& error) {
      throw UsageError(fmt::format("{}; give numbers above 0 with -p and -n, or another --objective", error.what()));
    }
  }

 private:
  /// Numbers of prompt tokens and generated tokens.
  std::pair<int64_t, int64_t> asked_work() const {
    const tuning::Workload usual;
    return {workload.prompt.value_or(usual.prompt), workload.generate.value_or(usual.generate)};
  }
};

/// Number of collectives of each kind, and their bytes, for one generated token on all meta devices.
struct Traffic {
  std::map<std::string, int> counts;
  int64_t bytes = 0;
};

Traffic traffic(const models::PlannedGraph& step) {
  Traffic out;
  for (const std::optional<meta::Plan>& plan : step.plans) {
    if (!plan) continue;
    for (const meta::Step& s : plan->steps) {
      if (s.kind == meta::StepKind::kCollective) ++out.counts[std::string(name_of(s.collective))];
    }
    out.bytes += plan->collective_bytes();
  }
  return out;
}

/// Names of devices that have less free memory than the plan allocates: "CPU0, CPU2".
std::string too_small(const models::ModelPlan& plan) {
  std::string names;
  for (const models::DeviceUse& use : plan.memory) {
    if (use.use.total() > use.memory.free) names += (names.empty() ? "" : ", ") + use.device;
  }
  return names;
}

bool has_rank(const meta::Plan& plan, int rank) {
  return rank >= 0 && rank < static_cast<int>(plan.ranks.size());
}

/// Converts `rank`, an index in the list of devices, to a rank of plan `index`. The result is outside the plan's ranks
/// if the device belongs to another plan.
int rank_in(const models::PlannedGraph& step, size_t index, int rank) {
  for (size_t i = 0; i < index && rank >= 0; ++i)
    rank -= step.plans[i] ? static_cast<int>(step.plans[i]->ranks.size()) : 0;
  return rank;
}

nlohmann::json json_of(const meta::Plan& plan, int rank) {
  nlohmann::json json = nlohmann::json::parse(meta::to_json(plan));
  if (has_rank(plan, rank)) json["local_graph"] = meta::local_text(plan, rank);
  return json;
}

/// Predictions of the speed, or the reason that there is no prediction.
struct Outlook {
  std::string origin;   ///< source of the machine's performance data
  std::string missing;  ///< one line with the reason that there is no prediction
  std::optional<tuning::Verdict> prediction;
  std::optional<tuning::Comparison> comparison;
};

nlohmann::json to_json(const models::ModelPlan& plan, const PlanFlags& flags) {
  // With one device or one meta device (the usual case), the result is the JSON of the only plan.
  nlohmann::json json;
  if (plan.step.plans.size() == 1) {
    json = json_of(plan.step.on(), flags.rank);
  } else {
    auto& devices = json["plans"] = nlohmann::json::array();
    for (size_t d = 0; d < plan.step.plans.size(); ++d) {
      if (plan.step.plans[d]) devices.push_back(json_of(*plan.step.plans[d], rank_in(plan.step, d, flags.rank)));
    }
  }
  if (flags.schedule) json["schedule"] = nlohmann::json::parse(sched::to_json(plan.step.schedule));
  json["context"] = plan.size.context;
  json["batch"] = plan.size.batch;
  Traffic per_token = traffic(plan.step);
  json["collectives_per_token"] = {{"counts", per_token.counts}, {"bytes", per_token.bytes}};
  json["fits"] = models::fits(plan.memory);
  json["from_disk"] = models::has_room(plan.memory) && !models::fits(plan.memory);
  json["host_bytes"] = plan.host_bytes;
  json["memory"] = memory_json(plan.memory);
  return json;
}

void add_json(nlohmann::json& json, const Outlook& outlook) {
  json["prediction"] = nullptr;
  if (outlook.prediction) {
    json["prediction"] = prediction_json(*outlook.prediction);
    json["prediction"]["machine"] = outlook.origin;
  } else {
    json["no_prediction"] = outlook.missing;
  }
  if (outlook.comparison) add_comparison(json, *outlook.comparison);
}

std::string memory_text(const models::ModelPlan& plan) {
  std::vector<std::vector<std::string>> rows{
      {"  device", "weights", "KV", "compute", "communication", "total", "free", "margin"}};
  std::string mapped;
  for (const models::DeviceUse& use : plan.memory) {
    rows.push_back({"  " + use.device, format_bytes(use.use.weights), format_bytes(use.use.cache),
                    format_bytes(use.use.compute), format_bytes(use.use.communication), format_bytes(use.use.total()),
                    format_bytes(use.memory.free), margin_text(use)});
    if (use.mapped == 0) continue;
    mapped += fmt::format("{} uses {} of weights from the mapped file, without allocating memory for them\n",
                          use.device, format_bytes(use.mapped));
  }
  std::string names = too_small(plan);
  if (plan.step.plans.size() > 1) {
    mapped += fmt::format("copies between devices take {} of host memory\n", format_bytes(plan.host_bytes));
  }
  if (!names.empty()) mapped += fmt::format("does not fit: {} would need more memory than is free\n", names);
  if (names.empty() && !models::fits(plan.memory)) {
    mapped += fmt::format("does not fit, but runs: {}\n", mapping_warning(plan.memory));
  }
  return format_table(rows) + mapped;
}

std::string traffic_text(const Traffic& per_token) {
  std::string text;
  for (const auto& [kind, count] : per_token.counts) text += fmt::format("  {} {}\n", count, kind);
  return text + fmt::format("  {} in all\n", format_bytes(per_token.bytes));
}

std::vector<std::string> descriptions(const tuning::Choice& choice) {
  std::vector<std::string> all;
  for (const Device* device : choice.devices()) all.push_back(device->description());
  return all;
}

tuning::Comparison compared(tuning::Chooser& chooser) {
  ProgressBar bar("comparing");
  return tuning::compare(chooser, [&bar](int done, int total) {
    stop_if_interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(total), fmt::format("set {} of {}", done + 1, total));
  });
}

Outlook look_ahead(const Deployment& planned, const PlanFlags& flags) {
  const auto members = planned.placement->members();
  const MachineQuery question{*planned.model,
                              {members.begin(), members.end()},
                              planned.asked.placement.threads,
                              planned.asked.placement.comm,
                              flags.machine};
  Outlook outlook;
  const auto machine = planned.machine ? planned.machine : find_machine(question);
  if (!machine) {
    outlook.missing = fmt::format("no prediction of speed: run {} first", probe_command(question));
    return outlook;
  }
  if (const std::string lack = lack_of(*machine, question); !lack.empty()) {
    outlook.missing = "no prediction of speed: " + lack;
    return outlook;
  }
  outlook.origin = machine->origin;
  tuning::Asked asked = planned.asked;
  asked.placement.machine = machine->model;
  asked.work = flags.workload.workload(planned.plan->size.context);
  asked.objective = flags.objective();
  tuning::Chooser chooser(*planned.model, asked, {.poll = stop_if_interrupted});
  try {
    outlook.prediction = chooser.judge(asked.fixed, *planned.placement, *planned.plan);
  } catch (const InvalidArgument& error) {
    // For a named machine and with --recommend, missing performance data is an error. In all other cases, `plan` uses
    // the saved measurements of this computer. If these measurements are incomplete, `plan` only omits the prediction.
    if (!flags.machine.empty() || flags.recommend) throw;
    outlook.missing = fmt::format("no prediction of speed: {}", error.what());
    return outlook;
  }
  if (!flags.recommend) return outlook;
  // If --fit placed a part of the model on the host, this placement is only one of the candidates.
  asked.fixed.host = {};
  asked.fixed.experts = flags.choice.devices.split.experts;
  asked.fixed.latent = flags.choice.devices.split.latent;
  tuning::Chooser comparing(*planned.model, asked, {.poll = stop_if_interrupted});
  outlook.comparison = compared(comparing);
  return outlook;
}

/// The largest context, and the device that limits it.
std::string cache_text(const Deployment& planned) {
  const auto room = models::cache_room(*planned.model, *planned.placement, planned.asked.session, *planned.plan);
  if (!room) return "";
  return fmt::format("the KV cache holds {} tokens; {} has room for {}{}\n", planned.plan->cache.rows, room->device,
                     room->tokens, planned.plan->memory.size() > 1 ? ", the fewest of all devices" : "");
}

/// With --recommend, prints layouts and steps only if flags request them, because the layouts and steps of a large
/// model have thousands of lines.
std::string plan_text(const models::ModelPlan& plan, const PlanFlags& flags) {
  const bool shows_steps = !flags.recommend;
  std::string text =
      fmt::format("{} on {} device(s), context {}, batch {}{}\n", escaped(flags.choice.model.path), plan.memory.size(),
                  plan.size.context, plan.size.batch, shows_steps ? "; one token is generated by:" : "");
  if (flags.schedule) text += sched::to_string(plan.step.schedule);
  for (size_t d = 0; d < plan.step.plans.size(); ++d) {
    if (!plan.step.plans[d]) continue;
    const meta::Plan& one = *plan.step.plans[d];
    const int rank = rank_in(plan.step, d, flags.rank);
    const bool names_device = plan.step.plans.size() > 1 && (shows_steps || has_rank(one, rank));
    if (names_device) text += fmt::format("on {}\n", plan.step.schedule.backends[d]);
    if (shows_steps) text += meta::layouts_text(one) + meta::steps_text(one);
    if (has_rank(one, rank)) text += meta::local_text(one, rank);
  }
  text += fmt::format("collectives per token\n{}memory\n{}", traffic_text(traffic(plan.step)), memory_text(plan));
  return text;
}

Request request_of(const PlanFlags& flags) {
  const ChoiceFlags& choice = flags.choice;
  Request request{models::open_model(choice.model.path)};
  models::DeviceGroups groups = find_groups_on(flags.machine, choice.devices);
  if (choice.devices.profile) warn_of_profile(*choice.devices.profile, *request.model);
  tuning::Asked& asked = request.asked = choice.asked(groups, flags.sampling.candidates());
  asked.session.sequences = flags.workload.sequences;
  // Without several requests, `run` needs no memory for cached beginnings.
  asked.session = models::engine_options(asked.session, flags.workload.sequences > 1 ? models::kKeptStates : 0);
  asked.placement.host = host_on(flags.machine, groups);
  // For a named machine, only a host from the machine's description counts. The host of this computer is not used.
  if (!flags.machine.empty() && asked.placement.host == nullptr) asked.free.host = false;
  asked.objective = flags.objective();
  const int64_t context = models::session_size(request.model->hparams, asked.session).context;
  // With --fit, the final context is not known yet.
  asked.work = asked.free.shares ? flags.workload.workload(context) : tuning::Workload{};
  asked.work = tuning::work_of(asked.work, asked.objective);
  asked.way_tokens = asked.objective == tuning::Objective::kPrompt ? asked.session.batch : asked.session.sequences;
  if (flags.workload.depth) asked.way_rows = tuning::rows_seen(flags.workload.workload(context));
  // Scratch memory depends on the largest number of threads that the backends of a device have ever started. So the
  // command `plan` starts the same threads as `run`.
  request.starts_threads = choice.devices.threads > 0 && flags.machine.empty();
  request.machine = flags.machine;
  request.needs_figures = flags.recommend;
  return request;
}

int plan_model(PlanFlags& flags) {
  take_devices_of(flags.machine, flags.choice.devices);
  flags.check();
  catch_interrupts();
  const Deployment planned = resolve(request_of(flags));
  if (!is_leader()) return kSuccess;
  const models::ModelPlan& plan = *planned.plan;
  flags.choice.devices.warn_of_ways(*planned.model);
  warn_of_context(planned.model->hparams, plan.size.context);
  const Outlook outlook = look_ahead(planned, flags);
  if (flags.output.json()) {
    nlohmann::json json = to_json(plan, flags);
    if (const auto room = models::cache_room(*planned.model, *planned.placement, planned.asked.session, plan)) {
      json["cache"] = {{"tokens", plan.cache.rows}, {"most_tokens", room->tokens}, {"limited_by", room->device}};
    }
    json["build_commit"] = build_commit();
    json["model_type"] = describe_model(*planned.model);
    json["descriptions"] = descriptions(planned.asked.fixed);
    json["units"] = units_json(*planned.model);
    add_ways(json, *planned.model, *planned.placement, planned.ways);
    json["split_key"] = tuning::split_key(*planned.model, *planned.placement);
    json["tensor_split"] = shares_json(planned.asked.fixed);
    add_json(json, outlook);
    print_json(json);
    return kSuccess;
  }
  std::string text =
      plan_text(plan, flags) + cache_text(planned) + ways_text(*planned.model, *planned.placement, planned.ways);
  if (!outlook.missing.empty()) text += outlook.missing + "\n";
  if (outlook.prediction) text += prediction_text(*outlook.prediction, outlook.origin);
  if (outlook.comparison) text += comparison_text(*outlook.comparison, flags.objective());
  write_out(text);
  return kSuccess;
}

void add_prediction(CLI::App& app, PlanFlags& flags) {
  flags.workload.add_to(app);
  app.add_flag("--recommend", flags.recommend,
               "Predict the speed of each single device and of both split modes on some or all devices. Layouts and "
               "steps are then printed only with -o json");
  const auto read_objective = [&flags](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(text == "generation" || text == "prompt" || text == "mix",
                             "{} must be generation, prompt or mix, got '{}'", flag, text);
    flags.asked_objective = tuning::parse_objective(text);
  };
  add_parsed(app, "--objective", "NAME", read_objective,
             "Speed that --recommend and --tensor-split auto optimise: generation, prompt, or mix (-p prompt tokens "
             "and -n generated tokens together)")
      ->default_str("generation, or prompt with -n 0");
  app.add_option("--machine", flags.machine,
                 "Machine for the plan and the prediction, instead of this computer: a name such as H200x8-nvlink, or "
                 "a JSON file (docs/simulation.md). Without --devices, all devices of the machine are used")
      ->type_name("NAME");
}

}  // namespace

CommandBody define_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  flags->choice.add_to(app);
  flags->sampling.add_candidates_to(app);
  flags->output.add_to(app);
  add_prediction(app, *flags);
  app.add_flag("--schedule", flags->schedule,
               "Also print the device of each node, the reason for this choice, and the copies between devices");
  add_integer(
      app, "--rank", flags->rank, 0, cpu::kMaxDevices,
      "Also print the local graph of the device with this index in --devices, node by node; 0: the first device")
      ->default_str("");
  return [flags] { return plan_model(*flags); };
}

}  // namespace shoal::tools
