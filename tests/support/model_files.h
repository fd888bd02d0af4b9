// Where the small models for tests are: data/models, the build folder for what is kept compressed there or made by the
// build, or the folder that SHOAL_MODELS_DIR names.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace shoal::test {

/// Path of a file such as "tiny-kjv-5m-q8_0.gguf"; empty when it is nowhere.
inline std::string model_file(const std::string& name) {
  const char* more = std::getenv("SHOAL_MODELS_DIR");
  for (const std::string folder :
       {SHOAL_SOURCE_DIR "/data/models", SHOAL_EXTRACTED_MODELS, more != nullptr ? more : ""}) {
    if (!folder.empty() && std::filesystem::exists(folder + "/" + name)) return folder + "/" + name;
  }
  return {};
}

}  // namespace shoal::test
