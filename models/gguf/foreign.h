// Recognises files that are not language models. A file in a format other than GGUF is recognised by its first bytes. A
// GGUF file is recognised by its metadata. The functions return one sentence that names the content of the file and a
// remedy. Without these checks, the error would only name the first invalid byte or the first missing key. Pure
// functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// Describes the format of a file that is not GGUF: "is a Git LFS pointer and not the model; ...". Returns "" if the
/// format is unknown.
std::string foreign_format(std::span<const std::byte> image);

/// Describes a GGUF file that holds only an adapter, an importance matrix, a projector or a vocabulary. Returns "" for
/// a language model.
std::string foreign_content(const GgufFile& file);

}  // namespace shoal::models
