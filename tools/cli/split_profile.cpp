#include "tools/cli/split_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/json_text.h"
#include "base/user_file.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/model_text.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

using Json = nlohmann::json;
constexpr int64_t kVersion = 1;
/// No profile is that long; what is longer is another file.
constexpr size_t kMostBytes = 1 << 20;

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// It is read more than once.
std::string read_profile(const std::string& path) {
  std::string text;
  naming("--tensor-split", [&] {
    text = read_file({.path = path,
                      .what = "profile",
                      .remedy = "check the path, or write one with scripts/tune_split.py",
                      .most_bytes = kMostBytes});
  });
  return text;
}

/// Reads fields of one profile, with messages that name it.
class Reader {
 public:
  Reader(std::string_view text, std::string_view path) : path_(path) {
    try {
      json_ = parse_json(text);
    } catch (const InvalidArgument& error) {
      wrong("{}", error.what());
    } catch (const Json::parse_error& error) {
      wrong("it is no JSON (at byte {})", error.byte);
    } catch (const Json::exception& error) {
      // "[json.exception.out_of_range.406] number overflow parsing '1e400'": what follows the bracket is for people.
      const std::string_view what = error.what();
      wrong("{}", what.substr(std::min(what.size(), what.find("] ") + 2)));
    }
    if (!json_.is_object()) wrong("it is not a JSON object");
  }

  const Json& json() const { return json_; }

