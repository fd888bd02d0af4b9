// Finds changes that make a model fit.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/arch/kv_cache.h"
#include "tuning/choose/compare.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

/// Allowance for errors in an estimated context. A choice is planned only if its estimate times this factor exceeds the
/// best context so far.
constexpr double kEstimate = 1.03;
/// Factor for the size of the divided tensors. It allows for uneven shares, because each share consists of whole units
/// (such as heads).
constexpr double kUneven = 1.05;
/// File types and their approximate bits per weight. The exact numbers depend on the model; most models have slightly
/// fewer bits.
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

/// The largest fraction of the weights with which every device has enough memory. 0: at least one device is too small
/// even without weights.
double weights_that_fit(std::span<const models::DeviceUse> uses) {
  double part = std::numeric_limits<double>::infinity();
  for (const models::DeviceUse& use : uses) {
    const size_t weights = use.use.weights + use.mapped;
    const double room = static_cast<double>(spare_bytes(use)) + static_cast<double>(weights);
    if (weights > 0 || room < 0) part = std::min(part, room / static_cast<double>(weights + 1));
  }
  return std::max(part, 0.0);
}

/// Searches for remedies with several choices of devices and modes.
class RemedySearch {
 public:
  RemedySearch(Chooser& chooser, const Verdict& verdict, std::span<const Choice> ways)
      : chooser_(chooser),
        model_(chooser.model()),
        asked_(chooser.asked().fixed),
        context_(verdict.choice.context),
        ways_(ways.begin(), ways.end()) {
    for (Choice& way : ways_) way.context = context_, way.shares.clear();
    for (const Choice& way : ways_) {
      if (way.device_count() == ways_.front().device_count()) widest_.push_back(way);
    }
  }

  /// The choice with the largest context among all considered choices. Each choice is tried with even shares and with
  /// shares in proportion to free memory.
  std::optional<Choice> largest(std::optional<DType> cache = {}) const {
    std::optional<Choice> best;
    for (Choice way : ways_) {
      if (cache) way.cache_k = way.cache_v = cache;
      const int64_t before = best ? best->context : 0;
      if (before >= context_) break;
      try {
        const double possible = possible_context(chooser_.weigh(way).memory, way);
        if (possible < 1 || possible * kEstimate <= static_cast<double>(before)) continue;
        std::optional<Choice> own;
        for (const Choice& one : {way, with(by_free_memory(way), way)}) {
          const auto plan = largest_plan(chooser_, one, {}, std::min(context_, kContextStep), 1);
          if (!plan || (own && plan->size.context <= own->context)) continue;
          own = one;
          own->context = plan->size.context;
        }
        if (own && way.mode == models::SplitMode::kTensor) improve(*own);
        if (own && own->context > before) best = own;
      } catch (const InvalidArgument&) {
        continue;  // the placement options exclude this choice
      }
    }
    if (best) best->shares = simplest(*best);
    return best;
  }

