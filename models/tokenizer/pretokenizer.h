// How byte-pair encodings cut a text into pieces before anything is merged: no token reaches over the end of a piece.
// tokenizer.ggml.pre names one of a table of lists of regular expressions, those that the makers of the models publish.
// Each expression in turn cuts the pieces that the one before left into its matches and what lies between them; nothing
// is dropped.
//
//   llama-bpe:  "I'll pay 12345 euro!"  ->  I 'll " pay" " " 123 45 " euro" !
//
// Matched by PCRE2, with the categories of its version of Unicode; bytes that are no valid UTF-8 lie between matches.
// Immutable; any number of threads may use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::models {

/// A row of the table.
struct PretokenizerKind {
  std::vector<std::string_view> names;   ///< as in tokenizer.ggml.pre
  std::vector<std::string> expressions;  ///< of PCRE2
  bool whole_pieces = false;             ///< a piece that is a token is that token, whatever could be merged
  bool adds_bos = false;                 ///< where the file does not say it
};

/// nullptr where there is none of that name.
const PretokenizerKind* find_pretokenizer(std::string_view name);
/// All names, sorted.
std::vector<std::string_view> pretokenizer_names();

class Pretokenizer {
 public:
  explicit Pretokenizer(const std::vector<std::string>& expressions);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;

  /// Pieces of a text, in order; together they are the text.
  std::vector<std::string_view> cut(std::string_view text) const;

 private:
  struct Expression;
  std::vector<Expression> expressions_;
};

}  // namespace shoal::models
