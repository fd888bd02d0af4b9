#include "models/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "devices/params.h"
#include "graph/error.h"

namespace shoal::models {
namespace {

constexpr int64_t kContextStep = 32;
/// Shares of whole units are a little uneven.
constexpr double kUneven = 1.05;

/// Types of files and the bits that they take per weight, roughly: it depends on the model.
struct FileBits {
  const char* name;
  double bits;
};
constexpr std::array kFileBits = std::to_array<FileBits>({
    {"F16", 16.0},
    {"Q8_0", 8.5},
    {"Q6_K", 6.6},
    {"Q5_K_M", 5.7},
    {"Q5_K_S", 5.6},
    {"Q4_K_M", 4.9},
    {"Q4_K_S", 4.7},
    {"Q4_0", 4.7},
    {"Q3_K_M", 4.0},
    {"Q3_K_S", 3.7},
    {"Q2_K", 3.2},
});

/// What the tightest device has beyond what is to stay free, negative where it does not fit.
double tightest(std::span<const DeviceUse> uses, const FitOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  for (const DeviceUse& use : uses) {
    least = std::min(least, static_cast<double>(margin_bytes(use)) - static_cast<double>(margin_of(use, options)));
  }
  return least;
}

/// Room that a session of some context leaves, in the better of the ways to load.
class RoomByContext {
 public:
  RoomByContext(const Model& model, const Placement& placement, const SessionOptions& session, const LoadOptions& load,
                const FitOptions& options)
      : model_(model), placement_(placement), session_(session), load_(load), options_(options) {}

  double operator()(int64_t context) const {
    const double room = with(context, load_);
    if (room >= 0 || !load_.repack) return room;
    LoadOptions as_they_are = load_;
    as_they_are.repack = false;
    return std::max(room, with(context, as_they_are));
  }

 private:
  double with(int64_t context, const LoadOptions& load) const {
    SessionOptions session = session_;
    session.context = context;
    return tightest(ModelPlan(model_, placement_, session, load).memory, options_);
  }

