// What a model is called in tables: its architecture, size and type; and what its file has that counts for nothing.
#pragma once

#include <cstdint>
#include <string>

#include "models/arch/model.h"

namespace shoal::tools {

/// 8030261312, 2, " " -> "8.03 B".
std::string short_count(int64_t count, int digits, const char* gap);
/// "llama 4.9M Q8_0": architecture, parameters, what the file says it is or what most of it is.
std::string describe_model(const models::Model& model);
int64_t count_parameters(const models::GgufFile& file);

/// Which keys and tensors of the file have no effect; "" where there are none. Names are escaped.
struct Ignored {
  std::string keys;     ///< "llama.attention.foo, llama.rope.bar"; the first eight
  std::string tensors;  ///< "mm.*, v.*"
};
Ignored ignored_of(const models::Model& model);
/// One line on stderr for each of the two.
void warn_of_ignored(const models::Model& model);

}  // namespace shoal::tools
