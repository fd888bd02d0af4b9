#include "models/tokenizer/vocabulary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

// Returns the byte of a text such as "<0x0A>", and nullopt for texts of another form.
std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return byte;
}

// Whether merging can produce pieces of this kind.
bool is_mergeable(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUnused || kind == TokenKind::kUndefined;
}

/// The inverse of letter_of_byte(). Returns the text unchanged if one of its characters is not the letter of a byte.
/// Some added tokens contain such characters.
std::string bytes_of_letters(std::string_view text) {
  static const auto bytes = [] {
    std::unordered_map<std::string_view, char> all;
    for (int byte = 0; byte < 256; ++byte)
      all.emplace(letter_of_byte(static_cast<uint8_t>(byte)), static_cast<char>(byte));
    return all;
  }();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(utf8_sequence(text.substr(at)), 1);
    const auto byte = bytes.find(text.substr(at, length));
    if (byte == bytes.end()) return std::string(text);
    out += byte->second;
    at += length;
  }
  return out;
}

template <class T>
void require_length(const GgufFile& file, std::string_view key, const std::vector<T>& elements, size_t tokens) {
  require<InvalidArgument>(elements.size() == tokens,
                           "{}: key '{}' has {} elements, but there are {} tokens; convert the model again",
                           file.path(), key, elements.size(), tokens);
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t next = text.find(from, at);
    result += text.substr(at, next - at);
    if (next == std::string_view::npos) return result;
    result += to;
    at = next + from.size();
  }
}

std::string_view letter_of_byte(uint8_t byte) {
  static const auto letters = [] {
    std::array<std::string, 256> all;
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const unsigned point = printable ? b : next++;
      if (point < 0x80) {
        all[b] = {static_cast<char>(point)};
      } else {
        all[b] = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
      }
    }
    return all;
  }();
  return letters[byte];
}

TokenizerVocabulary::TokenizerVocabulary(const GgufFile& file, PieceAlphabet alphabet, bool needs_scores)
    : alphabet_(alphabet) {
  read(file, needs_scores);
  index(file.path());
}

void TokenizerVocabulary::read(const GgufFile& file, bool needs_scores) {
  pieces_ = file.get_array<std::string>("tokenizer.ggml.tokens");
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  scores_ = needs_scores ? file.get_array<float>(kScores) : std::vector<float>(pieces_.size());
  constexpr std::string_view kKinds = "tokenizer.ggml.token_type";
  const bool has_kinds = file.has(kKinds);
  const auto kinds = has_kinds ? file.get_array<int32_t>(kKinds) : std::vector<int32_t>();
  const size_t n = pieces_.size();
  require<InvalidArgument>(n > 0 && n <= INT32_MAX,
                           "{}: key 'tokenizer.ggml.tokens' has {} tokens, expected 1 to {}; convert the model again",
                           file.path(), n, INT32_MAX);
  require_length(file, kScores, scores_, n);
  if (has_kinds) require_length(file, kKinds, kinds, n);

  kinds_.assign(n, TokenKind::kNormal);
  for (size_t i = 0; i < n; ++i) {
    require<InvalidArgument>(!std::isnan(scores_[i]),
                             "{}: the score of token {} is not a number; convert the model again", file.path(), i);
    if (!has_kinds) {
      if (byte_of_piece(pieces_[i])) kinds_[i] = TokenKind::kByte;
      continue;
    }
    const int32_t kind = kinds[i];
    require<InvalidArgument>(kind >= 0 && kind < static_cast<int32_t>(TokenKind::kCount),
                             "{}: token {} has the unknown type {}; convert the model again", file.path(), i, kind);
    kinds_[i] = static_cast<TokenKind>(kind);
  }
}

void TokenizerVocabulary::index(const std::string& path) {
  byte_tokens_.fill(-1);
  index_.reserve(pieces_.size());
  for (Token id = 0; id < size(); ++id) {
    const std::string& piece = pieces_[static_cast<size_t>(id)];
    if (is_mergeable(kind(id))) {
      index_.insert_or_assign(piece, id);  // if a vocabulary has a piece twice, the later token is used
    } else if (kind(id) == TokenKind::kByte) {
      const auto byte = byte_of_piece(piece);
      require<InvalidArgument>(byte.has_value(), "{}: byte token {} is not of the form <0x0A>; convert the model again",
                               path, id);
      byte_tokens_[*byte] = id;
    }
  }
  for (size_t byte = 0; byte < byte_tokens_.size() && alphabet_ == PieceAlphabet::kText; ++byte) {
    require<InvalidArgument>(byte_tokens_[byte] >= 0,
                             "{}: the vocabulary has no byte token <0x{:02X}>; convert the model again", path, byte);
  }
}

void TokenizerVocabulary::set_control(Token id) {
  const auto found = index_.find(piece(id));
  if (found != index_.end() && found->second == id) index_.erase(found);
  kinds_[static_cast<size_t>(id)] = TokenKind::kControl;
}

void TokenizerVocabulary::append_spelled(std::string_view text, std::vector<Token>& ids) const {
  const Token token = find(text);
  if (token >= 0) return ids.push_back(token);
  for (const char c : text) ids.push_back(byte_token(static_cast<unsigned char>(c)));
}

const std::string& TokenizerVocabulary::piece(Token id) const {
  require<InvalidArgument>(id >= 0 && id < size(), "token {} is outside the vocabulary; use ids from 0 to {}", id,
                           size() - 1);
  return pieces_[static_cast<size_t>(id)];
}

std::string TokenizerVocabulary::text_of(Token id) const {
  const std::string& text = piece(id);
  if (kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown) return {};
  if (alphabet_ == PieceAlphabet::kBytes) return kind(id) == TokenKind::kUserDefined ? text : bytes_of_letters(text);
  if (kind(id) == TokenKind::kByte) return std::string(1, static_cast<char>(*byte_of_piece(text)));
  return replace_all(text, kSpacePiece, " ");
}

Token TokenizerVocabulary::find(std::string_view text) const {
  const auto found = index_.find(text);
  return found == index_.end() ? -1 : found->second;
}

}  // namespace shoal::models