  const Json& field(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) wrong("it has no \"{}\"", name);
    return *found;
  }

  std::string text_of(const char* object, const char* name) const {
    const auto found = json_.find(object);
    if (found == json_.end() || !found->is_object()) return {};
    const auto value = found->find(name);
    return value != found->end() && value->is_string() ? value->get<std::string>() : std::string();
  }

  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) const {
    fail<InvalidArgument>(
        "--tensor-split @{}: {}; a profile is such as {{\"version\": 1, \"devices\": [\"CPU0\", \"CPU1\"], "
        "\"tensor_split\": [3, 1]}}",
        path_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string path_;
  Json json_;
};

std::vector<std::string> read_devices(const Reader& reader) {
  const Json& list = reader.field("devices");
  if (!list.is_array() || list.empty()) reader.wrong("\"devices\" is not a list of names");
  std::vector<std::string> devices;
  for (const Json& entry : list) {
    if (!entry.is_string()) reader.wrong("\"devices\" has {}, which is no name", shown(entry));
    devices.push_back(entry.get<std::string>());
  }
  try {
    split_device_names(fmt::format("{}", fmt::join(devices, ",")));
  } catch (const InvalidArgument& error) {
    reader.wrong("\"devices\": {}", error.what());
  }
  return devices;
}

std::vector<double> read_shares(const Reader& reader, size_t devices) {
  const Json& list = reader.field("tensor_split");
  if (!list.is_array()) reader.wrong("\"tensor_split\" is not a list of numbers");
  std::vector<double> shares;
  for (const Json& entry : list) {
    const double share = entry.is_number() ? entry.get<double>() : -1;
    if (!std::isfinite(share) || share < 0) reader.wrong("\"tensor_split\" has {}, no number >= 0", shown(entry));
    shares.push_back(share);
  }
  if (shares.size() != devices) {
    reader.wrong("\"tensor_split\" has {} numbers for {} devices", shares.size(), devices);
  }
  if (std::accumulate(shares.begin(), shares.end(), 0.0) <= 0) reader.wrong("\"tensor_split\" adds up to 0");
  return shares;
}

std::vector<std::string> read_descriptions(const Reader& reader, size_t devices) {
  const auto list = reader.json().find("descriptions");
  std::vector<std::string> descriptions;
  if (list == reader.json().end()) return descriptions;
  if (!list->is_array()) reader.wrong("\"descriptions\" is not a list of texts");
  for (const Json& entry : *list) {
    if (!entry.is_string()) reader.wrong("\"descriptions\" has {}, which is no text", shown(entry));
    descriptions.push_back(entry.get<std::string>());
  }
  if (descriptions.size() != devices) {
    reader.wrong("\"descriptions\" has {} texts for {} devices", descriptions.size(), devices);
  }
  return descriptions;
}

models::SplitMode read_mode(const Reader& reader) {
  const auto found = reader.json().find("split_mode");
  if (found == reader.json().end() || *found == "tensor") return models::SplitMode::kTensor;
  if (*found != "layer") reader.wrong("\"split_mode\" is {}, not \"tensor\" or \"layer\"", shown(*found));
  return models::SplitMode::kLayer;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
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
  if (path.empty()) throw UsageError("--tensor-split @: a name of a profile follows, such as @profile.json");
  return parse_split_profile(read_profile(path), path);
}

SplitProfile parse_split_profile(std::string_view json, std::string_view path) {
  const Reader reader(json, path);
  const Json& version = reader.field("version");
  if (version != kVersion) reader.wrong("its version is {}, and this program reads {}", shown(version), kVersion);
  SplitProfile profile;
  profile.path = path;
  profile.model_file = reader.text_of("model", "file");
  profile.model_type = reader.text_of("model", "type");
  profile.mode = read_mode(reader);
  profile.devices = read_devices(reader);
  const size_t single = split_device_names(profile.device_list()).size();
  profile.descriptions = read_descriptions(reader, single);
  profile.shares = read_shares(reader, profile.mode == models::SplitMode::kLayer ? profile.devices.size() : single);
  return profile;
}

void check_profile(const SplitProfile& profile, const std::string& devices, models::SplitMode mode) {
  const auto plain = [](const std::string& list) {
    return fmt::format("{}", fmt::join(split_device_names(lower(list)), ","));
  };
  const bool by_groups = mode == models::SplitMode::kLayer;
  const bool same = plain(devices) == plain(profile.device_list()) &&
                    (!by_groups || device_group_sizes(devices) == device_group_sizes(profile.device_list()));
  require<InvalidArgument>(same,
                           "--tensor-split @{}: the profile is for {} device(s), {}, and --devices names {}, {}; leave "
                           "--devices out, or tune a split for these",
                           profile.path, split_device_names(profile.device_list()).size(), profile.device_list(),
                           split_device_names(devices).size(), devices);
  require<InvalidArgument>(profile.mode == mode,
                           "--tensor-split @{}: the profile is for -sm {}, and {} is asked for; use -sm {}",
                           profile.path, name_of(profile.mode), name_of(mode), name_of(profile.mode));
}

std::string other_model(const SplitProfile& profile, const std::string& type, const std::string& file) {
  const auto name = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  const bool by_type = !profile.model_type.empty();
  const std::string made_for = by_type ? profile.model_type : name(profile.model_file);
  const std::string used = by_type ? type : name(file);
  if (made_for.empty() || made_for == used) return {};
  return fmt::format("--tensor-split @{}: the profile was made for {}, and the model is {}: other shares may be faster",
                     profile.path, printable(made_for), used);
}

std::string other_devices(const SplitProfile& profile, const std::vector<std::string>& descriptions) {
  const std::vector<std::string>& made_for = profile.descriptions;
  if (made_for.size() != descriptions.size()) return {};
  const auto differs = [&](size_t d) { return made_for[d] != descriptions[d]; };
  size_t first = 0, others = 0;
  for (size_t d = made_for.size(); d-- > 0;) {
    if (!differs(d)) continue;
    first = d;
    ++others;
  }
  if (others == 0) return {};
  const std::string name = split_device_names(profile.device_list())[first];
  const std::string more = others > 1 ? fmt::format(" (and {} more differ)", others - 1) : "";
  return fmt::format(
      "--tensor-split @{}: the profile was made where {} is {}, and here it is {}{}: other shares may be "
      "faster",
      profile.path, name, printable(made_for[first]), printable(descriptions[first]), more);
}

void warn_of_profile(const SplitProfile& profile, const models::Model& model, std::span<Device* const> devices) {
  std::vector<std::string> descriptions;
  for (const Device* device : devices) descriptions.push_back(device->description());
  for (const std::string& text :
       {other_model(profile, describe_model(model), model.file.path()), other_devices(profile, descriptions)}) {
    if (!text.empty()) warn(text);
  }
}

}  // namespace shoal::tools
