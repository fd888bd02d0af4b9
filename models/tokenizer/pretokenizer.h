// Divides a text into pieces before byte-pair merging, so that no token extends beyond a piece. The key
// tokenizer.ggml.pre names an entry of a table. Each entry is a list of regular expressions, which were published with
// the models. Each expression divides every piece of the previous expression into matches and the text between matches.
// No text is dropped.
//
//   llama-bpe:  "I'll pay 12345 euro!"  ->  I 'll " pay" " " 123 45 " euro" !
//
// PCRE2 finds the matches, with the Unicode categories of its version. Invalid UTF-8 is never part of a match.
// Immutable; any number of threads may use it.
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
  bool whole_pieces = false;             ///< a piece that is a token becomes that token without merging
  bool adds_bos = false;                 ///< default if the file has no add_bos_token
};

/// Returns nullptr for an unknown name.
const PretokenizerKind* find_pretokenizer(std::string_view name);
/// All names, sorted.
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
