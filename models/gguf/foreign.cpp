#include "models/gguf/foreign.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace shoal::models {
namespace {

bool is_web_page(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of("\xef\xbb\xbf \t\r\n"), text.size()));
  std::string begin(text.substr(0, 14));
  std::ranges::transform(begin, begin.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return begin == "<!doctype html" || begin.starts_with("<html") || begin.starts_with("<?xml");
}

/// A safetensors file begins with the length of a JSON object, followed by the object.
bool is_safetensors(std::string_view text, size_t file_bytes) {
  uint64_t length = 0;
  if (text.size() < sizeof length + 2) return false;
  std::memcpy(&length, text.data(), sizeof length);
  if (length < 2 || length > file_bytes - sizeof length || text[8] != '{') return false;
  const size_t next = text.find_first_not_of(" \t\r\n", 9);
  return next != std::string_view::npos && (text[next] == '"' || text[next] == '}');
}

std::string text_or_nothing(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find_value(key);
  return value != nullptr && value->type == GgufType::kString ? file.get<std::string>(key) : "";
}

}  // namespace

std::string foreign_format(std::span<const std::byte> image) {
  constexpr size_t kRead = 1024;
  const std::string_view text(reinterpret_cast<const char*>(image.data()), std::min(image.size(), kRead));
  if (text.starts_with("GGUF")) return "";
  if (text.starts_with("version https://git-lfs.github.com/")) {
    return "is a Git LFS pointer and not the model; fetch the model with 'git lfs pull', or download it again";
  }
  if (is_web_page(text)) {
    return "is a web page and not a model; read the page to see why the download failed, then download the model again";
  }
  if (is_safetensors(text, image.size())) {
    return "has the format safetensors; convert it to GGUF (convert_hf_to_gguf.py of llama.cpp), or download the model "
           "as GGUF";
  }
  return "";
}

std::string foreign_content(const GgufFile& file) {
  const std::string type = text_or_nothing(file, "general.type");
  if (type == "adapter") {
    return "is an adapter (LoRA) and not a model; merge the adapter into its base model (llama-export-lora of "
           "llama.cpp), and use the merged model";
  }
  if (type == "imatrix") return "is an importance matrix and not a model; use the file of the model";
  if (type == "mmproj" || text_or_nothing(file, "general.architecture") == "clip") {
    return "is a projector for images or sound and not a language model; use the file of the language model";
  }
  if (file.tensors().empty() && file.has("tokenizer.ggml.tokens")) {
    return "has a vocabulary and no weights; use the file of the model";
  }
  return "";
}

}  // namespace shoal::models
