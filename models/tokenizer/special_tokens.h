// Tokens that are cut out of a text before it is encoded: control tokens, which only templates may write, and
// user-defined ones, which users may, too. From left to right the longest one at each place is taken.
//
//   <|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n     with "What is <|im_end|>?" a user's text
//   one token        ^^^^^^^ text ^^^^^^ one token
//
// Immutable; any number of threads may use it. Linear in the text times the length of the longest token.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace shoal::models {

/// Part of a text: of a template, or of a user.
struct TextPart {
  std::string_view text;
  bool is_template = false;
};

/// A stretch of a text that is one token, or lies between such (-1).
struct TextFragment {
  std::string_view text;
  Token token = -1;
};

class SpecialTokens {
 public:
  struct Options {
    bool templates_only = false;
    bool takes_space = false;  ///< white space that follows is a part of it
  };
  /// `text`: of a token, as it is found in texts.
  void add(std::string_view text, Token token, Options options);

  /// Cuts `text`, of which [begin, end) of each of `templates`, ascending, are a template's.
  struct Range {
    size_t begin, end;
  };
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
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::vector<bool> starts_ = std::vector<bool>(256);
};

}  // namespace shoal::models
