// Tests of prompts from files and from standard input.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json tokens_of(const std::vector<std::string>& more, const ChildOptions& around = {}) {
  std::vector<std::string> args{"tokenize", "-m", kModel, "--output", "json"};
  args.insert(args.end(), more.begin(), more.end());
  const Finished finished = run(args, around);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return finished.code == 0 ? json::parse(finished.out) : json();
}

TEST(Prompt, ReadsFileOrStandardInput) {
  const test::TemporaryFile file("prompt.txt", std::string(kPrompt) + "\n");
  const auto generated = [](const std::vector<std::string>& prompt, const std::string& in) {
    std::vector<std::string> args{"run", "-m", kModel, "-n", "12", "--temp", "0"};
    args.insert(args.end(), prompt.begin(), prompt.end());
    return run(args, {.in = in}).out;
  };
  const std::string wanted = " the heavens, and in the earth is filled\n";
  EXPECT_EQ(generated({"-f", file.path}, "/dev/null"), wanted);
  EXPECT_EQ(generated({"--file", file.path}, "/dev/null"), wanted);
  EXPECT_EQ(generated({"-p", "-"}, file.path), wanted);
  EXPECT_EQ(generated({"-f", "-"}, file.path), wanted);
  EXPECT_EQ(generated({"-f", "/dev/stdin"}, file.path), wanted);
}

TEST(Prompt, DropsOneFinalNewline) {
  for (const auto& [text, kept] :
       {std::pair("a b", "a b"), {"a b\n", "a b"}, {"a b\n\n", "a b\n"}, {"\na b ", "\na b "}}) {
    const test::TemporaryFile file("prompt.txt", text);
    EXPECT_EQ(tokens_of({"-f", file.path})["prompt"], kept);
    EXPECT_EQ(tokens_of({"-p", "-"}, {.in = file.path})["prompt"], kept);
    EXPECT_EQ(tokens_of({"-p", text})["prompt"], text) << "a prompt from the command line keeps its final newline";
  }
}

TEST(Prompt, FileMayBeLongerThanAnArgument) {
  std::string text;
  while (text.size() < 300'000) text += "In the beginning was the word. ";
  const test::TemporaryFile file("long.txt", text);
  const json tokens = tokens_of({"-f", file.path});
  EXPECT_EQ(tokens["prompt"].get<std::string>().size(), text.size());
  EXPECT_EQ(tokens, tokens_of({"-p", "-"}, {.in = file.path}));
  const size_t count = tokens["tokens"].size();
  EXPECT_GT(count, 50'000u);
  const Finished refused = run({"run", "-m", kModel, "-f", file.path, "-n", "1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr(fmt::format("the prompt has {} tokens, but the context holds 512", count)));
}

TEST(Prompt, DropsUtf8ByteOrderMarkAndRejectsUtf16) {
  const test::TemporaryFile marked("marked.txt", "\xef\xbb\xbfIn the"), wide("wide.txt", "\xff\xfeI\1n\1");
  EXPECT_EQ(tokens_of({"-f", marked.path})["prompt"], "In the");
  EXPECT_EQ(tokens_of({"-f", "-"}, {.in = marked.path})["prompt"], "In the");
  const Finished refused = run({"tokenize", "-m", kModel, "-f", wide.path});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr(wide.path + ": the text is UTF-16; save it as UTF-8\n"));
}

TEST(Prompt, CompareReadsPromptFlags) {
  const test::TemporaryFile file("prompt.txt", "In the\n");
  const Finished compared = run({"compare", "-m", kModel, "-dev", "CPU0,CPU1", "-c", "3", "-f", file.path});
  EXPECT_THAT(compared.err, HasSubstr("4 prompt tokens and one generated token do not fit into a context of 3"));
}

TEST(Prompt, UnreadablePromptGivesAOneLineError) {
  const test::TemporaryFile empty("empty.txt", ""), newline("newline.txt", "\n");
  const auto expect = [](const std::vector<std::string>& more, int code, const std::string& message,
                         const std::string& in = "/dev/null") {
    for (const char* command : {"run", "tokenize"}) {
      std::vector<std::string> args{command, "-m", kModel};
      args.insert(args.end(), more.begin(), more.end());
      const Finished finished = run(args, {.in = in});
      EXPECT_EQ(finished.code, code) << finished.err;
      EXPECT_EQ(finished.out, "");
      EXPECT_THAT(finished.err, HasSubstr("shoal: error: " + message));
      EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    }
  };
  expect({"-f", "no/such.txt"}, 1, "no/such.txt: cannot open the prompt: No such file or directory; check the path");
  expect({"-f", "/"}, 1, "/: is a directory, not a prompt; check the path");
  expect({"-f", empty.path}, 1, empty.path + ": contains no text");
  expect({"-f", newline.path}, 1, newline.path + ": contains no text");
  expect({"-f", "/dev/zero"}, 1, "/dev/zero: is larger than 64.0 MiB, the limit for a prompt");
  expect({"-p", "-"}, 1, "standard input: contains no text");
  expect({"-p", "-"}, 1, "standard input: cannot read the prompt: Is a directory", "/");
  expect({"-f", empty.path, "-p", "x"}, 2, "--prompt excludes --file");
  expect({"-f", ""}, 2, "--file: the file name is empty");
}

TEST(Prompt, ErrorSuggestsTheFlagForPipedInput) {
  const test::TemporaryFile file("prompt.txt", "x\n");
  for (const char* command : {"run", "tokenize"}) {
    const Finished finished = run({command, "-m", kModel}, {.in = file.path});
    EXPECT_EQ(finished.code, 2);
    EXPECT_THAT(finished.err, HasSubstr("standard input with -f -"));
  }
}

}  // namespace
}  // namespace shoal::tools
