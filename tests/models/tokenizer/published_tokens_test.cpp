// Compares the tokenizer with the encoders of the models' publishers, on excerpts of published vocabularies.
// scripts/reference/published_tokens.py writes published_tokens.txt and names the sources.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "models/tokenizer/tokenizer.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace shoal::models {
namespace {

/// One section "pre NAME" of the file.
struct Excerpt {
  test::ByteVocabulary vocabulary;
  std::map<Token, Token> published;  ///< maps each id of the excerpt to the published id
  std::vector<std::pair<std::string, std::vector<Token>>> cases;
};

/// The bytes that the letters represent.
std::string bytes_of(std::string_view letters) {
  static const std::map<std::string, char> bytes = [] {
    std::map<std::string, char> made;
    for (int byte = 0; byte < 256; ++byte)
      made[std::string(letter_of_byte(static_cast<uint8_t>(byte)))] = static_cast<char>(byte);
    return made;
  }();
  std::string text;
  for (size_t at = 0; at < letters.size();) {
    const size_t length = static_cast<unsigned char>(letters[at]) < 0x80 ? 1 : 2;
    text += bytes.at(std::string(letters.substr(at, length)));
    at += length;
  }
  return text;
}

std::map<std::string, Excerpt> read_excerpts() {
  std::ifstream file(SHOAL_SOURCE_DIR "/tests/models/tokenizer/published_tokens.txt");
  std::map<std::string, Excerpt> excerpts;
  Excerpt* excerpt = nullptr;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, first, second;
    words >> what;
    if (what == "pre") {
      words >> first;
      excerpt = &excerpts[first];
      excerpt->vocabulary.pre = first;
    } else if (what == "token") {
      words >> first >> second;
      auto& tokens = excerpt->vocabulary.tokens;
      const auto known = std::find(tokens.begin(), tokens.end(), second);  // single bytes are already in `tokens`
      const auto id =
          known != tokens.end() ? static_cast<Token>(known - tokens.begin()) : excerpt->vocabulary.add(second);
      excerpt->published[id] = std::stoi(first);
    } else if (what == "merge") {
      words >> first >> second;
      excerpt->vocabulary.merges.push_back(first + " " + second);
    } else if (what == "text") {
      words >> first;
      excerpt->cases.push_back({bytes_of(first), {}});
    } else if (what == "ids") {
      for (Token id = 0; words >> id;) excerpt->cases.back().second.push_back(id);
    }
  }
  return excerpts;
}

class PublishedTokens : public testing::TestWithParam<std::string> {};

TEST_P(PublishedTokens, MatchIdsOfPublishers) {
  static const std::map<std::string, Excerpt> excerpts = read_excerpts();
  const Excerpt& excerpt = excerpts.at(GetParam());
  ASSERT_GE(excerpt.cases.size(), 10u);
  test::ByteVocabulary vocabulary = excerpt.vocabulary;
  vocabulary.extra.add<bool>("tokenizer.ggml.add_bos_token", false);
  const Tokenizer tokenizer = vocabulary.tokenizer();
  for (const auto& [text, expected] : excerpt.cases) {
    std::vector<Token> ids = tokenizer.encode(text);
    for (Token& id : ids) {
      const auto found = excerpt.published.find(id);
      id = found == excerpt.published.end() ? -1 : found->second;
    }
    EXPECT_EQ(ids, expected) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTokens, testing::Values("tekken", "gpt-4o", "dbrx", "qwen2", "deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::models
