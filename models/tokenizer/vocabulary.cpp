#include "models/tokenizer/vocabulary.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "base/error.h"

namespace shoal::models {
namespace {

// The byte of "<0x0A>"; nullopt for anything else.
std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return byte;
}

// Whether merging may make pieces of this kind.
bool is_mergeable(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUnused || kind == TokenKind::kUndefined;
}

template <class T>
void require_length(const GgufFile& file, std::string_view key, const std::vector<T>& elements, size_t tokens) {
  require<InvalidArgument>(elements.size() == tokens,
                           "{}: key '{}' has {} elements, expected one for each of {} tokens; convert the model again",
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

TokenizerVocabulary::TokenizerVocabulary(const GgufFile& file) {
  read(file);
  index(file.path());
}

void TokenizerVocabulary::read(const GgufFile& file) {
  pieces_ = file.get_array<std::string>("tokenizer.ggml.tokens");
  scores_ = file.get_array<float>("tokenizer.ggml.scores");
  const auto kinds = file.find_array<int32_t>("tokenizer.ggml.token_type");
  const size_t n = pieces_.size();
  require<InvalidArgument>(n > 0 && n <= INT32_MAX,
                           "{}: key 'tokenizer.ggml.tokens' has {} tokens, expected 1 to {}; convert the model again",
                           file.path(), n, INT32_MAX);
  require_length(file, "tokenizer.ggml.scores", scores_, n);
  if (kinds) require_length(file, "tokenizer.ggml.token_type", *kinds, n);

  kinds_.assign(n, TokenKind::kNormal);
  for (size_t i = 0; i < n; ++i) {
    require<InvalidArgument>(!std::isnan(scores_[i]),
                             "{}: the score of token {} is not a number; convert the model again", file.path(), i);
    if (!kinds) {
      if (byte_of_piece(pieces_[i])) kinds_[i] = TokenKind::kByte;
      continue;
    }
    const int32_t kind = (*kinds)[i];
    require<InvalidArgument>(kind >= 0 && kind < static_cast<int32_t>(TokenKind::kCount),
                             "{}: token {} has the unknown type {}; convert the model again", file.path(), i, kind);
    kinds_[i] = static_cast<TokenKind>(kind);
  }
}

void TokenizerVocabulary::index(const std::string& path) {
  byte_tokens_.fill(-1);
  std::set<size_t, std::greater<>> lengths;
  for (Token id = 0; id < size(); ++id) {
    const std::string& piece = pieces_[id];
    if (is_mergeable(kinds_[id])) {
      index_.insert_or_assign(piece, id);  // some vocabularies have a piece twice; the later one counts
    } else if (kinds_[id] == TokenKind::kUserDefined && !piece.empty()) {
      std::string text = replace_all(piece, kSpacePiece, " ");
      lengths.insert(text.size());
      user_defined_.insert_or_assign(std::move(text), id);
    } else if (kinds_[id] == TokenKind::kByte) {
      const auto byte = byte_of_piece(piece);
      require<InvalidArgument>(byte.has_value(), "{}: byte token {} is not of the form <0x0A>; convert the model again",
                               path, id);
      byte_tokens_[*byte] = id;
    }
  }
  user_lengths_.assign(lengths.begin(), lengths.end());
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    require<InvalidArgument>(byte_tokens_[byte] >= 0,
                             "{}: the vocabulary has no byte token <0x{:02X}>; convert the model again", path, byte);
  }
}

const std::string& TokenizerVocabulary::piece(Token id) const {
  require<InvalidArgument>(id >= 0 && id < size(), "token {} is outside the vocabulary; legal are 0 to {}", id,
                           size() - 1);
  return pieces_[static_cast<size_t>(id)];
}

std::string TokenizerVocabulary::text_of(Token id) const {
  const std::string& text = piece(id);
  const TokenKind kind = kinds_[static_cast<size_t>(id)];
  if (kind == TokenKind::kControl || kind == TokenKind::kUnknown) return {};
  if (kind == TokenKind::kByte) return std::string(1, static_cast<char>(*byte_of_piece(text)));
  return replace_all(text, kSpacePiece, " ");
}

Token TokenizerVocabulary::find(std::string_view text) const {
  const auto found = index_.find(text);
  return found == index_.end() ? -1 : found->second;
}

Token TokenizerVocabulary::find_user_defined(std::string_view text) const {
  const auto found = user_defined_.find(text);
  return found == user_defined_.end() ? -1 : found->second;
}

}  // namespace shoal::models
