// What a model file says of itself, whether or not this program can run it. Keys of an unexpected type count as absent:
// the file is described, not used.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::tools {

/// A number of the model, or one for each layer.
struct ModelNumber {
  std::string name;             ///< "heads"
  std::string key;              ///< in the file, after the architecture: "attention.head_count"
  std::vector<int64_t> values;  ///< one, or as many as the file has
};

struct TypeUse {
  DType dtype = DType::kF32;
  int64_t tensors = 0;
  size_t bytes = 0;
};

struct SpecialToken {
  std::string role;  ///< "bos"
  int64_t id = 0;
  std::string text;
};

struct ModelInfo {
  std::string architecture, name;  ///< "" where the file does not say
  size_t files = 1, bytes = 0;     ///< of all files
  int64_t tensors = 0, parameters = 0;
  size_t tensor_bytes = 0;
  std::vector<ModelNumber> numbers;  ///< layers, sizes, heads, context: those that the file has
  std::vector<TypeUse> types;        ///< those with most bytes first
  std::string tokenizer, pre;        ///< kinds, as the file names them; "": none
  int64_t vocabulary = 0;
  std::vector<SpecialToken> special;
  std::optional<std::string> chat_template;
};

ModelInfo describe_file(const models::GgufFile& file);

/// Two columns: what, and what it is. Text from the file is escaped.
std::string to_text(const ModelInfo& info);
nlohmann::json to_json(const ModelInfo& info);

}  // namespace shoal::tools
