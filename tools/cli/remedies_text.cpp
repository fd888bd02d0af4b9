#include "tools/cli/remedies_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/text.h"

namespace shoal::tools {
namespace {

std::string mode_option(const std::optional<models::SplitMode>& mode) {
  if (!mode) return "";
  return *mode == models::SplitMode::kLayer ? " -sm layer" : " -sm tensor";
}

std::string change_options(const tuning::SplitChange& change) {
  return fmt::format("{}{}{}", change.devices.empty() ? "" : " -dev " + change.devices,
                     change.ratio.empty() ? "" : " -ts " + change.ratio, mode_option(change.mode));
}

/// With enough digits that they differ: "4.7" and "4.8". An upper limit is not rounded up.
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

}  // namespace

std::string split_options(const tuning::ContextThatFits& found) {
  return change_options(found.change) + (found.repacks ? "" : " --no-repack");
}

std::string context_options(const tuning::ContextThatFits& found) {
  return fmt::format("-c {}{}{}", found.context, found.q8_0_cache ? " -ctk q8_0 -ctv q8_0" : "", split_options(found));
}

std::string problem_text(const tuning::Remedies& remedies) {
  std::string text;
  for (const models::DeviceUse& use : remedies.lacking) {
    text += fmt::format("{}{} needs {} and has {} free", text.empty() ? "" : ", ", use.device,
                        format_bytes(use.needed()), format_bytes(use.memory.free));
  }
  return text;
}

std::string remedies_text(const tuning::Remedies& remedies) {
  std::vector<std::string> parts;
  if (const auto& one = remedies.context) {
    parts.push_back(fmt::format("a context of {}{}", one->context, in_brackets(context_options(*one))));
  }
  if (const auto& one = remedies.context_q8_0) {
    parts.push_back(
        fmt::format("a context of {} with a q8_0 cache{}", one->context, in_brackets(context_options(*one))));
  }
  if (remedies.bits_that_fit) {
    const auto [at_most, now] = bits_texts(*remedies.bits_that_fit, remedies.bits);
    const std::string options = change_options(remedies.bits_change);
    parts.push_back(fmt::format("weights of at most {} bits instead of {} ({}){}", at_most, now,
                                fmt::join(remedies.quantisations, ", "), options.empty() ? "" : " with" + options));
  }
  if (remedies.more_devices) {
    parts.push_back(fmt::format(
        "{} more device{} like {}{}", *remedies.more_devices, *remedies.more_devices == 1 ? "" : "s", remedies.device,
        in_brackets((remedies.even_shares ? "" : " -ts auto") + mode_option(remedies.devices_mode))));
  }
  if (parts.empty()) return problem_text(remedies) + "; use a smaller model";
  return fmt::format("{}; what would fit: {}", problem_text(remedies), fmt::join(parts, "; or "));
}

}  // namespace shoal::tools
