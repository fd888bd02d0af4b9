// A split that was found good, as a file: what `--tensor-split @profile.json` reads and scripts/tune_split.py
// writes. Values; thread-safe.
//
//   {"version": 1, "model": {"file": "model.gguf", "type": "llama 1.2B Q4_K_M"}, "devices": ["CPU0", "CPU1"],
//    "descriptions": ["AMD EPYC, 3 cores", "AMD EPYC, 1 core"], "tensor_split": [3, 1], "objective": "generation",
//    "measured": {"generation": 41.5}}
//
// Version, devices and tensor_split must be there; "split_mode" ("tensor", which is the default, or "layer") may be. In
// layer mode an entry of devices may be a group, "CPU0+CPU1". "descriptions" may say what each device was, groups taken
// apart, as `shoal devices` does: where the devices are others, the program says so. Whatever else there is tells
// people where it came from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "models/arch/model.h"
#include "models/place/placement.h"

namespace shoal::tools {

struct SplitProfile {
  std::string path;
  std::string model_file, model_type;  ///< empty where the file does not say
  std::vector<std::string> devices;
  std::vector<std::string> descriptions;  ///< of each device, groups taken apart; empty where the file does not say
  std::vector<double> shares;             ///< one for each of devices
  models::SplitMode mode = models::SplitMode::kTensor;

  std::string device_list() const;  ///< "CPU0,CPU1", as --devices takes it
  std::string ratio() const;        ///< "3,1", as --tensor-split takes it
};

/// Is the value of --tensor-split the name of a profile, "@profile.json"?
bool names_profile(std::string_view ratio);
/// `ratio`: "@" and the path. Throws InvalidArgument that names the file, what is wrong in it and what is expected.
SplitProfile read_split_profile(std::string_view ratio);
SplitProfile parse_split_profile(std::string_view json, std::string_view path);
/// Throws InvalidArgument that says both when the profile is for other devices than those asked for, or for the other
/// way to split.
void check_profile(const SplitProfile& profile, const std::string& devices, models::SplitMode mode);
/// In a line, that the profile was made for another model; "" where it was not, or does not say. The type decides where
/// there is one: files are renamed. `type`: as `shoal bench` says it; `file`: a path.
std::string other_model(const SplitProfile& profile, const std::string& type, const std::string& file);
/// In a line, that the profile was made for devices that are described otherwise: another machine, or as many cores and
/// threads as these have not got. "" where they are the same, or the profile does not say. `descriptions`: of the
/// profile's devices as they are now.
std::string other_devices(const SplitProfile& profile, const std::vector<std::string>& descriptions);
/// Says either on stderr. `devices`: those of the profile; none where they are simulated.
void warn_of_profile(const SplitProfile& profile, const models::Model& model, std::span<Device* const> devices);

}  // namespace shoal::tools
