// Descriptions of models for tables (architecture, size and type), and the parts of a model file that have no effect.
#pragma once

#include <cstdint>
#include <string>

#include "models/arch/model.h"

namespace shoal::tools {

/// A count with `digits` digits after the decimal point: "8.03 B" for 8030261312, 2 digits and the gap " ".
std::string short_count(int64_t count, int digits, const char* gap);
/// "llama 4.9M Q8_0": architecture, number of parameters and data type. If the file names no type, the result contains
/// the data type whose tensors have the most bytes.
std::string describe_model(const models::Model& model);
int64_t count_parameters(const models::GgufFile& file);

/// Keys and tensors of the file that have no effect; "" if there are none. Names are escaped.
struct Ignored {
  std::string keys;     ///< at most eight keys and the number of other keys: "llama.attention.foo, llama.rope.bar"
  std::string tensors;  ///< groups of tensors: "mm.*, v.*"
};
Ignored ignored_of(const models::Model& model);
/// Prints one line on stderr for ignored keys and one line for ignored tensors.
void warn_of_ignored(const models::Model& model);

}  // namespace shoal::tools
