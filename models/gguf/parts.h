// A model in several GGUF files: PREFIX-00001-of-00003.gguf and so on. Each part is a complete GGUF file with some of
// the tensors. The first part may contain no tensors. The keys of each part state the number of the part (split.no,
// from 0), the number of parts (split.count) and the number of tensors in the model (split.tensors.count). Only the
// first part has the model's metadata. Pure functions.
//
// Errors are InvalidArgument. Each message is one line that names the part:
//   "m-00001-of-00003.gguf: missing part 2 of 3; missing file: m-00002-of-00003.gguf; put all parts in one folder"
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// Derives the paths of all parts of a model, in order, from the path of its first file. Returns only one path for a
/// model in one file. Throws if `first` is a later part, if the name of `first` has no part numbers, or if parts are
/// missing.
std::vector<std::string> part_paths(const GgufFile& first);

/// Throws InvalidArgument if the parts, in this order, do not form one model. In a model, the part numbers and tensor
/// counts agree, and each tensor is in exactly one part.
void check_parts(std::span<const GgufFile> parts);

}  // namespace shoal::models
