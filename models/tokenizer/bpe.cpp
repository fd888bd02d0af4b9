#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/printable.h"
#include "models/tokenizer/encoder.h"
#include "models/tokenizer/merging.h"
#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

/// Table of merges, indexed by pairs of symbols. A symbol is a number that identifies a text. If the vocabulary
/// contains the text, the symbol is the token id. Symbols of texts that occur only in merges are larger than all token
/// ids.
class Merges {
 public:
  Merges(const GgufFile& file, const TokenizerVocabulary& vocabulary) : vocabulary_(vocabulary) {
    const std::vector<std::string> merges = file.get_array<std::string>(kMergesKey);
    pairs_.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const std::string_view merge = merges[rank];
      const size_t space = merge.find(' ', 1);
      require<InvalidArgument>(
          space != std::string_view::npos && space + 1 < merge.size(),
          "{}: merge {} of key '{}' is '{}', expected two parts with a space between them; convert "
          "the model again",
          file.path(), rank, kMergesKey, printable(merge));
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      const int32_t merged = symbol(std::string(left).append(right));
      pairs_.try_emplace(key(symbol(left), symbol(right)), MergedPair{static_cast<float>(rank), merged});
    }
  }

  std::optional<MergedPair> find(int32_t left, int32_t right) const {
    if (left < 0 || right < 0) return std::nullopt;
    const auto found = pairs_.find(key(left, right));
    return found == pairs_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_token(int32_t symbol) const { return symbol >= 0 && symbol < vocabulary_.size(); }
  /// Returns -1 if the text is neither a token nor part of a merge.
  int32_t find_symbol(std::string_view text) const {
    const Token token = vocabulary_.find(text);
    if (token >= 0) return token;
    const auto other = others_.find(std::string(text));
    return other == others_.end() ? -1 : other->second;
  }

 private:
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  int32_t symbol(std::string_view text) {
    const int32_t known = find_symbol(text);
    if (known >= 0) return known;
    const auto number = static_cast<int32_t>(vocabulary_.size() + static_cast<int>(others_.size()));
    return others_.emplace(text, number).first->second;
  }

  const TokenizerVocabulary& vocabulary_;
  std::unordered_map<uint64_t, MergedPair> pairs_;
  std::unordered_map<std::string, int32_t> others_;
};

/// U+FFFD, which replaces each byte that has no token. For example, StarCoder's vocabulary has no tokens for bytes that
/// never occur in valid UTF-8.
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

/// Byte-level encoder: each byte of a piece becomes one letter (letter_of_byte).
class ByteBpeEncoder final : public Encoder {
 public:
  ByteBpeEncoder(const GgufFile& file, const TokenizerVocabulary& vocabulary, const PretokenizerKind& pre)
      : vocabulary_(vocabulary), merges_(file, vocabulary), pretokenizer_(pre.expressions), whole_(pre.whole_pieces) {
    for (int byte = 0; byte < 256; ++byte) {
      bytes_[static_cast<size_t>(byte)] = vocabulary.find(letter_of_byte(static_cast<uint8_t>(byte)));
    }
    for (const char c : kReplacement) {
      const auto byte = static_cast<uint8_t>(c);
      require<InvalidArgument>(bytes_[byte] >= 0,
                               "{}: no token stands for the byte 0x{:02x} ('{}'); convert the model again", file.path(),
                               byte, letter_of_byte(byte));
    }
    append(kReplacement, replacement_);
  }

  void append(std::string_view text, std::vector<Token>& ids) const override {
    std::vector<Symbol> symbols;
    std::string letters;
    for (const std::string_view piece : pretokenizer_.cut(text)) {
      if (whole_) {
        letters.clear();
        for (const char byte : piece) letters += letter_of_byte(static_cast<uint8_t>(byte));
        if (const Token token = vocabulary_.find(letters); token >= 0) {
          ids.push_back(token);
          continue;
        }
      }
      append_piece(piece, symbols, ids);
    }
  }

 private:
  void append_piece(std::string_view piece, std::vector<Symbol>& symbols, std::vector<Token>& ids) const {
    symbols.clear();
    for (size_t at = 0; at < piece.size(); ++at) {
      symbols.push_back({.start = at, .length = 1, .id = bytes_[static_cast<unsigned char>(piece[at])]});
    }
    link(symbols);
    merge(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
    for (size_t i = 0; i != Symbol::kNone; i = symbols[i].next) {
      const Symbol& symbol = symbols[i];
      if (merges_.is_token(symbol.id)) {
        ids.push_back(symbol.id);
        continue;
      }
      for (const char c : piece.substr(symbol.start, symbol.length)) {
        const Token byte = bytes_[static_cast<unsigned char>(c)];
        if (byte >= 0) {
          ids.push_back(byte);
        } else {
          ids.insert(ids.end(), replacement_.begin(), replacement_.end());
        }
      }
    }
  }

  const TokenizerVocabulary& vocabulary_;
  Merges merges_;
  Pretokenizer pretokenizer_;
  bool whole_;
  std::array<Token, 256> bytes_{};  // -1: no token
  std::vector<Token> replacement_;  // ids of kReplacement, for bytes without a token
};

/// Character-level encoder with U+2581 for spaces. The pieces are the lines of a text, and the runs of line breaks
/// between lines.
class TextBpeEncoder final : public Encoder {
 public:
  TextBpeEncoder(const GgufFile& file, const TokenizerVocabulary& vocabulary)
      : vocabulary_(vocabulary), merges_(file, vocabulary) {}

  void append(std::string_view text, std::vector<Token>& ids) const override {
    const std::string normal = replace_all(text, " ", kSpacePiece);
    for (size_t at = 0; at < normal.size();) {
      const bool breaks = normal[at] == '\n';
      const size_t end = std::min(breaks ? normal.find_first_not_of('\n', at) : normal.find('\n', at), normal.size());
      append_piece(std::string_view(normal).substr(at, end - at), breaks, ids);
      at = end;
    }
  }

 private:
  void append_piece(std::string_view piece, bool breaks, std::vector<Token>& ids) const {
    // Merging cannot produce tokens that consist of several line breaks, so a run of line breaks is looked up as one
    // token.
    if (const Token token = breaks ? vocabulary_.find(piece) : -1; token >= 0) return ids.push_back(token);
    std::vector<Symbol> symbols;
    for (size_t at = 0; at < piece.size(); at += symbols.back().length) {
      const size_t length = std::max<size_t>(utf8_sequence(piece.substr(at)), 1);
      symbols.push_back({.start = at, .length = length, .id = merges_.find_symbol(piece.substr(at, length))});
    }
    link(symbols);
    merge(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
    for (size_t i = 0; i != Symbol::kNone; i = symbols[i].next) {
      vocabulary_.append_spelled(piece.substr(symbols[i].start, symbols[i].length), ids);
    }
  }

  const TokenizerVocabulary& vocabulary_;
  Merges merges_;
};

}  // namespace

std::unique_ptr<Encoder> make_byte_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary,
                                               const PretokenizerKind& pre) {
  return std::make_unique<ByteBpeEncoder>(file, vocabulary, pre);
}

std::unique_ptr<Encoder> make_text_bpe_encoder(const GgufFile& file, const TokenizerVocabulary& vocabulary) {
  return std::make_unique<TextBpeEncoder>(file, vocabulary);
}

}  // namespace shoal::models
