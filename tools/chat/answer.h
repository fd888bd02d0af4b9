// An answer as a model writes it, in two: what it thinks, and what it says. Models mark the one with <think> and
// </think>, [THINK], <|START_THINKING|> or the channels of gpt-oss and Gemma 4, and Granite the other with <response>;
// marks that separate nothing are dropped.
//
//   "<think>\nHm.\n</think>\n\nYes."                                               -> thinks "Hm.\n", says "Yes."
//   "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."  -> the same
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace shoal::tools {

/// The control tokens that such marks are made of: as text, AnswerSplitter has to see them.
std::vector<int32_t> answer_marks(const models::TokenizerVocabulary& vocabulary);

/// Does a prompt end with a mark, so that the answer begins with thoughts?
bool ends_in_thought(std::string_view prompt);

struct AnswerPiece {
  std::string text;
  bool is_thought = false;
};

/// Fed with an answer as it comes. Holds back what could be the beginning of a mark.
class AnswerSplitter {
 public:
  explicit AnswerSplitter(bool begins_with_thought) : thinks_(begins_with_thought) {}
  /// What is complete; none is empty.
  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();

 private:
  void take(std::string_view text, std::vector<AnswerPiece>& pieces);

  bool thinks_, responds_ = false;
  bool begins_ = true;  ///< of thoughts or of what is said, nothing but space has come yet
  std::string held_;
};

/// Writes thoughts to standard error, dimmed on a terminal, and what is said to standard output; or keeps both only.
class AnswerPrinter {
 public:
  AnswerPrinter(bool begins_with_thought, bool prints);
  void push(std::string_view text) { take(splitter_.push(text)); }
  void finish() { take(splitter_.finish()); }
  const std::string& said() const { return said_; }
  const std::string& thought() const { return thought_; }

 private:
  void take(const std::vector<AnswerPiece>& pieces);

  AnswerSplitter splitter_;
  bool prints_, dims_;
  std::string said_, thought_;
};

}  // namespace shoal::tools
