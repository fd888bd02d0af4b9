// shoal info: describes a model file, even if this program cannot run the model. Also checks whether the model fits on
// devices of this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/text.h"
#include "models/engine/engine.h"
#include "models/session/model_plan.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/flags.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {
namespace {

using models::GgufFile;
using models::GgufType;
using models::GgufValue;
using nlohmann::json;

struct InfoFlags {
  ModelFlags model;
  DeviceFlags devices;
  ContextFlags context;
  OutputFlag output;
};

constexpr size_t kTemplateLines = 5, kLineLength = 100, kListed = 8;

/// Each pair is a name in the table and a key in the file. The keys have no architecture prefix.
constexpr std::pair<const char*, const char*> kNumbers[] = {
    {"layers", "block_count"},
    {"embedding", "embedding_length"},
    {"feed-forward", "feed_forward_length"},
    {"heads", "attention.head_count"},
    {"KV heads", "attention.head_count_kv"},
    {"head size", "attention.key_length"},
    {"experts", "expert_count"},
    {"experts used", "expert_used_count"},
    {"expert feed-forward", "expert_feed_forward_length"},
    {"sliding window", "attention.sliding_window"},
    {"context", "context_length"},
};

/// A key of an unexpected type counts as absent, because info only describes the file.
std::string text_of_key(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find_value(key);
  return value != nullptr && value->type == GgufType::kString ? file.get<std::string>(key) : std::string();
}

template <class T>
json numbers_of(const GgufFile& file, const GgufValue& value) {
  if (value.type != GgufType::kArray) return file.get<T>(value.key);
  const std::vector<T> all = file.get_array<T>(value.key);
  if (all.empty()) return {};
  const bool alike = std::count(all.begin(), all.end(), all.front()) == static_cast<ptrdiff_t>(all.size());
  return alike ? json(all.front()) : json(all);
}

/// A number of the model, or an array with one number per layer if the layers differ; null if the file has no such
/// number.
json number_of(const GgufFile& file, const std::string& key) {
  const GgufValue* value = file.find_value(key);
  if (value != nullptr && value->element == GgufType::kU32) return numbers_of<uint32_t>(file, *value);
  if (value != nullptr && value->element == GgufType::kI32) return numbers_of<int32_t>(file, *value);
  return {};
}

std::vector<std::string> pieces_of(const GgufFile& file) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const GgufValue* tokens = file.find_value(kTokens);
  const bool is_list = tokens != nullptr && tokens->type == GgufType::kArray && tokens->element == GgufType::kString;
  return is_list ? file.get_array<std::string>(kTokens) : std::vector<std::string>();
}

/// All tokens with a key tokenizer.ggml.ROLE_token_id.
json special_tokens(const GgufFile& file, const std::vector<std::string>& pieces) {
  constexpr std::string_view kBefore = "tokenizer.ggml.", kAfter = "_token_id";
  json special = json::object();
  for (const GgufValue& value : file.values()) {
    if (!value.key.starts_with(kBefore) || !value.key.ends_with(kAfter) || value.type != GgufType::kU32) continue;
    const auto id = file.get<uint32_t>(value.key);
    special[value.key.substr(kBefore.size(), value.key.size() - kBefore.size() - kAfter.size())] = {
        {"id", id}, {"text", id < pieces.size() ? pieces[id] : ""}};
  }
  return special;
}

json describe_file(const GgufFile& file) {
  const std::string architecture = text_of_key(file, "general.architecture");
  const std::vector<std::string> pieces = pieces_of(file);
  json numbers = json::object();
  for (const auto& [name, key] : kNumbers) {
    if (json number = number_of(file, fmt::format("{}.{}", architecture, key)); !number.is_null()) {
      numbers[key] = std::move(number);
    }
  }
  std::map<std::string, std::pair<int64_t, size_t>> uses;  // for each type, the number of tensors and their bytes
  for (const models::GgufTensor& tensor : file.tensors()) {
    auto& [tensors, bytes] = uses[std::string(name_of(tensor.dtype))];
    ++tensors;
    bytes += tensor.bytes;
  }
  json types = json::object();
  for (const auto& [name, use] : uses) types[name] = {{"tensors", use.first}, {"bytes", use.second}};
  const std::string chat_template = text_of_key(file, "tokenizer.chat_template");
  return {{"architecture", architecture},
          {"name", text_of_key(file, "general.name")},
          {"files", file.file_count()},
          {"bytes", file.file_bytes()},
          {"tensors", file.tensors().size()},
          {"tensor_bytes", file.tensor_bytes()},
          {"parameters", count_parameters(file)},
          {"numbers", std::move(numbers)},
          {"types", std::move(types)},
          {"tokenizer",
           {{"model", text_of_key(file, "tokenizer.ggml.model")},
            {"pre", text_of_key(file, "tokenizer.ggml.pre")},
            {"tokens", pieces.size()}}},
          {"special_tokens", special_tokens(file, pieces)},
          {"chat_template", chat_template.empty() ? json() : json(chat_template)}};
}

