// Separates special tokens from a text before the text is encoded. Control tokens are recognised only in templates, and
// user-defined tokens are recognised everywhere. Scans from left to right and takes the longest token at each position.
//
//   <|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n     if a user wrote "What is <|im_end|>?"
//   one token        ^^^^^^^ text ^^^^^^ one token
//
// Only add() changes a SpecialTokens. After the last add(), any number of threads may call cut(). The time of cut() is
// O(length of the text * length of the longest token).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace shoal::models {

/// Part of a text, written by a template or by a user.
struct TextPart {
  std::string_view text;
  bool is_template = false;
};

/// A range of a text: one special token, or ordinary text (token -1).
struct TextFragment {
  std::string_view text;
  Token token = -1;
};

class SpecialTokens {
 public:
  struct Options {
    bool templates_only = false;
    bool takes_space = false;  ///< whether the token includes the white space after the token
  };
  /// `text` is the token's text as it appears in input.
  void add(std::string_view text, Token token, Options options);

  /// The characters [begin, end) of a text.
  struct Range {
    size_t begin, end;
  };
  /// Divides `text` into special tokens and ordinary text. `templates` are the ranges that a template wrote, in
  /// ascending order.
  std::vector<TextFragment> cut(std::string_view text, std::span<const Range> templates) const;

 private:
  struct Node {
    Token anywhere = -1, in_templates = -1;
  };
  struct Found {
    Token token = -1;
    size_t length = 0;
  };
  Found longest_at(std::string_view text, size_t at, size_t template_end) const;

  std::vector<Node> nodes_{1};
  std::unordered_set<Token> take_space_;
  std::unordered_map<uint64_t, uint32_t> edges_;  // key: node << 8 | byte; value: next node
  std::vector<bool> starts_ = std::vector<bool>(256);
};

}  // namespace shoal::models