  const Model& model_;
  const Placement& placement_;
  const SessionOptions& session_;
  const LoadOptions& load_;
  const FitOptions& options_;
};

/// Between a context that fits and one that does not, with the room that each leaves: where it ends is guessed by a
/// straight line, and every other time it is the middle that is tried, so that a bend costs little.
int64_t search_context(const RoomByContext& room, int64_t least, double least_room, int64_t most, double most_room) {
  for (bool guess = true; most - least > kContextStep; guess = !guess) {
    const double part = guess ? least_room / (least_room - most_room) : 0.5;
    auto next = least + static_cast<int64_t>(part * static_cast<double>(most - least));
    next = std::clamp(next / kContextStep * kContextStep, least + 1, most - 1);
    if (next % kContextStep != 0) next = (least / kContextStep + 1) * kContextStep;
    if (next >= most) break;
    const double left = room(next);
    if (left >= 0) {
      least = next, least_room = left;
    } else {
      most = next, most_room = left;
    }
  }
  return least;
}

std::string problem_of(std::span<const DeviceUse> uses) {
  std::string text;
  for (const DeviceUse& use : uses) {
    if (margin_bytes(use) >= 0) continue;
    text += fmt::format("{}{} needs {} and has {} free", text.empty() ? "" : ", ", use.device,
                        format_bytes(use.use.total()), format_bytes(use.memory.free));
  }
  return text;
}

double bits_per_weight(const Model& model) {
  double elements = 0;
  for (const Tensor* weight : model.weights.tensors()) elements += static_cast<double>(weight->elements());
  return elements > 0 ? static_cast<double>(model.file.tensor_bytes()) * 8 / elements : 0;
}

/// Part of its weights that every device has room for; 0: not even without weights.
double weights_that_fit(std::span<const DeviceUse> uses) {
  double part = std::numeric_limits<double>::infinity();
  for (const DeviceUse& use : uses) {
    const double room = static_cast<double>(margin_bytes(use)) + static_cast<double>(use.use.weights);
    if (use.use.weights > 0 || room < 0) part = std::min(part, room / static_cast<double>(use.use.weights + 1));
  }
  return std::max(part, 0.0);
}

/// Bytes of weights and caches that devices divide among them.
double divided_bytes(const Model& model, const SessionOptions& session) {
  KvCache cache;
  declare_cache(cache, model.hparams, {session_size(model.hparams, session).context, session.dtype_k, session.dtype_v});
  double bytes = 0;
  for (const Tensor* tensor : cache.context.tensors()) bytes += static_cast<double>(tensor->bytes());
  for (const ModelTensor& tensor : model.split_tensors()) {
    if (tensor.spec->cut.group == CutGroup::kNone) continue;
    bytes += static_cast<double>(model.weights.find(tensor.spec->name)->bytes());
  }
  return bytes;
}

void find_contexts(Remedies& out, const Scenario& scenario, const Placement& placement, int64_t asked) {
  const FitOptions any{.least_context = std::min<int64_t>(asked, kContextStep)};
  const auto largest = [&](const SessionOptions& session) {
    return largest_context(scenario.model, placement, session, scenario.load, any);
  };
  out.context = largest(scenario.session);
  SessionOptions smaller = scenario.session;
  smaller.dtype_k = smaller.dtype_v = DType::kQ8_0;
  if (scenario.model.hparams.head_dim_k % 32 != 0 || scenario.model.hparams.head_dim_v % 32 != 0) return;
  const std::optional<int64_t> context = largest(smaller);
  if (context && context > out.context) out.context_q8_0 = context;
}

void find_quantisations(Remedies& out, const Scenario& scenario, const Prediction& asked) {
  out.bits = bits_per_weight(scenario.model);
  const double part = weights_that_fit(asked.memory);
  if (part <= 0 || part >= 1) return;
  const double bits = out.bits * part;
  for (const FileBits& type : kFileBits) {
    if (type.bits <= bits && type.bits < out.bits) out.quantisations.emplace_back(type.name);
  }
  if (!out.quantisations.empty()) out.bits_that_fit = bits;
}

// Each device has something of its own (what is mirrored, and memory to compute in), and room beside it for its part
// of what is divided.
void find_devices(Remedies& out, const Scenario& scenario, const Prediction& asked) {
  const double divided = divided_bytes(scenario.model, scenario.session);
  double all = 0;
  for (const DeviceUse& use : asked.memory) all += static_cast<double>(use.use.total());
  const double own = std::max(0.0, all - divided) / static_cast<double>(asked.memory.size());
  double room = 0, most = 0;
  for (const DeviceUse& use : asked.memory) {
    const double one = static_cast<double>(use.memory.free) - own;
    room += std::max(0.0, one);
    if (one > most) most = one, out.device = use.device;
  }
  if (most <= 0) return;
  const double more = std::ceil((divided * kUneven - room) / most);
  constexpr double kMost = 64;
  if (more <= kMost) out.more_devices = std::max(1, static_cast<int>(more));
}

}  // namespace

bool fits(std::span<const DeviceUse> uses, size_t margin) {
  return tightest(uses, {.margin = margin}) >= 0;
}

size_t margin_of(const DeviceUse& use, const FitOptions& options) {
  if (!options.spare_host || !use.on_host) return options.margin;
  constexpr size_t kLeast = size_t{64} << 20;
  const size_t total = use.memory.total;
  return std::max({options.margin, total / 50, std::min(kLeast, total / 16)});
}

std::optional<int64_t> largest_context(const Model& model, const Placement& placement, const SessionOptions& session,
                                       const LoadOptions& load, const FitOptions& options) {
  const int64_t wanted = session_size(model.hparams, session).context;
  const int64_t least = std::clamp<int64_t>(options.least_context, 1, wanted);
  const RoomByContext room(model, placement, session, load, options);
  const double at_wanted = room(wanted);
  if (at_wanted >= 0) return wanted;
  if (least == wanted) return std::nullopt;
  const double at_least = room(least);
  if (at_least < 0) return std::nullopt;
  return search_context(room, least, at_least, wanted, at_wanted);
}

Remedies remedies(const Scenario& scenario, const Prediction& asked) {
  const Placement placement(scenario.model, asked.candidate.groups, placement_of(asked.candidate, scenario.placement));
  Remedies out;
  out.problem = problem_of(asked.memory);
  find_contexts(out, scenario, placement, asked.context);
  find_quantisations(out, scenario, asked);
  find_devices(out, scenario, asked);
  return out;
}

std::string to_string(const Remedies& remedies) {
  std::vector<std::string> parts;
  if (remedies.context) parts.push_back(fmt::format("a context of {0} (-c {0})", *remedies.context));
  if (remedies.context_q8_0) {
    parts.push_back(
        fmt::format("a context of {0} with a q8_0 cache (-c {0} -ctk q8_0 -ctv q8_0)", *remedies.context_q8_0));
  }
  if (remedies.bits_that_fit) {
    parts.push_back(fmt::format("weights of at most {:.1f} bits instead of {:.1f} ({})", *remedies.bits_that_fit,
                                remedies.bits, fmt::join(remedies.quantisations, ", ")));
  }
  if (remedies.more_devices) {
    parts.push_back(fmt::format("{} more device{} like {}", *remedies.more_devices,
                                *remedies.more_devices == 1 ? "" : "s", remedies.device));
  }
  if (parts.empty()) return remedies.problem + "; use a smaller model";
  return fmt::format("{}; what would fit: {}", remedies.problem, fmt::join(parts, "; or "));
}

}  // namespace shoal::models
