#include "tools/report/model_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "tools/cli/model_text.h"
#include "tools/cli/output.h"

namespace shoal::tools {
namespace {

using models::GgufFile;
using models::GgufType;

constexpr size_t kTemplateLines = 5, kLineLength = 100, kListed = 8;

struct NumberKey {
  const char* name;
  const char* key;  ///< after the architecture
};
constexpr std::array kNumberKeys = std::to_array<NumberKey>({
    {"layers", "block_count"},
    {"embedding", "embedding_length"},
    {"feed-forward", "feed_forward_length"},
    {"heads", "attention.head_count"},
    {"KV heads", "attention.head_count_kv"},
    {"head size", "attention.key_length"},
    {"experts", "expert_count"},
    {"experts used", "expert_used_count"},
    {"expert feed-forward", "expert_feed_forward_length"},
    {"sliding window", "attention.sliding_window"},
    {"context", "context_length"},
});

std::string text_or_nothing(const GgufFile& file, std::string_view key) {
  const models::GgufValue* value = file.find_value(key);
  return value != nullptr && value->type == GgufType::kString ? file.get<std::string>(key) : std::string();
}

template <class T>
std::vector<int64_t> widened(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

std::vector<int64_t> numbers_of(const GgufFile& file, const std::string& key) {
  const models::GgufValue* value = file.find_value(key);
  if (value == nullptr) return {};
  const bool array = value->type == GgufType::kArray;
  if (value->element == GgufType::kU32) {
    return array ? widened(file.get_array<uint32_t>(key)) : std::vector<int64_t>{file.get<uint32_t>(key)};
  }
  if (value->element == GgufType::kI32) {
    return array ? widened(file.get_array<int32_t>(key)) : std::vector<int64_t>{file.get<int32_t>(key)};
  }
  return {};
}

std::vector<TypeUse> types_of(const GgufFile& file) {
  std::map<DType, TypeUse> uses;
  for (const models::GgufTensor& tensor : file.tensors()) {
    TypeUse& use = uses[tensor.dtype];
    use.dtype = tensor.dtype;
    ++use.tensors;
    use.bytes += tensor.bytes;
  }
  std::vector<TypeUse> types;
  for (const auto& [dtype, use] : uses) types.push_back(use);
  std::stable_sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return types;
}

/// Whatever the file calls tokenizer.ggml.ROLE_token_id.
void read_tokens(const GgufFile& file, ModelInfo& info) {
  constexpr std::string_view kBefore = "tokenizer.ggml.", kAfter = "_token_id", kTokens = "tokenizer.ggml.tokens";
  const models::GgufValue* tokens = file.find_value(kTokens);
  std::vector<std::string> texts;
  if (tokens != nullptr && tokens->type == GgufType::kArray && tokens->element == GgufType::kString) {
    texts = file.get_array<std::string>(kTokens);
  }
  info.vocabulary = static_cast<int64_t>(texts.size());
  for (const models::GgufValue& value : file.values()) {
    if (!value.key.starts_with(kBefore) || !value.key.ends_with(kAfter) || value.type != GgufType::kU32) continue;
    SpecialToken token;
    token.role = value.key.substr(kBefore.size(), value.key.size() - kBefore.size() - kAfter.size());
    token.id = file.get<uint32_t>(value.key);
    if (token.id < info.vocabulary) token.text = texts[static_cast<size_t>(token.id)];
    info.special.push_back(std::move(token));
  }
}

/// "32", "4 to 8 (by layer)"
std::string text_of(const ModelNumber& number) {
  const auto [least, most] = std::minmax_element(number.values.begin(), number.values.end());
  return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}, by layer", *least, *most);
}

std::string first_lines(const std::string& text) {
  std::string out;
  size_t begin = 0;
  for (size_t line = 0; line < kTemplateLines && begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool cut = end - begin > kLineLength;
    out +=
        fmt::format("\n    {}{}", escaped(text.substr(begin, std::min(end - begin, kLineLength))), cut ? " ..." : "");
    begin = end + 1;
  }
  return begin < text.size() ? out + "\n    ..." : out;
}

std::string types_text(const ModelInfo& info) {
  std::vector<std::string> parts;
  for (const TypeUse& type : info.types) {
    parts.push_back(fmt::format("{} {} in {}", name_of(type.dtype), format_bytes(type.bytes), type.tensors));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string special_text(const ModelInfo& info) {
  std::vector<std::string> parts;
  for (const SpecialToken& token : info.special) {
    parts.push_back(fmt::format("{} {} {}", printable(token.role), token.id, printable(token.text)));
  }
  if (parts.size() > kListed) parts.resize(kListed), parts.emplace_back("...");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

ModelInfo describe_file(const GgufFile& file) {
  ModelInfo info;
  info.architecture = text_or_nothing(file, "general.architecture");
  info.name = text_or_nothing(file, "general.name");
  info.files = file.file_count(), info.bytes = file.file_bytes();
  info.tensors = static_cast<int64_t>(file.tensors().size());
  info.parameters = count_parameters(file);
  info.tensor_bytes = file.tensor_bytes();
  for (const NumberKey& number : kNumberKeys) {
    std::vector<int64_t> values = numbers_of(file, fmt::format("{}.{}", info.architecture, number.key));
    if (!values.empty()) info.numbers.push_back({number.name, number.key, std::move(values)});
  }
  info.types = types_of(file);
  info.tokenizer = text_or_nothing(file, "tokenizer.ggml.model");
  info.pre = text_or_nothing(file, "tokenizer.ggml.pre");
  read_tokens(file, info);
  if (std::string text = text_or_nothing(file, "tokenizer.chat_template"); !text.empty()) info.chat_template = text;
  return info;
}

std::string to_text(const ModelInfo& info) {
  std::string out;
  const auto add = [&out](std::string_view what, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<20} {}\n", what, value);
  };
  add("architecture", info.architecture.empty() ? "not named" : printable(info.architecture));
  add("name", printable(info.name));
  add("size", fmt::format("{} in {} file{}", format_bytes(info.bytes), info.files, info.files == 1 ? "" : "s"));
  const double bits = static_cast<double>(info.tensor_bytes) * 8 / std::max(1.0, static_cast<double>(info.parameters));
  add("parameters",
      fmt::format("{} of {:.2f} bits in {} tensors", short_count(info.parameters, 2, " "), bits, info.tensors));
  add("types", types_text(info));
  for (const ModelNumber& number : info.numbers) add(number.name, text_of(number));
  add("tokenizer", info.tokenizer.empty()
                       ? "none"
                       : fmt::format("{}{}, {} tokens", printable(info.tokenizer),
                                     info.pre.empty() ? "" : " " + printable(info.pre), info.vocabulary));
  add("special tokens", special_text(info));
  add("chat template", !info.chat_template ? "none"
                                           : fmt::format("{} characters{}", info.chat_template->size(),
                                                         first_lines(*info.chat_template)));
  return out;
}

nlohmann::json to_json(const ModelInfo& info) {
  nlohmann::json numbers = nlohmann::json::object(), types = nlohmann::json::object(), special = numbers;
  for (const ModelNumber& number : info.numbers) {
    const bool alike = std::count(number.values.begin(), number.values.end(), number.values.front()) ==
                       static_cast<ptrdiff_t>(number.values.size());
    numbers[number.key] = alike ? nlohmann::json(number.values.front()) : nlohmann::json(number.values);
  }
  for (const TypeUse& type : info.types) {
    types[std::string(name_of(type.dtype))] = {{"tensors", type.tensors}, {"bytes", type.bytes}};
  }
  for (const SpecialToken& token : info.special) special[token.role] = {{"id", token.id}, {"text", token.text}};
  return {{"architecture", info.architecture},
          {"name", info.name},
          {"files", info.files},
          {"bytes", info.bytes},
          {"tensors", info.tensors},
          {"tensor_bytes", info.tensor_bytes},
          {"parameters", info.parameters},
          {"numbers", std::move(numbers)},
          {"types", std::move(types)},
          {"tokenizer", {{"model", info.tokenizer}, {"pre", info.pre}, {"tokens", info.vocabulary}}},
          {"special_tokens", std::move(special)},
          {"chat_template", info.chat_template ? nlohmann::json(*info.chat_template) : nlohmann::json()}};
}

}  // namespace shoal::tools
