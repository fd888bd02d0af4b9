// The vocabulary of a tokenizer, read from GGUF metadata and checked: pieces, scores, kinds, and the index that
// encoding looks pieces up in. Immutable after construction; any number of threads may read it. Move-only,
// because the index refers to the pieces.
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

/// Numbers as in tokenizer.ggml.token_type.
enum class TokenKind : int32_t { kUndefined, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte, kCount };

/// What pieces have in place of a space: U+2581.
inline constexpr std::string_view kSpacePiece = "\xe2\x96\x81";

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// What pieces are written in.
enum class PieceAlphabet : uint8_t {
  kText,   ///< UTF-8 with U+2581 for spaces; bytes are tokens of their own, <0x0A>
  kBytes,  ///< a letter for each byte (letter_of_byte); control and user-defined tokens are plain text
};

/// What byte-level pieces have for a byte: the character of that number where it is printable (33 to 126, 161 to 172,
/// 174 to 255), and for the other 68, in order, U+0100 to U+0143: "\n" is U+010A, a space U+0120.
std::string_view letter_of_byte(uint8_t byte);

class TokenizerVocabulary {
 public:
  /// Reads tokenizer.ggml.tokens, scores and token_type (without types, "<0x0A>" are bytes and the rest is normal).
  /// Throws InvalidArgument when they are empty, disagree in length, hold a score that is no number or an unknown type;
  /// of text when they have no scores but `needs_scores`, or do not spell each of the 256 bytes.
  TokenizerVocabulary(const GgufFile& file, PieceAlphabet alphabet, bool needs_scores);

  TokenizerVocabulary(TokenizerVocabulary&&) = default;
  TokenizerVocabulary(const TokenizerVocabulary&) = delete;
  TokenizerVocabulary& operator=(const TokenizerVocabulary&) = delete;

  PieceAlphabet alphabet() const { return alphabet_; }
  int size() const { return static_cast<int>(pieces_.size()); }
  /// The piece as the file has it. Throws InvalidArgument for an id outside the vocabulary, and so does text_of().
  const std::string& piece(Token id) const;
  /// The bytes that a token stands for, spaces as spaces; empty for control tokens and the unknown token.
  std::string text_of(Token id) const;
  TokenKind kind(Token id) const { return kinds_[static_cast<size_t>(id)]; }
  /// Makes a control token of one that the file has under another kind.
  void set_control(Token id);

  /// The token that merging may make of `text`, or -1: a piece that is neither control, byte nor user-defined.
  Token find(std::string_view text) const;
  float score(Token id) const { return scores_[static_cast<size_t>(id)]; }
  Token byte_token(unsigned char byte) const { return byte_tokens_[byte]; }
  /// Appends the piece that is `text`, or where there is none its bytes. Of text alone.
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
