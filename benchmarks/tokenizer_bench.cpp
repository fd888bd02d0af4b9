// Times encoding, in bytes of text per second. The vocabularies are in data/models and in build/vocabularies, which
// scripts/reference/vocabularies.py creates. The texts are English (docs/*.md) and C++ (models/*/*.cpp). The benchmark
// verifies that decoding restores the text.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace shoal::models {
namespace {

/// Files with this extension in the folder `name` of the checkout and in subfolders of this folder, sorted by path.
std::vector<std::filesystem::path> files_below(const char* name, const char* extension) {
  const std::filesystem::path folder = std::filesystem::path(SHOAL_SOURCE_DIR) / name;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == extension) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string text_of(const char* folder, const char* extension) {
  std::string text;
  for (const auto& path : files_below(folder, extension)) {
    std::ifstream file(path);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return replace_all(text, kSpacePiece, "");  // some tokenizers write a space as kSpacePiece
}

void encode(benchmark::State& state, const std::string& vocabulary, const std::string& text) {
  const Tokenizer tokenizer{GgufFile(vocabulary)};
  const std::vector<Token> ids = tokenizer.encode(text);
  if (text.empty() || tokenizer.decode(ids) != text) return state.SkipWithError("decoding does not restore the text");
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text).data());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

const bool registered = [] {
  const std::string english = text_of("docs", ".md"), code = text_of("models", ".cpp");
  for (const char* folder : {"data/models", "build/vocabularies"}) {
    for (const auto& path : files_below(folder, ".gguf")) {
      if (path.parent_path().filename() == "package") continue;
      const std::string file = path.string(), name = "encode/" + path.stem().string();
      benchmark::RegisterBenchmark((name + "/english").c_str(), encode, file, english);
      benchmark::RegisterBenchmark((name + "/code").c_str(), encode, file, code);
    }
  }
  return true;
}();

}  // namespace
}  // namespace shoal::models
