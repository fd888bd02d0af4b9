// Small vocabularies for single tests, as GGUF files in memory. SentencePiece vocabularies have scores. Byte-level BPE
// vocabularies have merges.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/support/gguf_writer.h"

namespace shoal::test {

inline models::Tokenizer tokenizer_of(const Bytes& image) {
  return models::Tokenizer(models::GgufFile("vocabulary", image));
}

// Returns the error that the tokenizer reports for a file, or "" if the tokenizer accepts the file.
inline std::string error_of(const Bytes& image) {
  try {
    tokenizer_of(image);
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("vocabulary: "));
    return error.what();
  }
  return "";
}

// A vocabulary with <unk>, <s>, </s>, the 256 bytes (ids 3 to 258), and the tokens that a test adds.
struct SpmVocabulary {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<float> scores{0, 0, 0};
  std::vector<int32_t> types{2, 3, 3};
  std::string model = "llama";
  GgufWriter extra;

  SpmVocabulary() {
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, 6);
  }
  models::Token add(const std::string& piece, float score, int32_t type = 1) {
    tokens.push_back(piece);
    scores.push_back(score);
    types.push_back(type);
    return static_cast<models::Token>(tokens.size()) - 1;
  }
  Bytes image(bool with_types = true) const {
    GgufWriter writer = extra;
    writer.add("tokenizer.ggml.model", model).add_array("tokenizer.ggml.tokens", tokens);
    writer.add_array("tokenizer.ggml.scores", scores);
    if (with_types) writer.add_array("tokenizer.ggml.token_type", types);
    return writer.image();
  }
  models::Tokenizer tokenizer(bool with_types = true) const { return tokenizer_of(image(with_types)); }
  std::string error() const { return error_of(image()); }
};

// A vocabulary of the 256 bytes and of the results of merges. The token with id `b` is the letter that represents byte
// `b`.
struct ByteVocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::string pre = "gpt-2";
  GgufWriter extra;

  ByteVocabulary() {
    for (int byte = 0; byte < 256; ++byte) add(std::string(models::letter_of_byte(static_cast<uint8_t>(byte))));
  }
  models::Token add(const std::string& piece, int32_t type = 1) {
    tokens.push_back(piece);
    types.push_back(type);
    return static_cast<models::Token>(tokens.size()) - 1;
  }
  // Adds a merge and the resulting token.
  models::Token merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
  Bytes image() const {
    GgufWriter writer = extra;
    writer.add<std::string>("tokenizer.ggml.model", "gpt2");
    if (!pre.empty()) writer.add("tokenizer.ggml.pre", pre);
    writer.add_array("tokenizer.ggml.tokens", tokens).add_array("tokenizer.ggml.token_type", types);
    writer.add_array("tokenizer.ggml.merges", merges);
    return writer.image();
  }
  models::Tokenizer tokenizer() const { return tokenizer_of(image()); }
};

}  // namespace shoal::test
