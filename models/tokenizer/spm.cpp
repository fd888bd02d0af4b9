#include <algorithm>

#include "models/tokenizer/encoder.h"
#include "models/tokenizer/merging.h"
#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

constexpr int32_t kInvalid = -2;  // id of a byte that is not part of valid UTF-8; such a symbol is never merged

class SpmEncoder final : public Encoder {
 public:
  SpmEncoder(const TokenizerVocabulary& vocabulary, bool space_prefix)
      : vocabulary_(vocabulary), space_prefix_(space_prefix) {}

  void append(std::string_view text, std::vector<Token>& ids) const override {
    std::string normal = replace_all(text, " ", kSpacePiece);
    if (space_prefix_) normal.insert(0, kSpacePiece);
    const std::string_view all = normal;
    std::vector<Symbol> symbols;
    for (size_t at = 0; at < all.size(); at += symbols.back().length) {
      const size_t character = utf8_sequence(all.substr(at));
      symbols.push_back({.start = at, .length = std::max<size_t>(character, 1), .id = character == 0 ? kInvalid : -1});
    }
    link(symbols);
    merge(symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<MergedPair> {
      if (left.id == kInvalid || right.id == kInvalid) return std::nullopt;
      const Token token = vocabulary_.find(all.substr(left.start, left.length + right.length));
      if (token < 0) return std::nullopt;
      return MergedPair{-vocabulary_.score(token), token};
    });
    for (size_t i = 0; i != Symbol::kNone && !symbols.empty(); i = symbols[i].next) {
      vocabulary_.append_spelled(all.substr(symbols[i].start, symbols[i].length), ids);
    }
  }

 private:
  const TokenizerVocabulary& vocabulary_;
  bool space_prefix_;
};

}  // namespace

std::unique_ptr<Encoder> make_spm_encoder(const TokenizerVocabulary& vocabulary, bool space_prefix) {
  return std::make_unique<SpmEncoder>(vocabulary, space_prefix);
}

}  // namespace shoal::models
