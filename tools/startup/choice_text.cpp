#include "tools/startup/choice_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tools {
namespace {

using tuning::Asked;
using tuning::Choice;
using tuning::Chooser;
using tuning::Chosen;
using tuning::Margin;
using tuning::Remedies;
using tuning::Verdict;

std::string mode_option(models::SplitMode mode) {
  return mode == models::SplitMode::kLayer ? " -sm layer" : " -sm tensor";
}

/// Two numbers of bits per weight as text, with enough digits to differ, such as "4.7" and "4.8". `at_most` is never
/// rounded up.
std::pair<std::string, std::string> bits_texts(double at_most, double now) {
  std::pair<std::string, std::string> texts;
  double scale = 1;
  for (int digits = 1; digits <= 6; ++digits) {
    scale *= 10;
    texts = {fmt::format("{:.{}f}", std::floor(at_most * scale) / scale, digits), fmt::format("{:.{}f}", now, digits)};
    if (texts.first != texts.second) break;
  }
  return texts;
}

std::string in_brackets(const std::string& options) {
  return options.empty() ? "" : fmt::format(" ({})", options.substr(options.find_first_not_of(' ')));
}

/// Predicted speed: "22.1 tokens/s", or for a mix "prompt 310.5 and generation 22.1 tokens/s".
std::string speed_text(const Verdict& verdict) {
  if (verdict.prompt && verdict.generation) {
    return fmt::format("prompt {:.1f} and generation {:.1f} tokens/s", verdict.prompt->rate, verdict.generation->rate);
  }
  return fmt::format("{:.1f} tokens/s", verdict.prompt ? verdict.prompt->rate : verdict.generation->rate);
}

/// The part of the model on the host: "the experts of 49 of 58 layers", "41 of 61 layers", "the embedding", or several
/// of these joined by "and".
std::string host_part_text(const models::Model& model, const tuning::HostPart& part) {
  const int64_t layers = model.hparams.layers, with_experts = models::layers_with_experts(model);
  std::string text;
  if (part.expert_layers > 0) {
    text = fmt::format("the experts of {} of {} layers", std::min(part.expert_layers, with_experts), with_experts);
  }
  if (part.device_layers < 0) return text;
  return text + (text.empty() ? "" : " and ") +
         (part.device_layers >= layers ? "the embedding"
                                       : fmt::format("{} of {} layers", layers - part.device_layers, layers));
}

}  // namespace

std::string change_options(const Choice& from, const Choice& to) {
  const bool by_layer = to.mode == models::SplitMode::kLayer;
  std::string text;
  if (by_layer ? to.groups != from.groups : to.devices() != from.devices()) text += " -dev " + to.devices_text();
  if (!to.shares.empty() ? to.ratio() != from.ratio() : !from.shares.empty()) {
    text += " -ts " + (to.shares.empty() ? tuning::ratio_text(tuning::even_shares(to.sharers().size())) : to.ratio());
  }
  if (to.device_count() > 1 && to.mode != from.mode) text += mode_option(to.mode);
  return text;
}

std::string problem_text(std::span<const models::DeviceUse> uses) {
  std::string text;
  for (const models::DeviceUse& use : uses) {
    if (tuning::spare_bytes(use) >= 0) continue;
    text += fmt::format("{}{} needs {} and has {} free", text.empty() ? "" : ", ", use.device,
                        format_bytes(use.needed()), format_bytes(use.memory.free));
  }
  return text;
}

std::string context_options(const Remedies& remedies, const Choice& choice) {
  std::string text = fmt::format("-c {}", choice.context);
  const Choice& asked = remedies.asked;
  if (choice.cache_k && choice.cache_k != asked.cache_k) text += fmt::format(" -ctk {}", name_of(*choice.cache_k));
  if (choice.cache_v && choice.cache_v != asked.cache_v) text += fmt::format(" -ctv {}", name_of(*choice.cache_v));
  return text + change_options(asked, choice);
}

std::string remedies_text(const Remedies& remedies) {
  std::vector<std::string> parts;
  if (const auto& one = remedies.context) {
    parts.push_back(fmt::format("a context of {}{}", one->context, in_brackets(context_options(remedies, *one))));
  }
  if (const auto& one = remedies.context_q8_0) {
    parts.push_back(
        fmt::format("a context of {} with a q8_0 cache{}", one->context, in_brackets(context_options(remedies, *one))));
  }
  if (remedies.bits_that_fit) {
    const auto [at_most, now] = bits_texts(*remedies.bits_that_fit, remedies.bits);
    const std::string options = change_options(remedies.asked, remedies.bits_choice);
    parts.push_back(fmt::format("weights of at most {} bits instead of {} ({}){}", at_most, now,
                                fmt::join(remedies.quantisations, ", "), options.empty() ? "" : " with" + options));
  }
  if (remedies.more_devices) {
    const std::string mode = remedies.devices_mode != remedies.asked.mode ? mode_option(remedies.devices_mode) : "";
    parts.push_back(fmt::format("{} more device{} like {}{}", *remedies.more_devices,
                                *remedies.more_devices == 1 ? "" : "s", remedies.device,
                                in_brackets((remedies.even_shares ? "" : " -ts auto") + mode)));
  }
  if (parts.empty()) return problem_text(remedies.lacking) + "; use a smaller model";
  return fmt::format("{}; possible remedies: {}", problem_text(remedies.lacking), fmt::join(parts, "; or "));
}

