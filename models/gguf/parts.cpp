#include "models/gguf/parts.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <regex>

#include "base/error.h"
#include "base/printable.h"

namespace shoal::models {
namespace {

int count_of(const GgufFile& file) {
  return file.get_or<uint16_t>("split.count", 1);
}

std::string part_path(const std::string& prefix, int part, int count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part, count);
}

void require_present(const GgufFile& first, const std::vector<std::string>& paths) {
  constexpr size_t kShown = 3;
  std::vector<size_t> numbers;
  std::vector<std::string> names;
  size_t missing = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (std::filesystem::exists(paths[i]) || ++missing > kShown) continue;
    numbers.push_back(i + 1);
    names.push_back(std::filesystem::path(paths[i]).filename().string());
  }
  const std::string more = missing > kShown ? fmt::format(" and {} more", missing - kShown) : "";
  require<InvalidArgument>(missing == 0, "{}: missing part{} {}{} of {}; missing {}: {}; put all parts in one folder",
                           first.path(), missing == 1 ? "" : "s", fmt::join(numbers, ", "), more, paths.size(),
                           missing == 1 ? "file" : "files", fmt::join(names, ", "));
}

void check_numbers(const GgufFile& part, size_t index, int count) {
  const int number = part.get<uint16_t>("split.no");
  require<InvalidArgument>(count_of(part) == count,
                           "{}: is a part of a model with {} parts, not {}; replace the file by the right part",
                           part.path(), count_of(part), count);
  require<InvalidArgument>(number == static_cast<int>(index),
                           "{}: is part {} by its metadata, but part {} by its name; a part was renamed or copied: "
                           "download part {} again",
                           part.path(), number + 1, index + 1, index + 1);
}

}  // namespace

std::vector<std::string> part_paths(const GgufFile& first) {
  const int count = count_of(first);
  if (count <= 1) return {first.path()};
  static const std::regex form(R"((.*)-(\d{5})-of-(\d{5})\.gguf)");
  std::smatch found;
  const bool named = std::regex_match(first.path(), found, form);
  const int number = first.get<uint16_t>("split.no");
  const std::string prefix = named ? found[1].str() : "PREFIX";
  require<InvalidArgument>(number == 0, "{}: is part {} of the {} parts of a model; open the first: {}", first.path(),
                           number + 1, count, part_path(prefix, 1, count));
  require<InvalidArgument>(named && std::stoi(found[2]) == 1 && std::stoi(found[3]) == count,
                           "{}: is the first of the {} parts of a model, but the file name does not say so; rename "
                           "the parts to {} ... {}, in one folder",
                           first.path(), count, part_path(prefix, 1, count), part_path(prefix, count, count));
  std::vector<std::string> paths;
  for (int part = 1; part <= count; ++part) paths.push_back(part_path(prefix, part, count));
  require_present(first, paths);
  return paths;
}

void check_parts(std::span<const GgufFile> parts) {
  const auto wanted = parts.front().get<int32_t>("split.tensors.count");
  std::unordered_map<std::string_view, const GgufFile*> owners;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GgufFile& part = parts[i];
    check_numbers(part, i, static_cast<int>(parts.size()));
    const auto tensors = part.get<int32_t>("split.tensors.count");
    require<InvalidArgument>(tensors == wanted,
                             "{}: is a part of a model with {} tensors, but the first part names {} tensors; replace "
                             "the file by the right part",
                             part.path(), tensors, wanted);
    for (const GgufTensor& tensor : part.tensors()) {
      const auto [owner, added] = owners.emplace(tensor.name, &part);
      require<InvalidArgument>(added, "{}: tensor '{}' is also in {}; one file is of another model: replace that file",
                               part.path(), printable(tensor.name), owner->second->path());
    }
  }
  require<InvalidArgument>(static_cast<int64_t>(owners.size()) == wanted,
                           "{}: the {} parts together have {} tensors, but the model has {}; a part is of another "
                           "model: download all parts again",
                           parts.front().path(), parts.size(), owners.size(), wanted);
}

}  // namespace shoal::models
