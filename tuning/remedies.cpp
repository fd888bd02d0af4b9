// What would help where a model does not fit.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tuning/fit.h"
#include "tuning/memory_shares.h"

namespace shoal::tuning {
namespace {

/// Shares of whole units are a little uneven.
constexpr double kUneven = 1.05;
/// Types of files and the bits that they take per weight, roughly, more rather than less: it depends on the model.
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

double bits_per_weight(const models::Model& model) {
  double elements = 0;
  for (const Tensor* weight : model.weights.tensors()) elements += static_cast<double>(weight->elements());
  return elements > 0 ? static_cast<double>(model.weight_bytes()) * 8 / elements : 0;
}

/// Part of its weights that every device has room for; 0: not even without weights.
double weights_that_fit(std::span<const models::DeviceUse> uses) {
  double part = std::numeric_limits<double>::infinity();
  for (const models::DeviceUse& use : uses) {
    const size_t weights = use.use.weights + use.mapped;
    const double room = static_cast<double>(margin_bytes(use)) + static_cast<double>(weights);
    if (weights > 0 || room < 0) part = std::min(part, room / static_cast<double>(weights + 1));
  }
  return std::max(part, 0.0);
}

/// Looks for remedies over several ways.
class Remedying {
 public:
  Remedying(const Scenario& scenario, const Prediction& asked, const models::DeviceGroups& groups,
            std::span<const Candidate> ways)
      : scenario_(scenario), asked_(asked), groups_(groups), ways_(ways) {}

  Remedies run() {
    Remedies out;
    for (const models::DeviceUse& use : asked_.memory) {
      if (margin_bytes(use) < 0) out.lacking.push_back(use);
    }
    out.context = largest(scenario_.session);
    models::SessionOptions smaller = scenario_.session;
    smaller.dtype_k = smaller.dtype_v = DType::kQ8_0;
    out.context_q8_0 = largest(smaller);
    if (out.context_q8_0) out.context_q8_0->q8_0_cache = true;
    if (out.context && out.context_q8_0 && out.context_q8_0->context <= out.context->context) out.context_q8_0.reset();
    find_quantisations(out);
    find_devices(out);
    return out;
  }

 private:
  /// With what a session is otherwise.
  std::optional<ContextThatFits> largest(const models::SessionOptions& session) const {
    std::optional<MemoryShares> best_way;
    MemoryShares::Fit best;
    for (const Candidate& candidate : ways_) {
      if (best.context >= asked_.context) break;
      try {
        const MemoryShares way(scenario_, candidate, session);
        const auto fit = way.largest(asked_.context, best.context);
        if (!fit || fit->context <= best.context) continue;
        best = *fit;
        best_way.emplace(way);
      } catch (const InvalidArgument&) {
        continue;  // what the options of the placement rule out
      }
    }
    if (!best_way) return std::nullopt;
    ContextThatFits out{best.context, best_way->with(best.shares), {}};
    out.change = change_to(out.candidate);
    out.repacks = !best_way->needs_no_repack(best);
    return out;
  }

  SplitChange change_to(const Candidate& candidate) const {
    SplitChange change;
    const bool by_layer = candidate.mode == models::SplitMode::kLayer;
    if (by_layer ? candidate.groups != groups_ : flat(candidate.groups) != flat(groups_)) {
      change.devices = candidate.devices();
    }
    const size_t sharers = by_layer ? candidate.groups.size() : candidate.device_count();
    if (!candidate.shares.empty()) {
      change.ratio = candidate.ratio();
    } else if (!scenario_.placement.ratio.empty()) {
      change.ratio = ratio_text(std::vector<double>(sharers, 1.0));
    }
    if (candidate.device_count() > 1 && candidate.mode != scenario_.placement.mode) change.mode = candidate.mode;
    return change;
  }

  static std::vector<Device*> flat(const models::DeviceGroups& groups) {
    std::vector<Device*> all;
    for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
    return all;
  }

  /// Ways with as many devices as there are.
  std::vector<Candidate> widest() const {
    std::vector<Candidate> out;
    for (const Candidate& way : ways_) {
      if (out.empty() || way.device_count() == out.front().device_count()) out.push_back(way);
    }
    return out;
  }

  void find_quantisations(Remedies& out) const {
    out.bits = bits_per_weight(scenario_.model);
    double best = 0;
    std::optional<MemoryShares> best_way;
    std::vector<double> best_shares;
    for (const Candidate& candidate : widest()) {
      try {
        const MemoryShares way(scenario_, candidate, scenario_.session);
        const std::vector<double> balanced = way.balanced(asked_.context);
        for (const auto& shares : {std::vector<double>(), balanced}) {
          const double part = weights_that_fit(way.memory(asked_.context, shares));
          if (part <= best) continue;
          best = part;
          best_way.emplace(way);
          best_shares = shares;
        }
      } catch (const InvalidArgument&) {
        continue;
      }
    }
    if (best <= 0 || best >= 1) return;
    const double bits = out.bits * best;
    // What the file is itself, and types that are as large, are no help.
    const auto* own = std::min_element(kFileBits.begin(), kFileBits.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.bits - out.bits) < std::abs(b.bits - out.bits);
    });
    for (const FileBits& type : kFileBits) {
      if (type.bits <= bits && type.bits < own->bits && type.bits < out.bits) out.quantisations.emplace_back(type.name);
    }
    if (out.quantisations.empty()) return;
    out.bits_that_fit = bits;
    out.bits_change = change_to(best_way->with(best_shares));
  }