std::string shares_text(Chooser& chooser, const Chosen& chosen) {
  const Verdict &best = *chosen.shares, &even = *chosen.even;
  const std::string shares = best.choice.shares.empty() ? "even" : best.choice.ratio();
  std::string text = fmt::format("tensor split {} for {}: ", shares, best.choice.devices_text());
  if (!best.fits) return text + "no shares fit: " + remedies_text(remedies(chooser, best));
  text += "predicted " + speed_text(best);
  if (!even.fits) return text + "; even shares do not fit";
  return best.split_key == even.split_key ? text : text + "; even shares: " + speed_text(even);
}

std::string host_text(const models::Model& model, const Asked& asked, const Chosen& chosen) {
  const auto flags_of = [&](const Verdict& verdict) {
    const Choice& choice = verdict.choice;
    const bool changes_shares = !choice.shares.empty() && choice.ratio() != asked.fixed.ratio();
    return choice.host.flags() + (changes_shares ? " -ts " + choice.ratio() : "");
  };
  const auto rate_of = [](const Verdict& verdict) {
    return verdict.generation ? verdict.generation->rate : verdict.prompt->rate;
  };
  std::string text;
  for (const Verdict& one : chosen.hosts) {
    if (text.empty()) {
      text = fmt::format("the host keeps {}, as with {}", host_part_text(model, one.choice.host), flags_of(one));
      if (one.has_time()) text += fmt::format(": predicted {:.3g} tokens/s", rate_of(one));
    } else if (one.has_time()) {
      text += fmt::format(", with {}: {:.3g} tokens/s", flags_of(one), rate_of(one));
    }
  }
  return text;
}

std::string context_text(const Asked& asked, const Chosen& chosen) {
  const std::string margin = format_bytes(asked.margin.bytes);
  return fmt::format("context {} instead of {}: {}", chosen.choice.context, chosen.wanted_context,
                     chosen.leaves_margin
                         ? fmt::format("the largest context that leaves {} free on each device (--fit-target)", margin)
                         : fmt::format("a larger context would leave less than {} free (--fit-target)", margin));
}

void require_room_for_prompt(Chooser& chooser, const Choice& choice) {
  const Asked& asked = chooser.asked();
  const Margin margin = asked.must_fit ? asked.margin : Margin{};
  const auto plan = largest_plan(chooser, choice, margin, 1, 1);
  const int64_t possible = plan ? plan->size.context : 0;
  if (possible < 2 || possible > asked.prompt) return;
  fail<OutOfMemory>(
      "the prompt has {} tokens, but the largest context that fits is {}{}; use a prompt of at most {} tokens, more "
      "devices, a quantised cache (-ctk q8_0 -ctv q8_0) or a smaller model",
      asked.prompt, possible,
      margin.bytes > 0 ? fmt::format(", with {} left free on each device (--fit-target)", format_bytes(margin.bytes))
                       : "",
      possible - 1);
}

void fail_to_fit(Chooser& chooser, const Choice& choice) {
  const Asked& asked = chooser.asked();
  require_room_for_prompt(chooser, choice);
  Margin margin = asked.margin;
  margin.from_disk = true;  // weights that can be read from the disk count as fitting
  Choice least = choice;
  least.context = std::min(chooser.context_of(choice), asked.least());
  const auto memory = chooser.plan(least, margin, 1).memory;
  const auto tightest = std::min_element(memory.begin(), memory.end(), [&](const auto& a, const auto& b) {
    return spare_bytes(a, margin) < spare_bytes(b, margin);
  });
  const std::string why = asked.least() > asked.least_context ? fmt::format("the prompt has {} tokens", asked.prompt)
                                                              : fmt::format("--fit-ctx {}", asked.least_context);
  // Whether each device stores a full copy of the cache.
  const models::Placement& placement = chooser.place(least);
  const bool is_mirrored =
      models::has_latent_cache(chooser.model().hparams) && placement.acts_as_one() && placement.latent_parts() == 1;
  fail<OutOfMemory>(
      "not even a context of {} fits ({}): {} needs {} and {} of margin (--fit-target), but has {} free; use more "
      "devices, {}a quantised cache (-ctk q8_0 -ctv q8_0), a smaller model, or a smaller --fit-ctx or --fit-target",
      least.context, why, tightest->device, format_bytes(tightest->use.total()),
      format_bytes(margin_of(*tightest, margin)), format_bytes(tightest->memory.free),
      is_mirrored ? "the latent cache by rows (--latent-split rows), " : "");
}

}  // namespace shoal::tools
