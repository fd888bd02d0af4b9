// Helpers for tests that query the chooser about described machines.
#pragma once

#include <memory>
#include <optional>

#include "tuning/choose/dimensions.h"

namespace shoal::tuning {

/// Creates a request for predictions of `work` on this machine. The machine must outlive the request.
inline Asked asked_of(const machine::MachineModel& machine, const models::SessionOptions& session,
                      const models::LoadOptions& load, const Workload& work,
                      Objective objective = Objective::kGeneration) {
  Asked asked;
  asked.placement.threads = 1;
  asked.way_rows = rows_seen(work);
  asked.placement.machine = {std::shared_ptr<const void>(), &machine};
  asked.session = session;
  asked.load = load;
  asked.work = work;
  asked.objective = objective;
  return asked;
}

inline Verdict judged(const models::Model& model, const Asked& asked, const Choice& choice) {
  return Chooser(model, asked).judge(choice);
}

/// Total seconds of one rank in a phase: compute, communication, waiting and host time.
inline double rank_seconds(const PhasePrediction& phase, size_t rank) {
  const RankTime& time = phase.ranks.at(rank);
  return time.compute + time.communication + time.waiting + phase.host;
}

/// Returns the largest context that fits, or nullopt if a context of `least` tokens does not fit.
inline std::optional<int64_t> largest_context(const models::Model& model, const Choice& choice,
                                              const models::SessionOptions& session, const models::LoadOptions& load,
                                              int64_t least, const Margin& margin = {}) {
  Asked asked;
  asked.placement.threads = 1;
  asked.session = session;
  asked.load = load;
  Chooser chooser(model, asked);
  const auto plan = largest_plan(chooser, choice, margin, least, 1);
  return plan ? std::optional(plan->size.context) : std::nullopt;
}

}  // namespace shoal::tuning
