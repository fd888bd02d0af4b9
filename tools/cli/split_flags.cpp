#include "tools/cli/split_flags.h"

#include <fmt/format.h>

#include "base/error.h"
#include "models/arch/kv_cache.h"
#include "models/arch/model.h"
#include "tools/cli/options.h"
#include "tools/cli/program.h"

namespace shoal::tools {

void SplitFlags::add_to(CLI::App& app) {
  const auto read_mode = [this](const std::string& flag, const std::string& text) {
    const char* const hint = text == "none"  ? "; a single device is named with --devices"
                             : text == "row" ? "; tensor divides rows and columns"
                                             : "";
    require<InvalidArgument>(text == "tensor" || text == "layer", "{} must be tensor or layer, got '{}'{}", flag, text,
                             hint);
    mode = text == "layer" ? models::SplitMode::kLayer : models::SplitMode::kTensor;
    mode_given = true;
  };
  add_parsed(app, "--split-mode", "MODE", read_mode,
             "tensor: all devices work on each layer; layer: each device, or group such as CPU0+CPU1, has some of the "
             "layers")
      ->default_str("tensor");
  add_ways_to(app);
}

void SplitFlags::add_ways_to(CLI::App& app) {
  const auto read_experts = [this](const std::string& flag, const std::string& text) {
    naming(flag, [&] { experts = tuning::parse_expert_split(text); });
  };
  add_parsed(app, "--expert-split", "WAY", read_experts,
             "How devices that act as one divide routed experts. inside: each has some columns of every expert; whole: "
             "each has some of the experts; auto: as is predicted to be faster")
      ->default_str("auto");
  const auto read_latent = [this](const std::string& flag, const std::string& text) {
    naming(flag, [&] { latent = tuning::parse_latent_split(text); });
  };
  add_parsed(app, "--latent-split", "WAY", read_latent,
             "How devices that act as one have the cache of latent attention. mirrored: each has all rows; rows: each "
             "has some, and what it sees of them is merged; auto: as is predicted to be faster")
      ->default_str("auto");
}

void SplitFlags::warn_of_ways(const models::Model& model, int together) const {
  const auto check = [together](const std::string& way, bool has, std::string_view what) {
    if (has && together > 1) return;
    const std::string why = has ? "no devices act as one" : fmt::format("the model has no {}", what);
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

}  // namespace shoal::tools
