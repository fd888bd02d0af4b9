// The vocabulary of a llama tokenizer, read from GGUF metadata and checked: pieces, scores, kinds, and the indices
// that encoding looks things up in. Immutable after construction; any number of threads may read it. Move-only,
// because the index refers to the pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

using Token = int32_t;

/// Numbers as in tokenizer.ggml.token_type.
enum class TokenKind : int32_t { kUndefined, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte, kCount };

/// What pieces have in place of a space: U+2581.
inline constexpr std::string_view kSpacePiece = "\xe2\x96\x81";

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

class TokenizerVocabulary {
 public:
  /// Reads tokenizer.ggml.tokens, scores and token_type (without types, "<0x0A>" are bytes and the rest is normal).
  /// Throws InvalidArgument when they are empty, disagree in length, hold a score that is no number or an unknown
  /// type, or do not spell each of the 256 bytes.
  explicit TokenizerVocabulary(const GgufFile& file);

  TokenizerVocabulary(TokenizerVocabulary&&) = default;
  TokenizerVocabulary(const TokenizerVocabulary&) = delete;
  TokenizerVocabulary& operator=(const TokenizerVocabulary&) = delete;

  int size() const { return static_cast<int>(pieces_.size()); }
  /// The piece as the file has it. Throws InvalidArgument for an id outside the vocabulary, and so does text_of().
  const std::string& piece(Token id) const;
  /// The bytes that a token stands for, spaces as spaces; empty for control tokens and the unknown token.
  std::string text_of(Token id) const;

  /// The token that merging may make of `text`, or -1: a piece that is neither control, byte nor user-defined.
  Token find(std::string_view text) const;
  float score(Token id) const { return scores_[static_cast<size_t>(id)]; }
  Token byte_token(unsigned char byte) const { return byte_tokens_[byte]; }
  /// The user-defined token that is exactly `text` (spaces as spaces), or -1.
  Token find_user_defined(std::string_view text) const;
  /// Lengths of user-defined pieces, spaces as spaces: each once, the longest first.
  const std::vector<size_t>& user_defined_lengths() const { return user_lengths_; }
  bool is_user_defined(Token id) const { return kinds_[static_cast<size_t>(id)] == TokenKind::kUserDefined; }

 private:
  void read(const GgufFile& file);
  void index(const std::string& path);

  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::vector<TokenKind> kinds_;
  std::unordered_map<std::string_view, Token> index_;       // views into pieces_
  std::map<std::string, Token, std::less<>> user_defined_;  // spaces as spaces
  std::vector<size_t> user_lengths_;                        // lengths in user_defined_, longest first
  std::array<Token, 256> byte_tokens_{};
};

}  // namespace shoal::models
