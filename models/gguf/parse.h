// Reads and checks the structure of a GGUF image:
//
//   magic "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | tensor data
//
// Checked before anything is allocated or used: magic, byte order, version; counts and lengths against the bytes that
// follow; value types, booleans (0 or 1), no arrays of arrays; keys and tensor names non-empty, within the format's
// limits and unique; general.alignment a u32 power of two from 8 on; 1 to 4 positive dimensions whose product, and
// whose bytes, fit in 63 bits; whole quantisation blocks; a known tensor type; offsets aligned, inside the file, not
// overlapping. What keys mean is left to their readers. Pure functions; thread-safe.
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
  std::vector<GgufTensor> tensors;  ///< data points into the image
};

/// Throws InvalidArgument; `path` stands in messages.
GgufContents parse_gguf(std::span<const std::byte> image, const std::string& path);

}  // namespace shoal::models
