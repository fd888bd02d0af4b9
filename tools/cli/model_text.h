// What a model is called in tables: its architecture, size and type.
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

}  // namespace shoal::tools
