// Files that are no models: of other formats, by their first bytes, and GGUF files with something else inside. Each is
// named in one sentence with a remedy, instead of the first detail that a reader stumbles over. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// "is a Git LFS pointer and not the model; ...": the format of a file that is no GGUF. "" if it is none of those
/// known.
std::string foreign_format(std::span<const std::byte> image);

/// The same for a GGUF file that holds an adapter, an importance matrix, a projector or a vocabulary alone. "" for
/// models.
std::string foreign_content(const GgufFile& file);

}  // namespace shoal::models
