// Finds the largest context that fits.
#include <algorithm>
#include <utility>

#include "tuning/choose/dimensions.h"

namespace shoal::tuning {

std::optional<models::ModelPlan> largest_plan(Chooser& chooser, const Choice& choice, Margin margin, int64_t least,
                                              size_t most_prompts) {
  std::optional<models::ModelPlan> best;
  bool maps = false;  // whether a tried plan maps weights
  const auto room = [&](int64_t context) {
    Choice one = choice;
    one.context = context;
    int64_t spare = 0;
    models::ModelPlan plan = chooser.plan(one, margin, most_prompts, &spare);
    maps |= std::any_of(plan.memory.begin(), plan.memory.end(), [](const auto& use) { return use.mapped > 0; });
    if (spare >= 0 && (!best || best->size.context < context)) best.emplace(std::move(plan));
    return static_cast<double>(spare);
  };
  const int64_t wanted = chooser.context_of(choice);
  least = std::clamp<int64_t>(least, 1, wanted);
  int64_t fits = least, most = wanted;
  const double at_most = room(most);
  const double at_least = at_most < 0 && least < most ? room(least) : -1;
  if (at_most < 0 && at_least >= 0) {
    // Linear interpolation gives a context close to the limit. The search continues from this context in growing steps.
    auto next = fits + static_cast<int64_t>(at_least / (at_least - at_most) * static_cast<double>(most - fits));
    for (int64_t reach = kContextStep; most - fits > kContextStep; reach = std::min(4 * reach, most)) {
      if (next <= fits || next >= most) next = fits + (most - fits) / 2;
      next = next / kContextStep * kContextStep;
      if (next <= fits) next = (fits / kContextStep + 1) * kContextStep;
      if (next >= most) break;
      const bool has_room = room(next) >= 0;
      (has_room ? fits : most) = next;
      next += has_room ? reach : -reach;
    }
  }
  if (best || margin.from_disk || !maps) return best;
  margin.from_disk = true;
  return largest_plan(chooser, choice, margin, least, most_prompts);
}

}  // namespace shoal::tuning
