// shoal plan: where every tensor would lie, what would run, and each device's memory, without loading weights.
#include <fmt/core.h>

#include <memory>

#include "devices/cpu/cpu_device.h"
#include "devices/params.h"
#include "models/model_plan.h"
#include "tools/command.h"
#include "tools/flags.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/program.h"
#include "tools/prompt.h"
#include "tools/threads.h"

namespace shoal::tools {
namespace {

struct PlanFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  LoadFlags load;
  SamplingFlags sampling;
  OutputFlag output;
  int rank = -1;
  bool schedule = false;

  void check() {
    devices.check();
    if (rank < static_cast<int>(devices.names.size())) return;
    throw UsageError(fmt::format("--rank {}: there are ranks 0 to {}", rank, devices.names.size() - 1));
  }
};

/// What the ranks of meta devices tell each other while one token is generated.
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

/// The devices that have less free memory than they need, as "CPU0, CPU2".
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

/// A place in the list of devices, counted from the first device of plan `index`.
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

nlohmann::json to_json(const models::ModelPlan& plan, const PlanFlags& flags) {
  // One device, or several that act as one, are the usual case: their plan is the answer itself.
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
  json["fits"] = too_small(plan).empty();
  json["host_bytes"] = plan.host_bytes;
  auto& memory = json["memory"] = nlohmann::json::array();
  for (const models::DeviceUse& use : plan.memory) {
    memory.push_back({{"device", use.device},
                      {"weights", use.use.weights},
                      {"kv", use.use.cache},
                      {"compute", use.use.compute},
                      {"communication", use.use.communication},
                      {"total", use.use.total()},
                      {"mapped", use.mapped},
                      {"free", use.memory.free}});
  }
  return json;
}

std::string memory_text(const models::ModelPlan& plan) {
  std::vector<std::vector<std::string>> rows{
      {"  device", "weights", "KV", "compute", "communication", "total", "free"}};
  std::string mapped;
  for (const models::DeviceUse& use : plan.memory) {
    rows.push_back({"  " + use.device, format_bytes(use.use.weights), format_bytes(use.use.cache),
                    format_bytes(use.use.compute), format_bytes(use.use.communication), format_bytes(use.use.total()),
                    format_bytes(use.memory.free)});
    if (use.mapped == 0) continue;
    mapped += fmt::format("{} uses {} of weights where the file is mapped, without memory of its own for them\n",
                          use.device, format_bytes(use.mapped));
  }
  std::string names = too_small(plan);
  if (plan.step.plans.size() > 1) {
    mapped += fmt::format("what devices pass to each other takes {} of host memory\n", format_bytes(plan.host_bytes));
  }
  return format_table(rows) + mapped +
         (names.empty() ? "" : fmt::format("does not fit: {} would need more than is free\n", names));
}

std::string traffic_text(const Traffic& per_token) {
  std::string text;
  for (const auto& [kind, count] : per_token.counts) text += fmt::format("  {} {}\n", count, kind);
  return text + fmt::format("  {} in all\n", format_bytes(per_token.bytes));
}

int plan_model(PlanFlags& flags) {
  flags.check();
  auto model = models::open_model(flags.model.path);
  models::Placement placement(*model, flags.devices.find_groups(), flags.devices.placement());
  if (flags.devices.threads > 0) {
    // Scratch memory is planned for the most threads that a device's backends have had: as `run` makes them.
    require_threads(threads_needed(placement.members(), flags.devices.threads));
    placement.init();
  }
  models::SessionOptions session = flags.context.session();
  session.candidates = flags.sampling.candidates();
  models::ModelPlan plan(*model, placement, session, flags.load.load(session.op_offload));
  warn_of_context(model->hparams, plan.size);
  if (flags.output.json()) {
    print_json(to_json(plan, flags));
    return kSuccess;
  }
  std::string text = fmt::format("{} on {} device(s), context {}, batch {}; one token is generated by:\n",
                                 escaped(flags.model.path), plan.memory.size(), plan.size.context, plan.size.batch);
  if (flags.schedule) text += sched::to_string(plan.step.schedule);
  for (size_t d = 0; d < plan.step.plans.size(); ++d) {
    if (!plan.step.plans[d]) continue;
    const meta::Plan& one = *plan.step.plans[d];
    if (plan.step.plans.size() > 1) text += fmt::format("on {}\n", plan.step.schedule.backends[d]);
    text += meta::layouts_text(one) + meta::steps_text(one);
    const int rank = rank_in(plan.step, d, flags.rank);
    if (has_rank(one, rank)) text += meta::local_text(one, rank);
  }
  text += fmt::format("collectives per token\n{}memory\n{}", traffic_text(traffic(plan.step)), memory_text(plan));
  write_out(text);
  return kSuccess;
}

}  // namespace

CommandBody define_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  flags->model.add_to(app);
  flags->devices.add_to(app);
  flags->devices.add_layers_to(app);
  flags->load.add_to(app);
  flags->context.add_to(app);
  flags->context.add_batches_to(app);
  flags->sampling.add_candidates_to(app);
  flags->output.add_to(app);
  app.add_flag("--schedule", flags->schedule,
               "Also print which device runs each node and why, and what is copied between devices");
  add_integer(app, "--rank", flags->rank, 0, cpu::kMaxDevices,
              "Also print the local graph that this device of the list runs, node by node")
      ->default_str("");
  return [flags] { return plan_model(*flags); };
}

}  // namespace shoal::tools
