#include "tuning/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tuning/pipeline_time.h"
#include "tuning/run_cost.h"

namespace shoal::tuning {
namespace {

struct ObjectiveName {
  Objective objective;
  std::string_view name;
};
constexpr std::array kObjectives = std::to_array<ObjectiveName>({
    {Objective::kGeneration, "generation"},
    {Objective::kPrompt, "prompt"},
    {Objective::kMix, "mix"},
});

/// Number of fill levels of the cache for which a long prompt is evaluated. More levels are unnecessary, because
/// successive batches take nearly the same time.
constexpr int64_t kPromptSamples = 8;

double as_double(int64_t value) {
  return static_cast<double>(value);
}

/// A split of a schedule, with its time on the machine.
struct Stage {
  int backend = 0;
  double copies = 0;  ///< seconds of the copies before the split
  Estimate estimate;
  double seconds() const { return copies + estimate.seconds; }
};

/// Predicts the times of a model with one placement on the machine.
class Predictor {
 public:
  Predictor(const models::Model& model, const models::Placement& placement, const models::ModelPlan& plan,
            const machine::MachineModel& machine, const models::SessionOptions& session, const Poll& poll)
      : model_(model), placement_(placement), machine_(machine), session_(session), poll_(poll), plan_(plan) {
    const bool has_room = models::has_room(plan.memory);
    for (size_t d = 0; d < placement.devices().size(); ++d) {
      std::vector<int> members;
      for (const Device* member : placement.members_of(static_cast<int>(d))) {
        members.push_back(machine.index(member->name()));
      }
      devices_.push_back(std::move(members));
      reads_disk_.push_back(std::any_of(plan.memory.begin(), plan.memory.end(), [&](const models::DeviceUse& use) {
        return has_room && use.device == placement.devices()[d]->name() && use.reads_disk();
      }));
    }
  }

  PhasePrediction generation(int64_t depth, int64_t count, int64_t sequences) const {
    // The time of a token grows linearly with the number of filled cache rows. The middle token therefore takes the
    // average time.
    PhasePrediction phase = new_phase();
    const int64_t together = std::min(sequences, plan_.size.batch);
    const models::PlannedGraph& step = planned(models::shape_for(together, together, together, plan_.size));
    for (const Stage& stage : stages(step, as_double(depth) + (as_double(count) + 1) / 2)) {
      add(phase, stage, 1);
      phase.seconds += stage.seconds();
    }
    add_disk(phase, step, 1);
    finish(phase);
    phase.seconds *= as_double(count * ((sequences + together - 1) / together));
    phase.rate = as_double(count * sequences) / phase.seconds;
    return phase;
  }

  /// The prompts of several sequences are computed one after the other.
  PhasePrediction prompt(int64_t depth, int64_t count, int64_t sequences) const {
    std::vector<AlikeRuns> runs;
    PhasePrediction phase = new_phase();
    for (const AlikeBatches& alike : alike_batches(count)) {
      if (poll_) poll_();
      runs.push_back({alike.count, {}});
      for (const Stage& stage : stages(planned(alike.shape), as_double(depth) + alike.rows)) {
        add(phase, stage, alike.count);
        runs.back().stages.push_back({stage.backend, stage.seconds()});
      }
      add_disk(phase, planned(alike.shape), alike.count);
    }
    phase.seconds = seconds_of_runs(runs);
    finish(phase);
    phase.rate = as_double(count) / phase.seconds;
    phase.seconds *= as_double(sequences);
    return phase;
  }

 private:
  /// Batches of a prompt that are evaluated with one fill level of the cache.
  struct AlikeBatches {
    int64_t count = 1;
    models::BatchShape shape;
    double rows = 0;  ///< average number of prompt rows in the cache
  };

  /// Divides the prompt into batches and groups the full batches by their position in the prompt. The last elements are
  /// the batches of the remaining tokens. The list is short even for long prompts.
  std::vector<AlikeBatches> alike_batches(int64_t count) const {
    const int64_t batch = plan_.size.batch;
    const int64_t bucket = std::max<int64_t>(batch, (count + kPromptSamples - 1) / kPromptSamples);
    const auto rows = [&](int64_t begin, int64_t tokens) {
      if (bucket == batch) return as_double(begin) + (as_double(tokens) + 1) / 2;
      return std::min((as_double(begin / bucket) + 0.5) * as_double(bucket), as_double(count));
    };
    std::vector<AlikeBatches> out;
    const int64_t full = (count - 1) / batch;
    for (int64_t i = 0; i < full;) {
      const int64_t next_part = (i * batch / bucket + 1) * bucket;
      const int64_t end = std::min(full, (next_part + batch - 1) / batch);
      out.push_back({end - i, {batch, 1}, rows(i * batch, batch)});
      i = end;
    }
    int64_t begin = full * batch;
    for (const models::Batch& rest : models::divide_into_batches(count - begin, 1, batch)) {
      out.push_back({1, rest.shape, rows(begin, rest.tokens)});
      begin += rest.tokens;
    }
    return out;
  }

