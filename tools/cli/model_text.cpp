#include "tools/cli/model_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/printable.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

/// A value of general.file_type that names a mix of data types.
struct FileType {
  uint32_t number;
  const char* name;
};
constexpr std::array kFileTypes = std::to_array<FileType>({
    {0, "F32"},     {1, "F16"},     {2, "Q4_0"},       {3, "Q4_1"},    {7, "Q8_0"},     {8, "Q5_0"},
    {9, "Q5_1"},    {10, "Q2_K"},   {11, "Q3_K_S"},    {12, "Q3_K_M"}, {13, "Q3_K_L"},  {14, "Q4_K_S"},
    {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},    {18, "Q6_K"},   {19, "IQ2_XXS"}, {20, "IQ2_XS"},
    {21, "Q2_K_S"}, {22, "IQ3_XS"}, {23, "IQ3_XXS"},   {24, "IQ1_S"},  {25, "IQ4_NL"},  {26, "IQ3_S"},
    {27, "IQ3_M"},  {28, "IQ2_S"},  {29, "IQ2_M"},     {30, "IQ4_XS"}, {31, "IQ1_M"},   {32, "BF16"},
    {36, "TQ1_0"},  {37, "TQ2_0"},  {38, "MXFP4_MOE"}, {39, "NVFP4"},  {40, "Q1_0"},    {41, "Q2_0"},
});

/// The data type whose tensors have the most bytes.
DType main_dtype(const models::Model& model) {
  std::map<DType, size_t> bytes;
  for (const models::GgufTensor& tensor : model.file.tensors()) bytes[tensor.dtype] += tensor.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::kF32 : most->first;
}

std::string file_type(const models::Model& model) {
  const models::GgufValue* value = model.file.find_value("general.file_type");
  if (value != nullptr && value->type == models::GgufType::kU32) {
    const uint32_t number = model.file.get<uint32_t>("general.file_type");
    for (const FileType& type : kFileTypes) {
      if (type.number == number) return type.name;
    }
  }
  return upper(name_of(main_dtype(model)));
}

}  // namespace

std::string short_count(int64_t count, int digits, const char* gap) {
  const double value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.{}f}{}B", value / 1e9, digits, gap);
  if (value >= 1e6) return fmt::format("{:.{}f}{}M", value / 1e6, digits, gap);
  return fmt::format("{:.{}f}{}K", value / 1e3, digits, gap);
}

std::string describe_model(const models::Model& model) {
  return escaped(fmt::format("{} {} {}", model.hparams.architecture, short_count(count_parameters(model.file), 1, ""),
                             file_type(model)));
}

Ignored ignored_of(const models::Model& model) {
  constexpr size_t kListed = 8;
  Ignored ignored;
  if (const std::vector<std::string>& keys = model.hparams.unread_keys; !keys.empty()) {
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(keys.size(), kListed); ++i) names.push_back(printable(keys[i]));
    const std::string more = keys.size() > kListed ? fmt::format(" and {} more", keys.size() - kListed) : "";
    ignored.keys = fmt::format("{}{}", fmt::join(names, ", "), more);
  }
  if (!model.ignored_prefixes.empty()) ignored.tensors = fmt::format("{}*", fmt::join(model.ignored_prefixes, "*, "));
  return ignored;
}

void warn_of_ignored(const models::Model& model) {
  const Ignored ignored = ignored_of(model);
  if (!ignored.keys.empty()) {
    warn(fmt::format("{}: unknown keys are ignored, so answers may be wrong: {}", model.file.path(), ignored.keys));
  }
  if (!ignored.tensors.empty()) {
    warn(fmt::format("{}: tensors for images, sound and draft heads are ignored: {}", model.file.path(),
                     ignored.tensors));
  }
}

int64_t count_parameters(const models::GgufFile& file) {
  int64_t count = 0;
  for (const models::GgufTensor& tensor : file.tensors()) {
    count += tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  }
  return count;
}

}  // namespace shoal::tools
