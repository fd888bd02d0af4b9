// shoal info: what a model file says of itself, and on which devices of this machine the model fits.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/text.h"
#include "models/session/model_plan.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/report/model_info.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {
namespace {

struct InfoFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  OutputFlag output;
};

/// How a model would lie on some devices that act as one.
struct Fit {
  std::string devices;
  int64_t context = 0;
  std::vector<models::DeviceUse> memory;
  bool fits = false;
  bool from_disk = false;  ///< does not fit, but runs

  size_t needed() const {
    size_t bytes = 0;
    for (const models::DeviceUse& use : memory) bytes += use.needed();
    return bytes;
  }
  size_t missing() const {
    size_t bytes = 0;
    for (const models::DeviceUse& use : memory) bytes += use.needed() - std::min(use.needed(), use.memory.free);
    return bytes;
  }
};

/// The context asked for, or the largest that fits as `run` would choose it.
Fit fit_on(const models::Model& model, const std::string& names, const InfoFlags& flags) {
  DeviceFlags devices = flags.devices;
  devices.take(names);
  tuning::Asked asked = devices.asked(devices.find_groups());
  asked.session = flags.context.session();
  FitFlags{}.put_into(asked);
  asked.free.host = false;
  const tuning::Chosen chosen = tuning::Chooser(model, asked).choose();
  Fit fit{names, chosen.choice.context, chosen.plan->memory};
  fit.fits = models::fits(fit.memory);
  fit.from_disk = !fit.fits && models::has_room(fit.memory);
  return fit;
}

/// Those named, or what may be of interest: those that `run` takes by itself, all, and the first CPU.
std::vector<std::string> device_sets(const InfoFlags& flags) {
  const PluginReport plugins = flags.devices.plugins.load();
  if (!flags.devices.list.empty() && !names_all(flags.devices.list)) return {flags.devices.list};
  warn_of_broken_plugins(plugins);
  const std::vector<Device*> listed = Registry::instance().devices();
  if (!flags.devices.list.empty()) return {all_of(listed)};
  std::vector<std::string> sets;
  for (const std::string& set : {default_of(listed), all_of(listed), std::string("CPU0")}) {
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
  }
  return sets;
}

std::string to_text(const Fit& fit, int64_t trained) {
  const std::string context = fit.context == trained
                                  ? fmt::format("the whole context of {}", trained)
                                  : fmt::format("a context of {} (trained for {})", fit.context, trained);
  if (!fit.fits) {
    return fmt::format("on {}: {} are missing of the {} that {} needs{}", fit.devices, format_bytes(fit.missing()),
                       format_bytes(fit.needed()), context,
                       fit.from_disk ? "; it runs slowly, as weights are read from the disk for every token" : "");
  }
  return fmt::format("on {} with {}, in {}", fit.devices, context, format_bytes(fit.needed()));
}

nlohmann::json to_json(const Fit& fit) {
  nlohmann::json memory = nlohmann::json::array();
  for (const models::DeviceUse& use : fit.memory) {
    memory.push_back(
        {{"device", use.device}, {"needed", use.needed()}, {"mapped", use.mapped}, {"free", use.memory.free}});
  }
  return {{"devices", fit.devices}, {"fits", fit.fits},         {"from_disk", fit.from_disk}, {"context", fit.context},
          {"needed", fit.needed()}, {"missing", fit.missing()}, {"memory", std::move(memory)}};
}

int show(const InfoFlags& flags) {
  const ModelInfo info = describe_file(models::GgufFile(flags.model.path));
  std::unique_ptr<models::Model> model;
  std::string refusal;
  try {
    model = models::open_model(flags.model.path);
  } catch (const InvalidArgument& error) {
    refusal = error.what();
  }
  std::vector<Fit> fits;
  Ignored ignored;
  if (model != nullptr) {
    ignored = ignored_of(*model);
    for (const std::string& set : device_sets(flags)) fits.push_back(fit_on(*model, set, flags));
  }
  if (flags.output.json()) {
    nlohmann::json json = to_json(info);
    json["model"] = flags.model.path;
    json["refusal"] = refusal.empty() ? nlohmann::json() : nlohmann::json(refusal);
    json["ignored_keys"] = model != nullptr ? nlohmann::json(model->hparams.unread_keys) : nlohmann::json();
    json["ignored_tensors"] = model != nullptr ? nlohmann::json(model->passed_over) : nlohmann::json();
    json["fits"] = nlohmann::json::array();
    for (const Fit& fit : fits) json["fits"].push_back(to_json(fit));
    print_json(json);
    return kSuccess;
  }
  std::string text = to_text(info);
  if (model == nullptr) text += fmt::format("{:<20} {}\n", "cannot be run", escaped(refusal));
  if (!ignored.keys.empty()) text += fmt::format("{:<20} {}\n", "ignored keys", ignored.keys);
  if (!ignored.tensors.empty()) text += fmt::format("{:<20} {}\n", "ignored tensors", ignored.tensors);
  for (const Fit& fit : fits)
    text += fmt::format("{:<20} {}\n", fit.fits ? "fits" : "does not fit", to_text(fit, model->hparams.context));
  write_out(text);
  return kSuccess;
}

}  // namespace

CommandBody define_info(CLI::App& app) {
  auto flags = std::make_shared<InfoFlags>();
  flags->model.add_to(app);
  flags->context.add_to(app);
  const auto read_devices = [flags = flags.get()](const std::string&, const std::string& text) {
    if (!names_all(text)) split_device_names(text);  // which checks them
    flags->devices.list = text;
  };
  add_parsed(app, "--devices", "NAMES", read_devices, "Devices to look at, such as CPU0,CPU1, or all")
      ->default_str("those that run would take, all, and CPU0");
  flags->devices.plugins.add_to(app);
  flags->output.add_to(app);
  return [flags] { return show(*flags); };
}

}  // namespace shoal::tools