  void find_devices(Remedies& out) const {
    for (const Candidate& candidate : widest()) {
      try {
        find_devices(out, candidate);
      } catch (const InvalidArgument&) {
        continue;
      }
    }
  }

  // Each device has something of its own (what is mirrored, and memory to compute in), and room beside it for its part
  // of what is divided: of whole layers, or of anything.
  void find_devices(Remedies& out, const Candidate& candidate) const {
    const MemoryShares way(scenario_, candidate, scenario_.session);
    const std::vector<models::DeviceUse> uses = way.memory(asked_.context, {});
    const models::SplitMode mode = candidate.device_count() > 1 ? candidate.mode : scenario_.placement.mode;
    const auto is_asked = [&](const models::DeviceUse& use) {
      return std::any_of(candidate.groups.begin(), candidate.groups.end(), [&](const auto& group) {
        return std::any_of(group.begin(), group.end(), [&](const Device* one) { return one->name() == use.device; });
      });
    };
    if (!std::all_of(uses.begin(), uses.end(), is_asked)) return;  // what the host has is not divided
    const Divided divided = divided_bytes(mode);
    double all = 0;
    for (const models::DeviceUse& use : uses) all += static_cast<double>(use.needed());
    const double own = std::max(0.0, all - divided.bytes) / static_cast<double>(uses.size());
    const auto whole = [&](double bytes) {
      return divided.unit > 0 ? std::floor(bytes / divided.unit) * divided.unit : bytes;
    };
    double room = 0, most = 0;
    std::string device;
    for (const models::DeviceUse& use : uses) {
      const double one = whole(static_cast<double>(use.memory.free) - own);
      room += std::max(0.0, one);
      if (one > most) most = one, device = use.device;
    }
    if (most <= 0) return;
    const double more = std::max(1.0, std::ceil((divided.bytes * kUneven - room) / most));
    constexpr double kMost = 64;
    if (more > kMost || (out.more_devices && more >= *out.more_devices)) return;
    out.more_devices = static_cast<int>(more);
    out.device = device;
    const bool alike = std::all_of(uses.begin(), uses.end(), [&](const models::DeviceUse& use) {
      return use.memory.free == uses.front().memory.free;
    });
    out.even_shares = alike && divided.unit == 0 && scenario_.placement.ratio.empty();
    out.devices_mode = mode != scenario_.placement.mode ? std::optional(mode) : std::nullopt;
  }

  /// Bytes of weights and caches that devices divide among them, and of how much that is whole; 0: of nothing.
  struct Divided {
    double bytes = 0, unit = 0;
  };
  Divided divided_bytes(models::SplitMode mode) const {
    const models::Model& model = scenario_.model;
    const models::SessionOptions& session = scenario_.session;
    models::KvCache cache;
    declare_cache(cache, model.hparams, cache_options(session_size(model.hparams, session), session, 1));
    const bool by_layer = mode == models::SplitMode::kLayer;
    Divided out;
    for (const Tensor* tensor : cache.context.tensors()) out.bytes += static_cast<double>(tensor->bytes());
    for (const models::ModelTensor& tensor : model.split_tensors()) {
      if (by_layer ? tensor.spec->layer < 0 : tensor.spec->cut.group == models::CutGroup::kNone) continue;
      out.bytes += static_cast<double>(model.weights.find(tensor.spec->name)->bytes());
    }
    if (by_layer) out.unit = out.bytes / static_cast<double>(std::max<int64_t>(model.hparams.layers, 1));
    return out;
  }

  const Scenario& scenario_;
  const Prediction& asked_;
  const models::DeviceGroups& groups_;
  std::span<const Candidate> ways_;
};

}  // namespace

Remedies remedies(const Scenario& scenario, const Prediction& asked, const models::DeviceGroups& groups,
                  std::span<const Candidate> ways) {
  return Remedying(scenario, asked, groups, ways).run();
}

Remedies remedies(const Scenario& scenario, const Prediction& asked) {
  const Candidate& candidate = asked.candidate;
  std::vector<Candidate> ways{{candidate.groups, candidate.mode, {}}};
  if (candidate.device_count() > 1) {
    Candidate other{candidate.groups, models::SplitMode::kTensor, {}};
    if (candidate.mode == models::SplitMode::kTensor) {
      other = {{}, models::SplitMode::kLayer, {}};
      for (const auto& group : candidate.groups) {
        for (Device* device : group) other.groups.push_back({device});
      }
    }
    ways.push_back(other);
  }
  return remedies(scenario, asked, candidate.groups, ways);
}

}  // namespace shoal::tuning
