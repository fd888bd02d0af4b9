#include "tools/cli/host_flags.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "tools/cli/device_names.h"
#include "tools/cli/options.h"

namespace shoal::tools {

void HostFlags::add_to(CLI::App& app) {
  const auto read_layers = [this](const std::string& flag, const std::string& text) {
    const bool is_all = text == "all" || text == "auto";
    device_layers = is_all ? -1 : parse_integer(flag, text, -1, kMostTokens);
  };
  add_parsed(app, "--gpu-layers,--n-gpu-layers", "INT", read_layers,
             "Put the last N layers on the devices and the rest on the host's CPU; -1 or all: everything")
      ->default_str("-1");
  add_integer(app, "--n-cpu-moe", expert_layers, 0, kMostTokens,
              "Keep the weights of the experts of the first N layers that have any on the host's CPU");
  app.add_flag("--cpu-moe", experts, "Keep the weights of experts on the host's CPU");
  app.add_flag("--no-kv-offload", cache, "Keep the KV cache on the host's CPU");
  const auto read_override = [this](const std::string& flag, const std::string& text) {
    for (const std::string& part : split_list(text)) {
      const size_t equals = part.rfind('=');
      require<InvalidArgument>(equals != std::string::npos && equals > 0 && equals + 1 < part.size(),
                               "{}: '{}' is not PATTERN=DEVICE, such as ffn_.*_exps=CPU", flag, part);
      overrides.push_back({part.substr(0, equals), part.substr(equals + 1)});
      naming(flag, [&] { models::check_pattern(overrides.back().pattern); });
    }
  };
  add_list(app, "--override-tensor", "PATTERN=DEVICE", read_override,
           "Put the weights whose names a regular expression matches on a device; CPU: the host's");
  add_integer(
      app, "--offload-batch", offload_batch, 0, kMostTokens,
      "For batches of N tokens and more, send weights that lie on the host to the devices instead of computing on the "
      "host; 0: where the devices themselves say so");
}

void HostFlags::put_into(models::PlacementOptions& options) const {
  options.device_layers = device_layers;
  options.expert_layers = experts ? std::numeric_limits<int64_t>::max() : expert_layers;
  options.cache_on_host = cache;
  options.overrides = overrides;
  options.offload_batch = offload_batch;
}

std::string HostFlags::given() const {
  if (device_layers >= 0) return fmt::format("-ngl {}", device_layers);
  if (cache) return "-nkvo";
  if (experts) return "-cmoe";
  if (expert_layers > 0) return fmt::format("-ncmoe {}", expert_layers);
  return overrides.empty() ? "" : fmt::format("-ot {}={}", overrides[0].pattern, overrides[0].device);
}

}  // namespace shoal::tools