/// The escaped string of a JSON value.
std::string text_of(const json& value) {
  return printable(value.get_ref<const std::string&>());
}

std::string first_lines(const std::string& text) {
  std::string out;
  size_t begin = 0;
  for (size_t line = 0; line < kTemplateLines && begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool cut = end - begin > kLineLength;
    out +=
        fmt::format("\n    {}{}", escaped(text.substr(begin, std::min(end - begin, kLineLength))), cut ? " ..." : "");
    begin = end + 1;
  }
  return begin < text.size() ? out + "\n    ..." : out;
}

/// Lists the types, ordered by decreasing number of bytes.
std::string types_text(const json& types) {
  std::vector<std::pair<size_t, std::string>> parts;
  for (const auto& [name, use] : types.items()) {
    const auto bytes = use["bytes"].get<size_t>();
    parts.emplace_back(bytes, fmt::format("{} {} in {}", name, format_bytes(bytes), use["tensors"].get<int64_t>()));
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, part] : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string special_text(const json& special) {
  std::vector<std::string> parts;
  for (const auto& [role, token] : special.items()) {
    const std::string text = text_of(token["text"]);
    parts.push_back(
        fmt::format("{} {}{}{}", printable(role), token["id"].get<uint32_t>(), text.empty() ? "" : " ", text));
  }
  if (parts.size() > kListed) parts.resize(kListed), parts.emplace_back("...");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string tokenizer_text(const json& tokenizer) {
  const std::string model = text_of(tokenizer["model"]), pre = text_of(tokenizer["pre"]);
  if (model.empty()) return "none";
  return fmt::format("{}{}{}, {} tokens", model, pre.empty() ? "" : " ", pre, tokenizer["tokens"].get<size_t>());
}

std::string line(std::string_view what, const std::string& value) {
  return value.empty() ? "" : fmt::format("{:<20} {}\n", what, value);
}

/// Formats two columns: names and values.
std::string to_text(const json& info) {
  const std::string architecture = text_of(info["architecture"]);
  const auto parameters = info["parameters"].get<int64_t>();
  const double bits = info["tensor_bytes"].get<double>() * 8 / std::max(1.0, static_cast<double>(parameters));
  const int files = info["files"];
  std::string out =
      line("architecture", architecture.empty() ? "not named" : architecture) + line("name", text_of(info["name"])) +
      line("size",
           fmt::format("{} in {} file{}", format_bytes(info["bytes"].get<size_t>()), files, files == 1 ? "" : "s")) +
      line("parameters", fmt::format("{} of {:.2f} bits in {} tensors", short_count(parameters, 2, " "), bits,
                                     info["tensors"].get<size_t>())) +
      line("types", types_text(info["types"]));
  for (const auto& [name, key] : kNumbers) {
    const auto number = info["numbers"].find(key);
    if (number == info["numbers"].end()) continue;
    const auto [least, most] = std::minmax_element(number->begin(), number->end());
    out += line(name,
                number->is_array() ? fmt::format("{} to {}, by layer", least->dump(), most->dump()) : number->dump());
  }
  const json& chat = info["chat_template"];
  return out + line("tokenizer", tokenizer_text(info["tokenizer"])) +
         line("special tokens", special_text(info["special_tokens"])) +
         line("chat template", chat.is_null()
                                   ? "none"
                                   : fmt::format("{} characters{}", chat.get<std::string>().size(), first_lines(chat)));
}

/// Memory and context of a model on devices that act as one device, and whether the model fits on these devices.
struct Fit {
  std::string devices;
  int64_t context = 0;
  std::vector<models::DeviceUse> memory;
  std::string limited_by = {};  ///< device that has room for the fewest cached tokens
  bool fits = false;
  bool from_disk = false;  ///< true: the model does not fit, but the model runs if weights are read from the disk

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

/// Checks whether the model fits with the requested context. Without a request, checks the context that `run` would
/// choose, which is the largest context that fits.
Fit fit_on(const models::Model& model, const std::string& names, const InfoFlags& flags) {
  DeviceFlags devices = flags.devices;
  devices.take(names);
  tuning::Asked asked = devices.asked(devices.find_groups());
  asked.session = models::engine_options(flags.context.session(), 0);
  FitFlags{}.put_into(asked);
  asked.free.host = false;
  tuning::Chooser chooser(model, asked);
  const tuning::Chosen chosen = chooser.choose();
  Fit fit{names, chosen.choice.context, chosen.plan->memory};
  if (const auto room = models::cache_room(model, *chosen.placement, chooser.session_of(chosen.choice), *chosen.plan)) {
    fit.limited_by = room->device;
  }
  fit.fits = models::fits(fit.memory);
  fit.from_disk = !fit.fits && models::has_room(fit.memory);
  return fit;
}

/// Lists of devices to check. The requested devices are one list. Without a request, the lists are the default devices
/// of `run`, all devices, and CPU0.
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
    return fmt::format(
        "on {}: {} of the {} needed for {} are missing{}", fit.devices, format_bytes(fit.missing()),
        format_bytes(fit.needed()), context,
        fit.from_disk ? "; the model runs slowly, because weights are read from the disk for every token" : "");
  }
  const bool is_limited = fit.context < trained && fit.memory.size() > 1 && !fit.limited_by.empty();
  return fmt::format("on {} with {}{}, in {}", fit.devices, context,
                     is_limited ? fmt::format(", limited by {}", fit.limited_by) : "", format_bytes(fit.needed()));
}

json to_json(const Fit& fit) {
  json memory = json::array();
  for (const models::DeviceUse& use : fit.memory) {
    memory.push_back(
        {{"device", use.device}, {"needed", use.needed()}, {"mapped", use.mapped}, {"free", use.memory.free}});
  }
  return {{"devices", fit.devices},       {"fits", fit.fits},
          {"from_disk", fit.from_disk},   {"context", fit.context},
          {"limited_by", fit.limited_by}, {"needed", fit.needed()},
          {"missing", fit.missing()},     {"memory", std::move(memory)}};
}

int show(const InfoFlags& flags) {
  json info = describe_file(GgufFile(flags.model.path));
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
    info["model"] = flags.model.path;
    info["refusal"] = refusal.empty() ? json() : json(refusal);
    info["ignored_keys"] = model != nullptr ? json(model->hparams.unread_keys) : json();
    info["ignored_tensors"] = model != nullptr ? json(model->ignored_prefixes) : json();
    info["fits"] = json::array();
    for (const Fit& fit : fits) info["fits"].push_back(to_json(fit));
    print_json(info);
    return kSuccess;
  }
  std::string text = to_text(info);
  text += line("cannot be run", escaped(refusal)) + line("ignored keys", ignored.keys) +
          line("ignored tensors", ignored.tensors);
  for (const Fit& fit : fits) text += line(fit.fits ? "fits" : "does not fit", to_text(fit, model->hparams.context));
  write_out(text);
  return kSuccess;
}

}  // namespace

CommandBody define_info(CLI::App& app) {
  auto flags = std::make_shared<InfoFlags>();
  flags->model.add_to(app);
  flags->context.add_to(app);
  const auto read_devices = [flags = flags.get()](const std::string&, const std::string& text) {
    if (!names_all(text)) split_device_names(text);  // throws for an invalid list
    flags->devices.list = text;
  };
  add_parsed(app, "--devices", "NAMES", read_devices,
             "Check whether the model fits on these devices together, such as CPU0,CPU1; all: every GPU, or every CPU "
             "device if there is no GPU")
      ->default_str("separate checks for the default devices of run, for all devices, and for CPU0");
  flags->devices.plugins.add_to(app);
  flags->output.add_to(app);
  return [flags] { return show(*flags); };
}

}  // namespace shoal::tools
