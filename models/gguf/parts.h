// A model in several GGUF files: PREFIX-00001-of-00003.gguf and so on. Each part is a whole GGUF file with some of the
// tensors (the first may have none), and says which part of how many it is (split.no from 0, split.count) and how many
// tensors the model has (split.tensors.count); what the model says of itself is in the first. Pure functions.
//
// Errors are InvalidArgument, one line that names the part:
//   "m-00001-of-00003.gguf: part 2 of the model's 3 is missing: m-00002-of-00003.gguf; put all parts in one folder"
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// Where all parts of a model are, in order, from what its first file says; that file alone where it is the whole
/// model. Throws for a later part, for names that do not say where the others are, and for parts that are not there.
std::vector<std::string> part_paths(const GgufFile& first);

/// Throws unless the parts, in this order, make one model: numbers and counts agree, no tensor is in two of them, and
/// none is missing.
void check_parts(std::span<const GgufFile> parts);

}  // namespace shoal::models
