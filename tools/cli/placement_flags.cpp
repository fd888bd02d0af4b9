#include "tools/cli/placement_flags.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "models/arch/kv_cache.h"
#include "models/arch/model.h"
#include "tools/cli/device_names.h"
#include "tools/cli/options.h"
#include "tools/cli/program.h"

namespace shoal::tools {

void SplitFlags::add_to(CLI::App& app) {
  const auto read_mode = [this](const std::string& flag, const std::string& text) {
    const char* const hint = text == "none"  ? "; name a single device with --devices"
                             : text == "row" ? "; tensor splits rows and columns"
                                             : "";
    require<InvalidArgument>(text == "tensor" || text == "layer", "{} must be tensor or layer, got '{}'{}", flag, text,
                             hint);
    mode = text == "layer" ? models::SplitMode::kLayer : models::SplitMode::kTensor;
    mode_given = true;
  };
  add_parsed(app, "--split-mode", "MODE", read_mode,
             "How to split the model. tensor: all devices compute each layer together; layer: each device, or group "
             "such as CPU0+CPU1, computes some of the layers")
      ->default_str("tensor");
  add_ways_to(app);
}

void SplitFlags::add_ways_to(CLI::App& app) {
  const auto read_experts = [this](const std::string& flag, const std::string& text) {
    naming(flag, [&] { experts = tuning::parse_expert_split(text); });
  };
  add_parsed(app, "--expert-split", "MODE", read_experts,
             "How devices divide routed experts. inside: each device stores some columns of every expert; whole: each "
             "device stores some of the experts; auto: the mode predicted to be faster")
      ->default_str("auto");
  const auto read_latent = [this](const std::string& flag, const std::string& text) {
    naming(flag, [&] { latent = tuning::parse_latent_split(text); });
  };
  add_parsed(app, "--latent-split", "MODE", read_latent,
             "How devices divide the cache of latent attention. mirrored: each device stores all rows; rows: each "
             "device stores some rows, and partial results are merged; auto: the mode predicted to be faster")
      ->default_str("auto");
}

void SplitFlags::warn_of_ways(const models::Model& model, int together) const {
  const auto check = [together](const std::string& way, bool has, std::string_view what) {
    if (has && together > 1) return;
    const std::string why = has ? "no two devices act as one" : fmt::format("the model has no {}", what);
    warn(fmt::format("{} has no effect: {}", way, why));
  };
  if (experts) {
    check(fmt::format("--expert-split {}", models::name_of(*experts)), models::layers_with_experts(model) > 0,
          "experts");
  }
  if (latent) {
    check(fmt::format("--latent-split {}", models::name_of(*latent)), models::has_latent_cache(model.hparams),
          "latent attention");
  }
}

void HostFlags::add_to(CLI::App& app) {
  const auto read_layers = [this](const std::string& flag, const std::string& text) {
    const bool is_all = text == "all" || text == "auto";
    device_layers = is_all ? -1 : parse_integer(flag, text, -1, kMostTokens);
  };
  add_parsed(app, "--gpu-layers,--n-gpu-layers", "INT", read_layers,
             "Number of layers on the devices, counted from the end; earlier layers stay on the host's CPU. -1 or all: "
             "all layers")
      ->default_str("-1");
  add_integer(app, "--n-cpu-moe", expert_layers, 0, kMostTokens,
              "Number of layers whose expert weights stay on the host's CPU, starting with the first layer that "
              "contains experts");
  app.add_flag("--cpu-moe", experts, "Keep all expert weights on the host's CPU");
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
           "Place weights whose names match the regular expression PATTERN on DEVICE; CPU: the host's CPU");
  add_integer(app, "--offload-batch", offload_batch, 0, kMostTokens,
              "Minimum batch size in tokens at which weights on the host are copied to the devices; smaller batches "
              "are computed on the host. 0: each device chooses this minimum");
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
