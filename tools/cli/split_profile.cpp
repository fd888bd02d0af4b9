#include "tools/cli/split_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/user_file.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail_profile(std::string_view path, std::string_view why) {
  fail<InvalidArgument>(
      "--tensor-split @{}: {}; an example of a profile is {{\"version\": 1, \"devices\": [\"CPU0\", \"CPU1\"], "
      "\"tensor_split\": [3, 1]}}",
      path, why);
}

SplitProfile profile_of(const Json& json) {
  const Json& version = json.at("version");
  require<InvalidArgument>(version == 1, "\"version\" is {}, but this program reads version 1",
                           printable(version.dump(-1, ' ', false, Json::error_handler_t::replace)));
  SplitProfile profile;
  if (const Json model = json.value("model", Json()); model.is_object()) {
    profile.model_file = model.value("file", "");
    profile.model_type = model.value("type", "");
  }
  const std::string mode = json.value("split_mode", "tensor");
  require<InvalidArgument>(mode == "tensor" || mode == "layer", "\"split_mode\" is \"{}\", not \"tensor\" or \"layer\"",
                           printable(mode));
  profile.mode = mode == "layer" ? models::SplitMode::kLayer : models::SplitMode::kTensor;
  profile.devices = json.at("devices").get<std::vector<std::string>>();
  const size_t single = split_device_names(profile.device_list()).size();
  profile.shares = json.at("tensor_split").get<std::vector<double>>();
  models::parse_ratio(profile.ratio(), static_cast<int>(mode == "layer" ? profile.devices.size() : single));
  return profile;
}

const char* name_of(models::SplitMode mode) {
  return mode == models::SplitMode::kLayer ? "layer" : "tensor";
}

}  // namespace

std::string SplitProfile::device_list() const {
  return fmt::format("{}", fmt::join(devices, ","));
}

std::string SplitProfile::ratio() const {
  return fmt::format("{}", fmt::join(shares, ","));
}

bool names_profile(std::string_view ratio) {
  return ratio.starts_with('@');
}

SplitProfile read_split_profile(std::string_view ratio) {
  const std::string path(ratio.substr(1));
  if (path.empty())
    throw UsageError("--tensor-split @: the name of the profile is missing; give a name such as @profile.json");
  std::string text;
  naming("--tensor-split", [&] {
    text = read_file(
        {.path = path, .what = "profile", .remedy = "check the path, or write a profile with scripts/tune_split.py"});
  });
  return parse_split_profile(text, path);
}

SplitProfile parse_split_profile(std::string_view json, std::string_view path) {
  try {
    SplitProfile profile = profile_of(parse_json(json));
    profile.path = path;
    return profile;
  } catch (const InvalidArgument& error) {
    fail_profile(path, error.what());
  } catch (const Json::exception& error) {
    // An example of the error is "[json.exception.out_of_range.403] key 'devices' not found". Users see only the text
    // after the bracket.
    const std::string_view what = error.what();
    fail_profile(path, what.substr(what.find("] ") + 2));
  }
}

void check_profile(const SplitProfile& profile, const std::string& devices, models::SplitMode mode) {
  const std::vector<std::string> names = split_device_names(devices), own = split_device_names(profile.device_list());
  const auto sizes = [mode](const std::string& list) {
    return mode == models::SplitMode::kLayer ? device_group_sizes(list) : std::vector<int>();
  };
  require<InvalidArgument>(
      upper(fmt::format("{}", fmt::join(names, ","))) == upper(fmt::format("{}", fmt::join(own, ","))) &&
          sizes(devices) == sizes(profile.device_list()),
      "--tensor-split @{}: the profile is for {} device(s) ({}), but --devices names {} ({}); omit --devices, or tune "
      "a profile for these devices",
      profile.path, own.size(), profile.device_list(), names.size(), devices);
  require<InvalidArgument>(profile.mode == mode,
                           "--tensor-split @{}: the profile is for -sm {}, not for -sm {}; use -sm {}", profile.path,
                           name_of(profile.mode), name_of(mode), name_of(profile.mode));
}

void warn_of_profile(const SplitProfile& profile, const models::Model& model) {
  const auto name = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  const bool by_type = !profile.model_type.empty();
  const std::string made_for = by_type ? profile.model_type : name(profile.model_file);
  const std::string used = by_type ? describe_model(model) : name(model.file.path());
  if (made_for.empty() || made_for == used) return;
  warn(fmt::format("--tensor-split @{}: the profile was made for {}, but the model is {}; other shares may be faster",
                   profile.path, printable(made_for), used));
}

}  // namespace shoal::tools
