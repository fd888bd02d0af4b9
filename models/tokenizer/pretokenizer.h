// Divides a text into pieces before byte-pair merging, so that no token extends beyond a piece. The key
// tokenizer.ggml.pre names an entry of a table. Each entry is a list of regular expressions, which were published with
// the models. Each expression is applied to every piece that the previous expression produced. The new pieces are the
// matches and the text between the matches. No text is dropped.
//
//   llama-bpe:  "I'll pay 12345 euro!"  ->  I 'll " pay" " " 123 45 " euro" !
//
// PCRE2 finds the matches. The installed version of PCRE2 determines the Unicode category of each character. Invalid
// UTF-8 is never part of a match. Immutable; any number of threads may use a Pretokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::models {

/// A row of the table of pretokenizers.
struct PretokenizerKind {
  std::vector<std::string_view> names;   ///< names in tokenizer.ggml.pre
  std::vector<std::string> expressions;  ///< in PCRE2 syntax
  bool whole_pieces = false;             ///< a piece in the vocabulary becomes one token without merging
  bool adds_bos = false;                 ///< value of add_bos_token if the file does not have this key
};

/// Returns nullptr for an unknown name.
const PretokenizerKind* find_pretokenizer(std::string_view name);
/// Returns the names of all pretokenizers in alphabetical order.
std::vector<std::string_view> pretokenizer_names();

class Pretokenizer {
 public:
  explicit Pretokenizer(const std::vector<std::string>& expressions);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;

  /// Pieces of a text, in order. Their concatenation is the text.
  std::vector<std::string_view> cut(std::string_view text) const;

 private:
  struct Expression;
  std::vector<Expression> expressions_;
};

}  // namespace shoal::models
