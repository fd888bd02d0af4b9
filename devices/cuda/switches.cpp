#include "devices/cuda/switches.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace shoal::cuda {
namespace {

struct Switch {
  std::string_view name;
  bool SwitchedOff::*is_off;
};
constexpr auto kSwitches = std::to_array<Switch>({{"early", &SwitchedOff::early},
                                                  {"wgmma", &SwitchedOff::wgmma},
                                                  {"stream", &SwitchedOff::stream},
                                                  {"fuse", &SwitchedOff::fuse},
                                                  {"p2p_product", &SwitchedOff::p2p_product},
                                                  {"graphs", &SwitchedOff::graphs}});

/// Returns the names of the switches for which `is_listed` is true.
std::string names(auto is_listed) {
  std::string text;
  for (const Switch& one : kSwitches) {
    if (is_listed(one)) text.append(text.empty() ? "" : ",").append(one.name);
  }
  return text;
}

}  // namespace

SwitchedOff parse_switched_off(std::string_view text) {
  SwitchedOff off;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    const auto found = std::ranges::find(kSwitches, name, &Switch::name);
    require<InvalidArgument>(found != kSwitches.end(), "SHOAL_CUDA_OFF: unknown feature '{}'; the features are {}",
                             name, names([](const Switch&) { return true; }));
    off.*found->is_off = true;
    text.remove_prefix(std::min(name.size() + 1, text.size()));
  }
  return off;
}

std::string to_string(const SwitchedOff& off) {
  return names([&](const Switch& one) { return off.*one.is_off; });
}

}  // namespace shoal::cuda
