#include "tools/report/simulated_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/session/model_plan.h"
#include "tuning/run_cost.h"

namespace shoal::tools {
namespace {

constexpr int64_t kTokens = 3;

int64_t as_ns(double seconds) {
  return std::llround(seconds * 1e9);
}

/// Runs one after the other, on a clock that begins at 0.
class Timeline {
 public:
  Timeline(const models::Placement& placement, const machine::MachineModel& machine)
      : placement_(placement), machine_(machine) {}

  void run(const models::PlannedGraph& planned, double rows, const std::string& name) {
    add("host", TraceKind::kHost, name, tuning::host_seconds(machine_, placement_), 0);
    for (size_t s = 0; s < planned.schedule.splits.size(); ++s) {
      const sched::Split& split = planned.schedule.splits[s];
      const auto members = placement_.members_of(split.backend);
      for (size_t number = 0; number < split.copies.size(); ++number) {
        const sched::Copy& copy = split.copies[number];
        const double seconds = tuning::copy_seconds(machine_, placement_, split, number);
        if (seconds == 0) continue;
        add(members.front()->name(), TraceKind::kCopy, "copy " + copy.tensor->name, seconds, copy.bytes);
      }
      std::vector<int> devices;
      for (const Device* member : members) devices.push_back(machine_.index(member->name()));
      const int segment = planned.local.splits[s].segment;
      const tuning::Estimate estimate =
          tuning::estimate(planned.on(split.backend), segment, segment + 1, machine_, devices,
                           {.kv_rows = rows, .events = true, .begins_run = false});
      for (TraceEvent event : estimate.events) {
        event.begin_ns += now_;
        event.end_ns += now_;
        events_.push_back(std::move(event));
      }
      now_ += as_ns(estimate.seconds);
    }
    const double output = tuning::output_seconds(machine_, placement_, planned);
    if (output > 0) add("host", TraceKind::kCopy, "copy the results", output, 0);
  }

  std::vector<TraceEvent> take() { return std::move(events_); }

 private:
  void add(const std::string& row, TraceKind kind, const std::string& name, double seconds, int64_t bytes) {
    const int64_t end = now_ + as_ns(seconds);
    events_.push_back({row, kind, name, now_, end, bytes});
    now_ = end;
  }

  const models::Placement& placement_;
  const machine::MachineModel& machine_;
  std::vector<TraceEvent> events_;
  int64_t now_ = 0;
};

}  // namespace

std::vector<TraceEvent> simulated_trace(tuning::Chooser& chooser, const tuning::Choice& choice) {
  const models::Placement& placement = chooser.place(choice);
  const models::SessionOptions session = chooser.session_of(choice);
  const models::ModelPlan plan(chooser.model(), placement, session, chooser.asked().load);
  Timeline timeline(placement, chooser.machine());
  const tuning::Workload& work = chooser.asked().work;
  if (work.prompt > 0) {
    const models::Batch batch = models::divide_into_batches(work.prompt, 1, plan.size.batch).front();
    const models::PlannedGraph planned = models::plan_graph(chooser.model(), placement, session, plan, batch.shape);
    timeline.run(planned, static_cast<double>(work.depth) + (static_cast<double>(batch.tokens) + 1) / 2,
                 fmt::format("prompt, {} tokens", batch.tokens));
  }
  for (int64_t token = 0; token < std::min(work.generate, kTokens); ++token) {
    timeline.run(plan.step, static_cast<double>(work.depth + token + 1), fmt::format("token {}", token));
  }
  return timeline.take();
}

}  // namespace shoal::tools
