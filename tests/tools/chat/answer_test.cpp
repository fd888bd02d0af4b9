// Tests that an answer is split into thoughts and visible text. The split must not depend on the sizes of the received
// pieces.
#include "tools/chat/answer.h"

#include <gtest/gtest.h>

namespace shoal::tools {
namespace {

struct AnswerCase {
  const char* name;
  std::string_view text;
  bool begins_with_thought;
  std::string_view thought, said;
};

const AnswerCase kAnswers[] = {
    {"plain", "Yes.\n", false, "", "Yes.\n"},
    {"think", "\n<think>\nHm.\n</think>\n\nYes, <think> is a mark.</think>", false, "Hm.\n",
     "Yes, <think> is a mark.</think>"},
    {"begun", "Hm.</think>Yes.", true, "Hm.", "Yes."},
    {"unended", "<think>Hm. </thin", false, "Hm. </thin", ""},
    {"later", "The tag <think> begins thoughts.", false, "", "The tag <think> begins thoughts."},
    {"brackets", "[THINK]Hm.[/THINK]Yes.", false, "Hm.", "Yes."},
    {"cohere", "<|START_THINKING|>Hm.<|END_THINKING|>Yes.", false, "Hm.", "Yes."},
    {"channels", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", false,
     "Hm.", "Yes."},
    {"thrice",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
     "<|start|>assistant<|channel|>commentary<|message|>c",
     false, "ab", "c"},
    {"gemma4", "<|channel>thought\nHm.\n<channel|>Yes.", false, "Hm.\n", "Yes."},
    {"gemma4_without_thoughts", "<|channel>thought\n<channel|>Yes, <channel|> is a mark.", false, "",
     "Yes, <channel|> is a mark."},
    {"gemma4_begun", "Hm.<channel|>Yes.", true, "Hm.", "Yes."},
    {"gemma4_twice", "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", false, "ac", "bd"},
    {"granite", "<think>\nHm.\n</think>\n<response>\nYes.\n</response>\n", false, "Hm.\n", "Yes.\n"},
    {"granite_without_thoughts", "<response>Yes.</response>", false, "", "Yes."},
    {"seed", "<seed:think>Hm.</seed:think>Yes.", false, "Hm.", "Yes."},
    {"response_in_text", "The tag <response> and </response> are text.", false, "",
     "The tag <response> and </response> are text."},
    {"beginnings", "a < b <| c <|channel d", false, "", "a < b <| c <|channel d"},
};

class Answers : public testing::TestWithParam<AnswerCase> {};

TEST_P(Answers, DoNotDependOnSizeOfReceivedPieces) {
  const AnswerCase& c = GetParam();
  for (size_t step = 1; step <= c.text.size(); ++step) {
    AnswerPrinter answer(c.begins_with_thought, false);
    for (size_t at = 0; at < c.text.size(); at += step) answer.push(c.text.substr(at, step));
    answer.finish();
    EXPECT_EQ(answer.thought(), c.thought) << "by " << step;
    EXPECT_EQ(answer.said(), c.said) << "by " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Answers, testing::ValuesIn(kAnswers),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Answers, KeepWhiteSpaceIfTheyContinueAText) {
  AnswerSplitter answer(false, true);
  std::string said;
  for (const std::string_view text : {"\n", "  return <think>", " 1"}) {
    for (const AnswerPiece& piece : answer.push(text)) said += piece.is_thought ? "(thought)" : piece.text;
  }
  for (const AnswerPiece& piece : answer.finish()) said += piece.text;
  EXPECT_EQ(said, "\n  return <think> 1");
}

TEST(Answers, BeginWithReasoningIfPromptEndsWithReasoningTag) {
  EXPECT_TRUE(ends_in_thought("<|assistant|><think>\n"));
  EXPECT_TRUE(ends_in_thought("<|turn>model\n<|channel>thought\n"));
  EXPECT_FALSE(ends_in_thought("<|turn>model\n<|channel>thought\n<channel|>"));
  EXPECT_FALSE(ends_in_thought("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_thought("<|im_start|>assistant\n"));
  EXPECT_FALSE(ends_in_thought(""));
}

}  // namespace
}  // namespace shoal::tools
