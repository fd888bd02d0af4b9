// A file with a measured split. scripts/tune_split.py writes it, and `--tensor-split @profile.json` reads it. Value
// types; thread-safe.
//
//   {"version": 1, "model": {"file": "model.gguf", "type": "llama 1.2B Q4_K_M"}, "devices": ["CPU0", "CPU1"],
//    "tensor_split": [3, 1], "objective": "generation", "measured": {"generation": 41.5}}
//
// The keys "version", "devices" and "tensor_split" are required. "split_mode" ("tensor", the default, or "layer") is
// optional. In layer mode an entry of "devices" may be a group, "CPU0+CPU1". The other keys describe the origin of the
// profile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/arch/model.h"
#include "models/place/placement.h"

namespace shoal::tools {

struct SplitProfile {
  std::string path;
  std::string model_file, model_type;  ///< empty if the profile does not contain the key
  std::vector<std::string> devices;
  std::vector<double> shares;  ///< one share for each entry of `devices`
  models::SplitMode mode = models::SplitMode::kTensor;

  std::string device_list() const;  ///< in the format of --devices: "CPU0,CPU1"
  std::string ratio() const;        ///< in the format of --tensor-split: "3,1"
};

/// Whether the value of --tensor-split names a profile, such as "@profile.json".
bool names_profile(std::string_view ratio);
/// Reads the profile that `ratio` names: "@" and the path. On an error, throws InvalidArgument. The message contains
/// the file name and an example.
SplitProfile read_split_profile(std::string_view ratio);
SplitProfile parse_split_profile(std::string_view json, std::string_view path);
/// Throws InvalidArgument if the devices or the split mode of the profile differ from `devices` or `mode`. The message
/// contains the profile's value and the requested value.
void check_profile(const SplitProfile& profile, const std::string& devices, models::SplitMode mode);
/// Warns on stderr if the profile was made for another model. Compares the model types, because files may be renamed.
/// If the profile contains no model type, compares the file names.
void warn_of_profile(const SplitProfile& profile, const models::Model& model);

}  // namespace shoal::tools
