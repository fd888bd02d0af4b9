// The vocabulary of a tokenizer, read from GGUF metadata and checked: pieces, scores, kinds, and an index of pieces for
// encoding. Only set_control() changes a vocabulary. After the last set_control(), any number of threads may read the
// vocabulary. Move-only, because the index refers to the pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

using Token = int32_t;

/// The numbers are the values of tokenizer.ggml.token_type.
enum class TokenKind : int32_t { kUndefined, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte, kCount };

/// U+2581, which replaces spaces in pieces.
inline constexpr std::string_view kSpacePiece = "\xe2\x96\x81";

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// Spelling of pieces.
enum class PieceAlphabet : uint8_t {
  kText,   ///< UTF-8 with U+2581 for spaces; bytes are separate tokens such as <0x0A>
  kBytes,  ///< one letter per byte (letter_of_byte); control and user-defined tokens are plain text
};

/// The letter of a byte in byte-level pieces. For a printable byte (33 to 126, 161 to 172, 174 to 255), the letter is
/// the character with the same number. The letters of the other 68 bytes are U+0100 to U+0143, in order: "\n" is
/// U+010A, and a space is U+0120.
std::string_view letter_of_byte(uint8_t byte);

class TokenizerVocabulary {
 public:
  /// Reads tokenizer.ggml.tokens, scores and token_type. Without types, pieces such as "<0x0A>" are bytes and all other
  /// pieces are normal. Throws InvalidArgument in these cases:
  /// - the arrays are empty or differ in length
  /// - a score is not a number, or a type is unknown
  /// - `needs_scores` is true, but the file has no scores
  /// - the alphabet is kText, but a byte has no token
  TokenizerVocabulary(const GgufFile& file, PieceAlphabet alphabet, bool needs_scores);

  TokenizerVocabulary(TokenizerVocabulary&&) = default;
  TokenizerVocabulary(const TokenizerVocabulary&) = delete;
  TokenizerVocabulary& operator=(const TokenizerVocabulary&) = delete;

  PieceAlphabet alphabet() const { return alphabet_; }
  int size() const { return static_cast<int>(pieces_.size()); }
  /// The piece as stored in the file. Like text_of(), throws InvalidArgument for an id outside the vocabulary.
  const std::string& piece(Token id) const;
  /// The bytes that a token represents, with plain spaces. Empty for control tokens and the unknown token.
  std::string text_of(Token id) const;
  TokenKind kind(Token id) const { return kinds_[static_cast<size_t>(id)]; }
  /// Turns a token of another kind into a control token.
  void set_control(Token id);

  /// The token that merging may produce for `text`, or -1. The token is never a control, byte or user-defined token.
  Token find(std::string_view text) const;
  float score(Token id) const { return scores_[static_cast<size_t>(id)]; }
  Token byte_token(unsigned char byte) const { return byte_tokens_[byte]; }
  /// Appends the token of `text`. If `text` has no token, appends the byte tokens of its bytes. Requires the alphabet
  /// kText.
  void append_spelled(std::string_view text, std::vector<Token>& ids) const;
  bool is_user_defined(Token id) const { return kind(id) == TokenKind::kUserDefined; }

 private:
  void read(const GgufFile& file, bool needs_scores);
  void index(const std::string& path);

  PieceAlphabet alphabet_;
  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::vector<TokenKind> kinds_;
  std::unordered_map<std::string_view, Token> index_;  // views into pieces_
  std::array<Token, 256> byte_tokens_{};
};

}  // namespace shoal::models
