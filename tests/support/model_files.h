// Finds the small test models in data/models. The build folder contains models that the build decompresses or creates.
// SHOAL_MODELS_DIR is an additional folder.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace shoal::test {

/// Path of a file such as "tiny-kjv-5m-q8_0.gguf"; empty if no folder contains the file.
inline std::string model_file(const std::string& name) {
  const char* more = std::getenv("SHOAL_MODELS_DIR");
  for (const std::string folder :
       {SHOAL_SOURCE_DIR "/data/models", SHOAL_EXTRACTED_MODELS, more != nullptr ? more : ""}) {
    if (!folder.empty() && std::filesystem::exists(folder + "/" + name)) return folder + "/" + name;
  }
  return {};
}

}  // namespace shoal::test
