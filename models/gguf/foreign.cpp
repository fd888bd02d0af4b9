#include "models/gguf/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/printable.h"

namespace shoal::models {
namespace {

constexpr std::string_view kConvert =
    "convert it to GGUF (convert_hf_to_gguf.py of llama.cpp), or download the model as GGUF";

struct Magic {
  std::string_view bytes;
  size_t at;
  std::string_view name;
};

/// The oldest formats of llama.cpp, whose magic numbers read backwards.
constexpr Magic kOld[]{{"tjgg", 0, "ggjt"}, {"lmgg", 0, "ggml"}, {"fmgg", 0, "ggmf"}, {"algg", 0, "ggla"}};
constexpr Magic kArchives[]{{"PK\x03\x04", 0, "zip"}, {"ustar", 257, "tar"},           {"\x1f\x8b", 0, "gzip"},
                            {"\xfd\x37zXZ", 0, "xz"}, {"\x28\xb5\x2f\xfd", 0, "zstd"}, {"BZh", 0, "bzip2"},
                            {"7z\xbc\xaf", 0, "7z"}};

template <size_t N>
std::string_view magic_name(const Magic (&magics)[N], std::string_view text) {
  for (const Magic& magic : magics) {
    if (text.size() > magic.at && text.substr(magic.at).starts_with(magic.bytes)) return magic.name;
  }
  return "";
}

bool is_web_page(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of("\xef\xbb\xbf \t\r\n"), text.size()));
  std::string begin(text.substr(0, 14));
  std::ranges::transform(begin, begin.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return begin == "<!doctype html" || begin.starts_with("<html") || begin.starts_with("<?xml");
}

/// The length of a JSON object, and the object.
bool is_safetensors(std::string_view text, size_t file_bytes) {
  uint64_t length = 0;
  if (text.size() < sizeof length + 2) return false;
  std::memcpy(&length, text.data(), sizeof length);
  if (length < 2 || length > file_bytes - sizeof length || text[8] != '{') return false;
  const size_t next = text.find_first_not_of(" \t\r\n", 9);
  return next != std::string_view::npos && (text[next] == '"' || text[next] == '}');
}

/// A pickle of protocol 2 to 5, alone or in a zip archive.
bool is_pytorch(std::string_view text) {
  const bool is_pickle = text.size() > 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;
  return is_pickle || (text.starts_with("PK\x03\x04") && text.find("/data.pkl") != std::string_view::npos);
}

/// The whole file is text, such as the answer of a server that has no such file.
bool is_short_text(std::string_view text) {
  constexpr size_t kLeast = 4;
  const auto is_control = [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\r' && c != '\t') || c == 0x7f; };
  return text.size() >= kLeast && std::ranges::none_of(text, is_control);
}

std::string_view text_or_nothing(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find_value(key);
  if (value == nullptr || value->type != GgufType::kString) return "";
  uint64_t length = 0;
  std::memcpy(&length, value->data, sizeof length);
  return {reinterpret_cast<const char*>(value->data) + sizeof length, length};
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
    return "is a web page and not a model; look at it to see why the download failed, then download the model again";
  }
  if (const std::string_view name = magic_name(kOld, text); !name.empty()) {
    return fmt::format("has the old format {}, which GGUF replaced; download the model as GGUF, or convert it again",
                       name);
  }
  if (is_safetensors(text, image.size())) return fmt::format("has the format safetensors; {}", kConvert);
  if (is_pytorch(text)) return fmt::format("is a checkpoint of PyTorch; {}", kConvert);
  if (const std::string_view name = magic_name(kArchives, text); !name.empty()) {
    return fmt::format("is an archive ({}); unpack it, and name the GGUF file inside", name);
  }
  if (image.size() <= kRead && is_short_text(text)) {
    constexpr size_t kShown = 60;
    return fmt::format("is a text (\"{}\") and not a model; name the file of the model, or download it again",
                       printable(text, kShown));
  }
  return "";
}

std::string foreign_content(const GgufFile& file) {
  const std::string_view type = text_or_nothing(file, "general.type");
  if (type == "adapter") {
    return "is an adapter (LoRA) and not a model; merge it into its model (llama-export-lora of llama.cpp), and use "
           "that";
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
