// Compares vocabularies of published models with the ids of the packages `tokenizers` and `sentencepiece`.
// scripts/reference/vocabularies.py writes these ids next to the vocabularies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "models/tokenizer/tokenizer.h"

namespace shoal::models {
namespace {

const std::filesystem::path kFolder = SHOAL_SOURCE_DIR "/build/vocabularies";

struct Case {
  std::string text;
  std::vector<Token> ids;
};

uint32_t read_count(std::istream& file) {
  uint32_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  return count;
}

std::vector<Case> read_cases(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Case> cases(read_count(file));
  for (Case& c : cases) {
    c.text.resize(read_count(file));
    file.read(c.text.data(), static_cast<std::streamsize>(c.text.size()));
    c.ids.resize(read_count(file));
    file.read(reinterpret_cast<char*>(c.ids.data()), static_cast<std::streamsize>(c.ids.size() * sizeof(Token)));
  }
  EXPECT_TRUE(file.good()) << path;
  return cases;
}

class Vocabulary : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path(".cases")))
      GTEST_SKIP() << "no " << path(".cases") << "; run build/venv/bin/python scripts/reference/vocabularies.py";
    tokenizer_.emplace(GgufFile(path(".gguf")));
  }

  std::string path(const char* ending) const { return (kFolder / (GetParam() + ending)).string(); }

  /// Removes the BOS and EOS tokens that the flags of the file request.
  std::vector<Token> without_ends(std::vector<Token> ids) const {
    if (tokenizer_->adds_bos()) ids.erase(ids.begin());
    if (tokenizer_->adds_eos()) ids.pop_back();
    return ids;
  }

  std::optional<Tokenizer> tokenizer_;
};

TEST_P(Vocabulary, IdsMatchReferenceTokenizersAndDecodeToText) {
  const std::vector<Case> cases = read_cases(path(".cases"));
  ASSERT_GE(cases.size(), 1000u);
  int wrong = 0;
  for (const Case& c : cases) {
    const std::vector<Token> ids = tokenizer_->encode(c.text);
    if (without_ends(ids) != c.ids && ++wrong <= 5) {
      EXPECT_EQ(without_ends(ids), c.ids) << testing::PrintToString(c.text);
    }
    const std::string text = tokenizer_->decode(ids);
    if (text == c.text) continue;
    // Decoding turns U+2581 into a space.
    ASSERT_NE(c.text.find(kSpacePiece), std::string::npos) << testing::PrintToString(c.text);
    ASSERT_EQ(text, replace_all(c.text, kSpacePiece, " "));
  }
  EXPECT_EQ(wrong, 0) << "of " << cases.size();
}

/// CPU time of encoding, in seconds.
double seconds_of(const Tokenizer& tokenizer, const std::string& text) {
  const std::clock_t start = std::clock();
  tokenizer.encode(text);
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// The test encodes a text and then a text that is four times as long. With quadratic time, the second text would take
// sixteen times as long.
TEST_P(Vocabulary, EncodingTimeIsLinearInTextLength) {
  for (const char* unit : {"a", " ", "\n", "1", "漢", "it's ", "\xff"}) {
    const std::string_view text = unit;
    const auto repeated = [&](size_t bytes) {
      std::string made;
      while (made.size() < bytes) made += text;
      return made;
    };
    const std::string quarter = repeated(64 << 10), whole = repeated(256 << 10);
    double ratio = 1e9;
    for (int attempt = 0; attempt < 3 && ratio > 10; ++attempt) {
      ratio = std::min(ratio, seconds_of(*tokenizer_, whole) / (seconds_of(*tokenizer_, quarter) + 1e-3));
    }
    EXPECT_LE(ratio, 10) << testing::PrintToString(unit);
  }
}

INSTANTIATE_TEST_SUITE_P(OfModels, Vocabulary,
                         testing::Values("command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-v3",
                                         "gemma-4", "glm4", "gpt-2", "gpt-4o", "kimi-k2", "llama-bpe", "llama-spm",
                                         "minicpm5", "mpt", "phi-3", "qwen2", "qwen35", "refact", "seed-coder",
                                         "starcoder", "superbpe", "tekken", "tiny_aya", "viking", "youtu"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::models
