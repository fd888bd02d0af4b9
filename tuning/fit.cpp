#include "tuning/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shoal::tuning {
namespace {

models::ModelPlan as_they_are(const models::Model& model, const models::Placement& placement,
                              const models::SessionOptions& session, models::LoadOptions load, size_t most_prompts) {
  load.repack = false;
  return {model, placement, session, load, most_prompts};
}

/// spare_bytes() of the tightest device.
double tightest(std::span<const models::DeviceUse> uses, const FitOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  for (const models::DeviceUse& use : uses) least = std::min(least, static_cast<double>(spare_bytes(use, options)));
  return least;
}

/// Are weights allocated anywhere, which may be smaller as they are in the file?
bool has_allocated(std::span<const models::DeviceUse> uses) {
  return std::any_of(uses.begin(), uses.end(), [](const models::DeviceUse& use) { return use.use.weights > 0; });
}

/// Plans sessions of some contexts, and keeps the plan with the largest that fits.
class RoomByContext {
 public:
  RoomByContext(const models::Model& model, const models::Placement& placement, const models::SessionOptions& session,
                const models::LoadOptions& load, const FitOptions& options, size_t most_prompts)
      : model_(model),
        placement_(placement),
        session_(session),
        load_(load),
        options_(options),
        most_prompts_(most_prompts) {}

  /// Room that the context leaves, in the better of the ways to load.
  double operator()(int64_t context) {
    session_.context = context;
    models::ModelPlan first(model_, placement_, session_, load_, most_prompts_);
    double room = tightest(first.memory, options_);
    std::optional<models::ModelPlan> second;
    if (room < 0 && load_.repack && repack_weights(placement_.members()) && has_allocated(first.memory)) {
      second = as_they_are(model_, placement_, session_, load_, most_prompts_);
      room = std::max(room, tightest(second->memory, options_));
    }
    const models::ModelPlan& last = second ? *second : first;
    maps_ |= std::any_of(last.memory.begin(), last.memory.end(), [](const auto& use) { return use.mapped > 0; });
    const bool is_best = room >= 0 && (!best_ || best_->size.context < context);
    const auto fits = options_.from_disk ? models::has_room : models::fits;
    if (is_best) best_.emplace(std::move(second && !fits(first.memory) ? *second : first));
    return room;
  }
  bool maps() const { return maps_; }
  std::optional<models::ModelPlan> best() { return std::move(best_); }

 private:
  const models::Model& model_;
  const models::Placement& placement_;
  models::SessionOptions session_;
  const models::LoadOptions& load_;
  const FitOptions& options_;
  size_t most_prompts_;
  bool maps_ = false;  ///< some weights are mapped
  std::optional<models::ModelPlan> best_;
};

/// Between a context that fits and one that does not, with the room that each leaves: a straight line says where it
/// ends, all but a little; from there on in steps that grow.
void search_context(RoomByContext& room, int64_t least, double least_room, int64_t most, double most_room) {
  auto next = least + static_cast<int64_t>(least_room / (least_room - most_room) * static_cast<double>(most - least));
  for (int64_t reach = kContextStep; most - least > kContextStep; reach = std::min(4 * reach, most)) {
    if (next <= least || next >= most) next = least + (most - least) / 2;
    next = next / kContextStep * kContextStep;
    if (next <= least) next = (least / kContextStep + 1) * kContextStep;
    if (next >= most) break;
    if (room(next) >= 0) {
      least = next;
      next = least + reach;
    } else {
      most = next;
      next = most - reach;
    }
  }
}

}  // namespace

bool repack_weights(std::span<Device* const> devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [](const Device* device) { return device->type() == DeviceType::kCpu; });
}

bool fits(std::span<const models::DeviceUse> uses, size_t margin) {
  return tightest(uses, {.margin = margin}) >= 0;
}

size_t margin_of(const models::DeviceUse& use, const FitOptions& options) {
  if (!options.spare_host || !use.on_host) return options.margin;
  constexpr size_t kLeast = size_t{64} << 20;
  const size_t total = use.memory.total;
  return std::max({options.margin, total / 50, std::min(kLeast, total / 16)});
}

int64_t spare_bytes(const models::DeviceUse& use, const FitOptions& options) {
  const auto mapped = static_cast<int64_t>(options.from_disk ? use.mapped : 0);
  return margin_bytes(use) + mapped - static_cast<int64_t>(margin_of(use, options));
}

namespace {

std::optional<models::ModelPlan> largest(const models::Model& model, const models::Placement& placement,
                                         const models::SessionOptions& session, const models::LoadOptions& load,
                                         FitOptions options, size_t most_prompts) {
  const int64_t wanted = session_size(model.hparams, session).context;
  const int64_t least = std::clamp<int64_t>(options.least(), 1, wanted);
  RoomByContext room(model, placement, session, load, options, most_prompts);
  const double at_wanted = room(wanted);
  if (at_wanted < 0 && least < wanted) {
    const double at_least = room(least);
    if (at_least >= 0) search_context(room, least, at_least, wanted, at_wanted);
  }
  std::optional<models::ModelPlan> best = room.best();
  if (best || options.from_disk || !room.maps()) return best;
  options.from_disk = true;
  return largest(model, placement, session, load, options, most_prompts);
}

}  // namespace

std::optional<models::ModelPlan> largest_plan(const models::Model& model, const models::Placement& placement,
                                              const models::SessionOptions& session, const models::LoadOptions& load,
                                              const FitOptions& options) {
  return largest(model, placement, session, load, options, std::numeric_limits<size_t>::max());
}

std::optional<int64_t> largest_context(const models::Model& model, const models::Placement& placement,
                                       const models::SessionOptions& session, const models::LoadOptions& load,
                                       const FitOptions& options) {
  const std::optional<models::ModelPlan> found = largest(model, placement, session, load, options, 1);
  return found ? std::optional(found->size.context) : std::nullopt;
}

}  // namespace shoal::tuning
