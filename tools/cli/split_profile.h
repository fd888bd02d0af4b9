// A split that was found good, as a file: what `--tensor-split @profile.json` reads and scripts/tune_split.py
// writes. Values; thread-safe.
//
//   {"version": 1, "model": {"file": "model.gguf", "type": "llama 1.2B Q4_K_M"}, "devices": ["CPU0", "CPU1"],
//    "tensor_split": [3, 1], "objective": "generation", "measured": {"generation": 41.5}}
//
// Version, devices and tensor_split must be there; "split_mode" ("tensor", which is the default, or "layer") may be. In
// layer mode an entry of devices may be a group, "CPU0+CPU1". The other fields describe the profile's origin.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/arch/model.h"
#include "models/place/placement.h"

namespace shoal::tools {

struct SplitProfile {
  std::string path;
  std::string model_file, model_type;  ///< empty where the file does not say
  std::vector<std::string> devices;
  std::vector<double> shares;  ///< one for each of devices
  models::SplitMode mode = models::SplitMode::kTensor;

  std::string device_list() const;  ///< "CPU0,CPU1", as --devices takes it
  std::string ratio() const;        ///< "3,1", as --tensor-split takes it
};

/// Is the value of --tensor-split the name of a profile, "@profile.json"?
bool names_profile(std::string_view ratio);
/// `ratio`: "@" and the path. Throws InvalidArgument that names the file and shows an example.
SplitProfile read_split_profile(std::string_view ratio);
SplitProfile parse_split_profile(std::string_view json, std::string_view path);
/// Throws InvalidArgument that says both when the profile is for other devices than those asked for, or for the other
/// way to split.
void check_profile(const SplitProfile& profile, const std::string& devices, models::SplitMode mode);
/// Warns on stderr if the profile was made for another model. The type decides if the profile has one: files are
/// renamed.
void warn_of_profile(const SplitProfile& profile, const models::Model& model);

}  // namespace shoal::tools