  PhasePrediction new_phase() const {
    PhasePrediction phase;
    for (const Device* member : placement_.members()) phase.devices.push_back(member->name());
    phase.ranks.resize(phase.devices.size());
    // Time in which the host transfers the inputs and results of a run.
    phase.host = host_seconds(machine_, placement_) + output_seconds(machine_, placement_, plan_.step);
    return phase;
  }

  RankTime& rank_of(PhasePrediction& phase, const Device* member) const {
    const auto known = std::find(placement_.members().begin(), placement_.members().end(), member);
    return phase.ranks[static_cast<size_t>(known - placement_.members().begin())];
  }

  /// The plan of a batch. If the session has no plan for this shape, makes a new plan and caches it.
  const models::PlannedGraph& planned(models::BatchShape shape) const {
    if (shape == plan_.step.shape) return plan_.step;
    const auto known = std::find_if(plan_.prompts.begin(), plan_.prompts.end(),
                                    [&](const models::PlannedGraph& graph) { return graph.shape == shape; });
    if (known != plan_.prompts.end()) return *known;
    for (const auto& [made, graph] : more_) {
      if (made == shape) return *graph;
    }
    auto graph = std::make_unique<models::PlannedGraph>(plan_graph(model_, placement_, session_, plan_, shape));
    more_.emplace_back(shape, std::move(graph));
    return *more_.back().second;
  }

  std::vector<Stage> stages(const models::PlannedGraph& planned, double rows) const {
    std::vector<std::optional<Estimator>> estimators(devices_.size());
    std::vector<Stage> out;
    for (size_t s = 0; s < planned.schedule.splits.size(); ++s) {
      const sched::Split& split = planned.schedule.splits[s];
      const auto backend = static_cast<size_t>(split.backend);
      if (!estimators[backend]) {
        estimators[backend].emplace(planned.on(split.backend), machine_, devices_[backend], rows);
      }
      const int segment = planned.local.splits[s].segment;
      Stage stage{split.backend, 0, estimators[backend]->segments(segment, segment + 1)};
      for (size_t copy = 0; copy < split.copies.size(); ++copy) {
        stage.copies += copy_seconds(machine_, placement_, split, copy);
      }
      out.push_back(std::move(stage));
    }
    return out;
  }

  void add(PhasePrediction& phase, const Stage& stage, int64_t count) const {
    const double times = as_double(count);
    const auto members = placement_.members_of(stage.backend);
    for (size_t rank = 0; rank < members.size(); ++rank) {
      RankTime& time = rank_of(phase, members[rank]);
      time.compute += times * stage.estimate.ranks[rank].compute;
      time.communication += times * (stage.estimate.ranks[rank].communication + stage.copies);
    }
    phase.copies += times * stage.copies;
    for (const CollectiveTime& one : stage.estimate.collectives) add(phase.collectives, one, count);
  }

  static void add(std::vector<CollectiveTime>& collectives, const CollectiveTime& one, int64_t times) {
    const auto known = std::find_if(collectives.begin(), collectives.end(), [&](const CollectiveTime& other) {
      return other.kind == one.kind && other.bytes == one.bytes;
    });
    if (known == collectives.end()) {
      collectives.push_back(one);
      collectives.back().count *= times;
      return;
    }
    const int64_t more = one.count * times, count = known->count + more;
    known->seconds = (known->seconds * as_double(known->count) + one.seconds * as_double(more)) /
                     as_double(std::max<int64_t>(count, 1));
    known->count = count;
  }

  /// Adds the time of reading mapped weights. The devices read from the same disk, one after another.
  void add_disk(PhasePrediction& phase, const models::PlannedGraph& planned, int64_t count) const {
    if (std::find(reads_disk_.begin(), reads_disk_.end(), true) == reads_disk_.end()) return;
    for (const Tensor* node : planned.graph.graph->nodes()) {
      const double bytes = machine::weight_bytes(*node);
      if (bytes == 0 || node->src[0]->storage()->role != Role::kWeight) continue;
      const auto device = static_cast<size_t>(placement_.device_of(*node->src[0]->storage()));
      if (!reads_disk_[device]) continue;
      const double seconds = as_double(count) * bytes / machine_.disk_bandwidth;
      phase.disk += seconds;
      rank_of(phase, placement_.members_of(static_cast<int>(device)).front()).compute += seconds;
    }
  }