  void find_quantisations(Remedies& out) const {
    out.bits = bits_per_weight(model_);
    double best = 0;
    for (const Choice& way : widest_) {
      try {
        for (const Choice& one : {way, with(by_free_memory(way), way)}) {
          const double part = weights_that_fit(chooser_.weigh(one).memory);
          if (part <= best) continue;
          best = part;
          out.bits_choice = one;
        }
      } catch (const InvalidArgument&) {
        continue;
      }
    }
    if (best <= 0 || best >= 1) return;
    const double bits = out.bits * best;
    // A file type helps only if it has fewer bits per weight than the present file.
    const auto* own = std::min_element(kFileBits.begin(), kFileBits.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.bits - out.bits) < std::abs(b.bits - out.bits);
    });
    for (const FileBits& type : kFileBits) {
      if (type.bits <= bits && type.bits < own->bits && type.bits < out.bits) out.quantisations.emplace_back(type.name);
    }
    if (out.quantisations.empty()) return;
    out.bits_that_fit = bits;
    out.bits_choice.shares = simplest(out.bits_choice);
  }

  void find_devices(Remedies& out) const {
    for (const Choice& way : widest_) {
      try {
        find_devices(out, way);
      } catch (const InvalidArgument&) {
        continue;
      }
    }
  }

 private:
  /// Tries a slightly larger context, and moves shares away from the devices that are too small for this context.
  /// Repeats this step while the context grows.
  void improve(Choice& best) const {
    constexpr int kSteps = 4, kChanges = 3;
    constexpr int64_t kWorthSeeking = 400;  // the smallest useful gain is the context divided by this number
    for (int step = 0; step < kSteps && best.context < context_ && best.device_count() > 1; ++step) {
      Choice one = best;
      one.context = std::min(context_, best.context + std::max(kContextStep, best.context / kWorthSeeking));
      for (int i = 0; i < kChanges; ++i) {
        const Verdict verdict = chooser_.weigh(one);
        if (verdict.fits) break;
        one.shares = clipped_by_memory(verdict);
      }
      one.context = context_;
      const auto plan = largest_plan(chooser_, one, {}, kContextStep, 1);
      if (!plan || plan->size.context <= best.context) break;
      best = one;
      best.context = plan->size.context;
    }
    // Rounds the shares to three digits if the rounding reduces the context by at most 1 / kWorthSeeking.
    Choice shorter = best;
    for (double& share : shorter.shares) share = std::round(share * 1000);
    shorter.context = context_;
    const auto plan = largest_plan(chooser_, shorter, {}, kContextStep, 1);
    if (!plan || plan->size.context < best.context - best.context / kWorthSeeking) return;
    best.shares = shorter.shares;
    best.context = plan->size.context;
  }

  static Choice with(std::vector<double> shares, Choice choice) {
    choice.shares = std::move(shares);
    return choice;
  }

  std::vector<double> by_free_memory(const Choice& way) const {
    return shares_by_free_memory(chooser_, way, [&](const Choice& one) { return chooser_.weigh(one).memory; });
  }

  /// The shares with the shortest text that give the same split as the choice. Empty if these shares are even.
  std::vector<double> simplest(const Choice& choice) const {
    std::vector<double> shares = simplest_shares(chooser_, choice);
    const bool are_equal = std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
    return are_equal ? std::vector<double>() : shares;
  }

  /// Estimates the context that fills the memory of all devices together. The needed memory grows linearly with the
  /// context.
  double possible_context(std::span<const models::DeviceUse> uses, const Choice& way) const {
    double room = 0, cache = 0;
    for (const models::DeviceUse& use : uses) cache += static_cast<double>(use.use.cache);
    for (const Device* device : way.devices()) {
      const auto use =
          std::find_if(uses.begin(), uses.end(), [&](const auto& one) { return one.device == device->name(); });
      room += use != uses.end() ? static_cast<double>(spare_bytes(*use)) : static_cast<double>(device->memory().free);
    }
    const auto asked = static_cast<double>(context_);
    return cache > 0 ? std::min(asked, asked + room * asked / cache) : asked;
  }

  // Estimates how many more devices are needed. Each device stores mirrored tensors and compute memory. The rest of the
  // device's memory is for divided tensors. In layer mode, a device stores only whole layers. In tensor mode, a device
  // can store any fraction of the divided tensors.
  void find_devices(Remedies& out, const Choice& way) const {
    const std::vector<models::DeviceUse> uses = chooser_.weigh(way).memory;
    const models::SplitMode mode = way.device_count() > 1 ? way.mode : asked_.mode;
    const std::vector<Device*> devices = way.devices();
    const auto is_asked = [&](const models::DeviceUse& use) {
      return std::any_of(devices.begin(), devices.end(), [&](const Device* one) { return one->name() == use.device; });
    };
    // Any other device in `uses` is the host. Devices cannot divide the part of the model on the host.
    if (!std::all_of(uses.begin(), uses.end(), is_asked)) return;
    const Divided divided = divided_bytes(mode);
    double all = 0;
    for (const models::DeviceUse& use : uses) all += static_cast<double>(use.needed());
    const double own = std::max(0.0, all - divided.bytes) / static_cast<double>(uses.size());
    double room = 0, most = 0;
    std::string device;
    for (const models::DeviceUse& use : uses) {
      double one = static_cast<double>(use.memory.free) - own;
      if (divided.unit > 0) one = std::floor(one / divided.unit) * divided.unit;
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
    out.even_shares = alike && divided.unit == 0 && asked_.shares.empty();
    out.devices_mode = mode;
  }

  /// `bytes`: total size of the weights and caches that the devices divide. `unit`: size of the smallest unit that a
  /// device can store; 0: any size is possible.
  struct Divided {
    double bytes = 0, unit = 0;
  };
  Divided divided_bytes(models::SplitMode mode) const {
    const models::SessionOptions& session = chooser_.asked().session;
    models::KvCache cache;
    declare_cache(cache, model_.hparams, cache_options(session_size(model_.hparams, session), session, 1));
    const bool by_layer = mode == models::SplitMode::kLayer;
    Divided out;
    for (const Tensor* tensor : cache.context.tensors()) out.bytes += static_cast<double>(tensor->bytes());
    for (const models::ModelTensor& tensor : model_.split_tensors()) {
      if (by_layer ? tensor.spec->layer < 0 : tensor.spec->cut.group == models::CutGroup::kNone) continue;
      out.bytes += static_cast<double>(model_.weights.find(tensor.spec->name)->bytes());
    }
    if (by_layer) out.unit = out.bytes / static_cast<double>(std::max<int64_t>(model_.hparams.layers, 1));
    return out;
  }

  Chooser& chooser_;
  const models::Model& model_;
  const Choice& asked_;
  const int64_t context_;
  std::vector<Choice> ways_;
  std::vector<Choice> widest_;  ///< considered choices with as many devices as the first choice
};

}  // namespace

Remedies remedies(Chooser& chooser, const Verdict& verdict, std::span<const Choice> ways) {
  const RemedySearch search(chooser, verdict, ways);
  Remedies out;
  out.asked = chooser.asked().fixed;
  for (const models::DeviceUse& use : verdict.memory) {
    if (spare_bytes(use) < 0) out.lacking.push_back(use);
  }
  out.context = search.largest();
  out.context_q8_0 = search.largest(DType::kQ8_0);
  if (out.context && out.context_q8_0 && out.context_q8_0->context <= out.context->context) out.context_q8_0.reset();
  search.find_quantisations(out);
  search.find_devices(out);
  return out;
}

Remedies remedies(Chooser& chooser, const Verdict& verdict) {
  std::vector<Choice> ways{verdict.choice};
  if (verdict.choice.device_count() > 1) {
    Choice other = verdict.choice;
    const bool by_layer = other.mode == models::SplitMode::kLayer;
    const Choice divided = by_layer ? acting_as_one(other.devices()) : layers_of(other.devices());
    other.groups = divided.groups, other.mode = divided.mode;
    ways.push_back(other);
  }
  return remedies(chooser, verdict, ways);
}

}  // namespace shoal::tuning
