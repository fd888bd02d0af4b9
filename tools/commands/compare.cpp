// shoal compare: compares a model's graph on a meta device with the same graph on one device, node by node.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/prompt.h"
#include "tools/report/comparison.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

constexpr const char* kUsualPrompt = "In the beginning was the word";

struct CompareFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  OutputFlag output;
  PromptFlags prompt;
  double threshold = 1e-3;

  void check() {
    devices.check();
    if (devices.split.mode == models::SplitMode::kLayer) {
      throw UsageError(
          fmt::format("--tensor-split @{}: the profile is for -sm layer, but compare needs -sm tensor; use a profile "
                      "for -sm tensor, or give shares",
                      devices.profile->path));
    }
    if (devices.names.size() < 2) throw UsageError("compare needs at least two devices; name them with --devices");
  }
};

void print_text(const std::vector<NodeError>& errors, const NodeError& worst, double threshold) {
  std::vector<std::vector<std::string>> rows{{"step", "node", "op", "layout", "NMSE"}};
  for (const NodeError& error : errors) {
    rows.push_back({error.step, error.name, error.op, error.layout, fmt::format("{:.3e}", error.nmse)});
  }
  write_out(fmt::format("{}worst: {} ({}) {:.3e}, threshold {:.3e}\n", format_table(rows), worst.name, worst.step,
                        worst.nmse, threshold));
}

nlohmann::json to_json(const NodeError& error) {
  return {{"step", error.step}, {"name", error.name}, {"op", error.op}, {"layout", error.layout}, {"nmse", error.nmse}};
}

std::vector<models::Token> prompt_ids(const CompareFlags& flags, const models::Model& model) {
  models::Tokenizer tokenizer(model.file);
  check_tokenizer(model, tokenizer);
  std::vector<models::Token> tokens = tokenizer.encode(flags.prompt.given() ? flags.prompt.read() : kUsualPrompt);
  require<InvalidArgument>(!tokens.empty(), "the prompt is empty, so there is nothing to compare; give a text with -p");
  return tokens;
}

int compare(CompareFlags& flags) {
  flags.check();
  auto model = models::open_model(flags.model.path);
  flags.devices.warn_of_ways(*model);
  const std::vector<models::Token> tokens = prompt_ids(flags, *model);
  const std::vector<Device*> devices = flags.devices.find();
  if (flags.devices.profile) warn_of_profile(*flags.devices.profile, *model);
  Request request{std::move(model), flags.devices.asked({devices})};
  request.asked.session = flags.context.session();
  if (flags.context.context == 0) request.asked.session.context = static_cast<int64_t>(tokens.size()) + 1;
  request.starts_threads = false;
  Deployment deployment = resolve(std::move(request));
  const tuning::Asked& asked = deployment.asked;
  const models::PlacementOptions options = tuning::Chooser(*deployment.model, asked).options_of(asked.fixed);
  deployment.plan.reset(), deployment.placement.reset();
  const std::vector<NodeError> errors =
      compare_nodes(std::move(deployment.model), devices, options, asked.session, tokens);
  const NodeError& worst = *std::max_element(errors.begin(), errors.end(),
                                             [](const NodeError& a, const NodeError& b) { return a.nmse < b.nmse; });
  if (flags.output.json()) {
    nlohmann::json nodes = nlohmann::json::array();
    for (const NodeError& error : errors) nodes.push_back(to_json(error));
    print_json({{"nodes", nodes}, {"worst", to_json(worst)}, {"threshold", flags.threshold}});
  } else {
    print_text(errors, worst, flags.threshold);
  }
  auto broken = std::find_if(errors.begin(), errors.end(), [](const NodeError& error) { return !error.finite; });
  if (broken != errors.end()) {
    return report(fmt::format("{} ({}) is not finite on {} alone: the model's weights are damaged, or too large to "
                              "compute with; download the file again",
                              broken->name, broken->step, flags.devices.names.front()),
                  kFailed);
  }
  if (worst.nmse <= flags.threshold) return kSuccess;
  return report(fmt::format("{} ({}) differs by {:.3e}, more than {:.3e}: the devices do not agree; raise --threshold "
                            "if this error is acceptable",
                            worst.name, worst.step, worst.nmse, flags.threshold),
                kFailed);
}

}  // namespace

CommandBody define_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  flags->model.add_to(app);
  flags->devices.add_to(app);
  flags->devices.split.add_ways_to(app);
  flags->context.add_to(app);
  flags->prompt.add_to(app);
  app.get_option("--prompt")->default_str(kUsualPrompt);
  add_number(app, "--threshold", flags->threshold, 0.0, std::numeric_limits<double>::max(),
             "Largest allowed normalised mean squared error (NMSE) of a node");
  flags->output.add_to(app);
  return [flags] { return compare(*flags); };
}

}  // namespace shoal::tools
