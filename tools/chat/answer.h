// Splits a model's answer into reasoning and the answer proper. Models enclose reasoning in <think> and </think>,
// [THINK], <|START_THINKING|> or the channels of gpt-oss and Gemma 4. Granite encloses the answer proper in <response>.
// These tags are removed from the text.
//
//   "<think>\nHm.\n</think>\n\nYes."                                               -> reasoning "Hm.\n", answer "Yes."
//   "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."  -> the same
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace shoal::tools {

/// Ids of the control tokens that form tags of reasoning and answers. These tokens must be decoded as text, because
/// AnswerSplitter searches the text for tags.
std::vector<int32_t> answer_marks(const models::TokenizerVocabulary& vocabulary);

/// Whether the prompt ends with a tag that begins reasoning. The model's answer then begins with reasoning.
bool ends_in_thought(std::string_view prompt);

struct AnswerPiece {
  std::string text;
  bool is_thought = false;
};

/// Splits an answer that arrives in pieces. Holds back text that could be the beginning of a tag.
class AnswerSplitter {
 public:
  /// `continues`: the answer continues a text, so the white space at its beginning belongs to the answer.
  explicit AnswerSplitter(bool begins_with_thought, bool continues = false)
      : thinks_(begins_with_thought), begins_(!continues) {}
  /// Adds text to the answer. Returns the pieces that are now complete. No piece is empty.
  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();

 private:
  void take(std::string_view text, std::vector<AnswerPiece>& pieces);

  bool thinks_, responds_ = false;
  bool begins_;  ///< whether only white space has arrived since the beginning or the last tag
  std::string held_;
};

/// Writes reasoning to standard error (dimmed on a terminal) and the answer proper to standard output. If `prints` is
/// false, stores the text without writing it.
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
