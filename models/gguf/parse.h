// Reads and checks the structure of a GGUF image:
//
//   magic "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | tensor data
//
// The parser checks each number before it uses the number for an allocation or an access. It checks:
// - magic, byte order and version
// - counts and lengths: the rest of the file is large enough for them
// - value types: booleans are 0 or 1; arrays do not contain arrays; general.alignment is a u32, a power of two >= 8
// - keys and tensor names: non-empty, unique, within the format's limits
// - tensors: 1 to 4 positive dimensions, below 2^63 elements and 2^64 bytes, whole quantisation blocks, a known type
// - offsets: aligned, inside the file, without overlap
// The parser does not check the meaning of values. Each function that uses a value checks the meaning of this value.
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

struct GgufContents {
  uint32_t version = 0;
  size_t alignment = 0;
  std::vector<GgufValue> values;    ///< views into the image
  std::vector<GgufTensor> tensors;  ///< `data` of each tensor points into the image
};

/// Throws InvalidArgument if a check fails. `path` appears in messages.
GgufContents parse_gguf(std::span<const std::byte> image, const std::string& path);

}  // namespace shoal::models
