// Explains why the best choice in a table is better than other choices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tuning/choose/compare.h"

namespace shoal::tuning {
namespace {

/// Counts of the collectives as text, such as "12 all_reduce and 1 all_gather".
std::string counts_text(const PhasePrediction& phase) {
  std::vector<std::pair<Collective, int64_t>> counts;
  for (const tuning::CollectiveTime& one : phase.collectives) {
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == one.kind; });
    known == counts.end() ? void(counts.emplace_back(one.kind, one.count)) : void(known->second += one.count);
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : counts) parts.push_back(fmt::format("{} {}", count, name_of(kind)));
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// The time that a choice spends on communication, copies and waiting, as text.
std::string costs_text(const Verdict& verdict, Objective objective) {
  const bool prompt = objective == Objective::kPrompt || !verdict.generation;
  const std::optional<PhasePrediction>& phase = prompt ? verdict.prompt : verdict.generation;
  if (!phase) return {};
  const double runs = prompt ? 1 : static_cast<double>(verdict.work.generate);
  const double all = phase->seconds / runs;
  const char* what = prompt ? "prompt" : "token";
  std::vector<std::string> parts;
  if (phase->collective_count() > 0) {
    parts.push_back(fmt::format("{} per {} take {:.3g} of {:.3g} ms", counts_text(*phase), what,
                                phase->communication() * 1e3, all * 1e3));
  }
  if (phase->copies > 0.01 * all) {
    parts.push_back(
        fmt::format("copies between devices take {:.3g} of {:.3g} ms per {}", phase->copies * 1e3, all * 1e3, what));
  }
  if (phase->imbalance > 0.1) {
    parts.push_back(fmt::format("a device waits for other devices {:.0f} % of the time", phase->imbalance * 100));
  }
  return fmt::format("{}", fmt::join(parts, ", and "));
}

std::string name_in_text(const Verdict& one) {
  return one.choice.device_count() == 1 ? one.choice.devices_text() + " alone" : one.choice.name();
}

/// "1.20x faster than CPU0,CPU1 tensor even" or "as fast as CPU1 alone". `why`: adds the time that `other` spends on
/// communication, copies and waiting.
std::string than_text(const Verdict& winner, const Verdict& other, Objective objective, bool why = true) {
  const double factor = seconds_of(other, objective) / seconds_of(winner, objective);
  const std::string text = factor < 1.005 ? fmt::format("as fast as {}", name_in_text(other))
                                          : fmt::format("{:.2f}x faster than {}", factor, name_in_text(other));
  const std::string costs = why ? costs_text(other, objective) : "";
  return costs.empty() ? text : text + ": " + costs;
}

std::string faster_text(const Verdict& winner, const Verdict& other, Objective objective, bool why) {
  return fmt::format("{} is predicted {}", name_in_text(winner), than_text(winner, other, objective, why));
}

}  // namespace

std::string reason_of(const std::vector<Verdict>& sorted, Objective objective) {
  const Verdict& best = sorted.front();
  if (!best.fits)
    return best.choice.name() + " is the fastest choice that runs, but weights are read from the disk for every token";
  size_t most = 0;
  for (const Verdict& one : sorted) most = std::max(most, one.choice.device_count());
  if (most == 1) {
    const bool has_rival = sorted.size() > 1 && sorted[1].fits;
    if (has_rival) return faster_text(best, sorted[1], objective, false);
    return best.choice.devices_text() +
           (sorted.size() == 1 ? " is the only device" : " is the only device on which the model fits");
  }
  const auto first_of = [&](size_t devices, std::optional<models::SplitMode> mode) -> const Verdict* {
    for (const Verdict& one : sorted) {
      if (!one.fits || one.choice.device_count() != devices) continue;
      if (!mode || one.choice.mode == *mode) return &one;
    }
    return nullptr;
  };
  if (best.choice.device_count() == most) {
    if (const Verdict* one = first_of(1, {})) return faster_text(best, *one, objective, false);
    return best.choice.name() + " is the fastest choice that fits; no single device has enough memory";
  }
  const Verdict* all = first_of(most, {});
  if (all == nullptr) return best.choice.name() + " is the fastest choice that fits";
  std::string text = faster_text(best, *all, objective, true);
  // A layer split is often about as fast as one device. The text therefore also compares the best choice with the
  // choice in which all devices act as one.
  const Verdict* as_one = first_of(most, models::SplitMode::kTensor);
  if (as_one != nullptr && as_one != all) text += "; " + than_text(best, *as_one, objective);
  return text;
}

}  // namespace shoal::tuning
