#include "tools/chat/answer.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "tools/cli/output.h"

namespace shoal::tools {
namespace {

/// Content of the text after a tag. kResponds: the text until </response> is the answer proper.
enum class Meaning : uint8_t { kThinks, kSays, kResponds, kNothing };
/// Positions at which a tag has its meaning. At other positions, the tag is ordinary text.
enum class Where : uint8_t { kAnywhere, kAtBeginning, kInThoughts, kInResponse };

struct Mark {
  std::string_view text;
  Meaning meaning;
  Where where = Where::kAnywhere;
};

constexpr std::array kMarks{
    Mark{"<think>", Meaning::kThinks, Where::kAtBeginning},
    Mark{"</think>", Meaning::kSays, Where::kInThoughts},
    Mark{"[THINK]", Meaning::kThinks, Where::kAtBeginning},
    Mark{"[/THINK]", Meaning::kSays, Where::kInThoughts},
    Mark{"<|START_THINKING|>", Meaning::kThinks, Where::kAtBeginning},
    Mark{"<|END_THINKING|>", Meaning::kSays, Where::kInThoughts},
    Mark{"<seed:think>", Meaning::kThinks, Where::kAtBeginning},
    Mark{"</seed:think>", Meaning::kSays, Where::kInThoughts},
    Mark{"<response>", Meaning::kResponds, Where::kAtBeginning},
    Mark{"</response>", Meaning::kSays, Where::kInResponse},
    Mark{"<|channel>thought", Meaning::kThinks},
    Mark{"<channel|>", Meaning::kSays, Where::kInThoughts},
    Mark{"<|channel|>analysis<|message|>", Meaning::kThinks},
    Mark{"<|channel|>final<|message|>", Meaning::kSays},
    Mark{"<|channel|>commentary<|message|>", Meaning::kSays},
    Mark{"<|start|>assistant", Meaning::kNothing},
    Mark{"<|end|>", Meaning::kNothing},
};
constexpr std::array<std::string_view, 16> kTokens{
    "<think>",     "</think>",    "<seed:think>",       "</seed:think>",
    "[THINK]",     "[/THINK]",    "<|START_THINKING|>", "<|END_THINKING|>",
    "<response>",  "</response>", "<|channel>",         "<channel|>",
    "<|channel|>", "<|message|>", "<|start|>",          "<|end|>"};

bool is_space(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// Number of bytes at the end of `text` that could be the beginning of a tag.
size_t held_back(std::string_view text) {
  size_t most = 0;
  for (const Mark& mark : kMarks) {
    for (size_t n = std::min(text.size(), mark.text.size() - 1); n > most; --n) {
      if (text.ends_with(mark.text.substr(0, n))) most = n;
    }
  }
  return most;
}

}  // namespace

std::vector<int32_t> answer_marks(const models::TokenizerVocabulary& vocabulary) {
  std::vector<int32_t> ids;
  for (models::Token id = 0; id < vocabulary.size(); ++id) {
    const bool is_mark = std::find(kTokens.begin(), kTokens.end(), vocabulary.piece(id)) != kTokens.end();
    if (is_mark && vocabulary.kind(id) == models::TokenKind::kControl) ids.push_back(id);
  }
  return ids;
}

bool ends_in_thought(std::string_view prompt) {
  while (!prompt.empty() && is_space(prompt.substr(prompt.size() - 1))) prompt.remove_suffix(1);
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](const Mark& mark) { return mark.meaning == Meaning::kThinks && prompt.ends_with(mark.text); });
}

void AnswerSplitter::take(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (begins_) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.empty()) return;
  begins_ = false;
  if (!pieces.empty() && pieces.back().is_thought == thinks_) {
    pieces.back().text += text;
  } else {
    pieces.push_back({std::string(text), thinks_});
  }
}

std::vector<AnswerPiece> AnswerSplitter::push(std::string_view text) {
  held_ += text;
  std::vector<AnswerPiece> pieces;
  while (true) {
    const auto* first = kMarks.end();
    size_t place = std::string::npos;
    for (const auto* mark = kMarks.begin(); mark != kMarks.end(); ++mark) {
      const size_t at = held_.find(mark->text);
      if (at >= place) continue;
      const bool begins = begins_ && !thinks_ && is_space(std::string_view(held_).substr(0, at));
      if (mark->where == Where::kAtBeginning && !begins) continue;
      if (mark->where == Where::kInThoughts && !thinks_) continue;
      if (mark->where == Where::kInResponse && !responds_) continue;
      first = mark, place = at;
    }
    if (first == kMarks.end()) break;
    take(std::string_view(held_).substr(0, place), pieces);
    held_.erase(0, place + first->text.size());
    if (first->meaning != Meaning::kNothing) {
      thinks_ = first->meaning == Meaning::kThinks;
      responds_ = first->meaning == Meaning::kResponds;
    }
    begins_ = true;
  }
  const size_t complete = held_.size() - held_back(held_);
  take(std::string_view(held_).substr(0, complete), pieces);
  held_.erase(0, complete);
  return pieces;
}

std::vector<AnswerPiece> AnswerSplitter::finish() {
  std::vector<AnswerPiece> pieces;
  take(held_, pieces);
  held_.clear();
  return pieces;
}

AnswerPrinter::AnswerPrinter(bool begins_with_thought, bool prints)
    : splitter_(begins_with_thought), prints_(prints), dims_(isatty(STDERR_FILENO) != 0) {}

void AnswerPrinter::take(const std::vector<AnswerPiece>& pieces) {
  for (const AnswerPiece& piece : pieces) {
    const bool ends_thought = !piece.is_thought && said_.empty() && !thought_.empty();
    (piece.is_thought ? thought_ : said_) += piece.text;
    if (!prints_) continue;
    if (ends_thought) write_err("\n");
    if (!piece.is_thought) {
      write_out(piece.text);
    } else {
      write_err(dims_ ? "\x1b[2m" + piece.text + "\x1b[0m" : piece.text);
    }
  }
}

}  // namespace shoal::tools