  double seconds_of_runs(const std::vector<AlikeRuns>& runs) const {
    const models::PlannedGraph& largest = plan_.prompts.empty() ? plan_.step : plan_.prompts.front();
    const auto alike = [&](const auto& run) { return run.stages.size() == runs.front().stages.size(); };
    if (largest.schedule.ordered || !std::all_of(runs.begin(), runs.end(), alike)) {
      double seconds = 0;
      for (const auto& run : runs) {
        for (const StageWork& stage : run.stages) seconds += as_double(run.count) * stage.seconds;
      }
      return seconds;
    }
    std::vector<CoreDemand> demand;
    for (const std::vector<int>& members : devices_) {
      demand.emplace_back(machine_.domains.size());
      for (const int member : members) {
        const machine::DeviceModel& device = machine_.devices[static_cast<size_t>(member)];
        demand.back()[static_cast<size_t>(device.domain)] += device.cores;
      }
    }
    std::vector<double> cores;
    for (const machine::Domain& domain : machine_.domains) cores.push_back(domain.cores);
    const int wanted = scheduler_options(placement_, session_).copies;
    return pipeline_seconds(runs, sched::copies_for(largest.schedule, wanted), demand, cores);
  }

  /// Computes the waiting times, the imbalance and the total seconds. Must be called after all stages have been added.
  static void finish(PhasePrediction& phase) {
    phase.seconds += phase.disk;
    double waiting = 0;
    for (RankTime& rank : phase.ranks) {
      rank.waiting = std::max(0.0, phase.seconds - rank.compute - rank.communication);
      waiting += rank.waiting / static_cast<double>(phase.ranks.size());
    }
    phase.imbalance = phase.seconds > 0 ? waiting / phase.seconds : 0;
    phase.seconds += phase.host;
  }

  const models::Model& model_;
  const models::Placement& placement_;
  const machine::MachineModel& machine_;
  const models::SessionOptions& session_;
  const Poll& poll_;
  const models::ModelPlan& plan_;
  std::vector<std::vector<int>> devices_;  ///< device indices in the machine model, for each device of the placement
  std::vector<bool> reads_disk_;           ///< whether weights are read from the disk, for each device of the placement
  mutable std::vector<std::pair<models::BatchShape, std::unique_ptr<models::PlannedGraph>>> more_;
};

}  // namespace

Workload clipped(Workload workload, int64_t context) {
  context /= std::max<int64_t>(workload.sequences, 1);
  workload.depth = std::clamp<int64_t>(workload.depth, 0, std::max<int64_t>(context - 1, 0));
  workload.prompt = std::min(workload.prompt, context - workload.depth);
  workload.generate = std::min(workload.generate, context - workload.depth);
  return workload;
}

std::pair<std::optional<PhasePrediction>, std::optional<PhasePrediction>> predict(
    const models::Model& model, const models::Placement& placement, const models::ModelPlan& plan,
    const machine::MachineModel& machine, const models::SessionOptions& session, const Workload& work,
    const Poll& poll) {
  const Predictor predictor(model, placement, plan, machine, session, poll);
  std::optional<PhasePrediction> prompt, generation;
  if (work.prompt > 0) prompt = predictor.prompt(work.depth, work.prompt, work.sequences);
  if (work.generate > 0) generation = predictor.generation(work.depth, work.generate, work.sequences);
  return {std::move(prompt), std::move(generation)};
}

double PhasePrediction::communication() const {
  double seconds = 0;
  for (const CollectiveTime& one : collectives) seconds += as_double(one.count) * one.seconds;
  return seconds;
}

int64_t PhasePrediction::collective_count() const {
  int64_t count = 0;
  for (const CollectiveTime& one : collectives) count += one.count;
  return count;
}

std::string_view name_of(Objective objective) {
  return kObjectives[static_cast<size_t>(objective)].name;
}

Objective parse_objective(std::string_view text) {
  for (const ObjectiveName& known : kObjectives) {
    if (known.name == text) return known.objective;
  }
  fail<InvalidArgument>("there is no objective '{}'; use generation, prompt or mix", text);
}

int64_t rows_seen(const Workload& workload) {
  return std::max<int64_t>(1, workload.depth + (workload.generate > 0 ? workload.generate : workload.prompt) / 2);
}

Workload work_of(Workload work, Objective objective) {
  if (objective == Objective::kGeneration && work.generate > 0) work.prompt = 0;
  if (objective == Objective::kPrompt && work.prompt > 0) work.generate = 0;
  return work;
}

void require_work(const Workload& workload, Objective objective) {
  const bool prompt = objective != Objective::kGeneration, generate = objective != Objective::kPrompt;
  require<InvalidArgument>((!prompt || workload.prompt > 0) && (!generate || workload.generate > 0),
                           "the objective {} needs {}{}{}", name_of(objective), prompt ? "a prompt" : "",
                           prompt && generate ? " and " : "", generate ? "tokens to generate" : "");
}

}  // namespace shoal::tuning
