// Finds the small test models. They are in data/models, or in the build folder if they are stored compressed or made by
// the build. SHOAL_MODELS_DIR names another folder.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace shoal::test {

/// Path of a file such as "tiny-kjv-5m-q8_0.gguf"; empty if it is not found.
inline std::string model_file(const std::string& name) {
  const char* more = std::getenv("SHOAL_MODELS_DIR");
  for (const std::string folder :
       {SHOAL_SOURCE_DIR "/data/models", SHOAL_EXTRACTED_MODELS, more != nullptr ? more : ""}) {
    if (!folder.empty() && std::filesystem::exists(folder + "/" + name)) return folder + "/" + name;
  }
  return {};
}

}  // namespace shoal::test
