// shoal accepts a command line of llama.cpp if the command line has the same meaning in shoal. Otherwise shoal rejects
// the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "tests/tools/child.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Arguments = std::vector<std::string>;

/// The arguments of a command, translated to the flags of shoal.
Arguments own(const std::string& command, const std::string& args) {
  CLI::App app;
  define_program(app, [](const CommandBody&) {});
  return spell_out(*app.get_subcommand(command), words(args));
}

/// The error message if the arguments are rejected; "" if the arguments are accepted.
std::string refusal(const std::string& command, const std::string& args) {
  try {
    own(command, args);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(ForeignFlags, TranslatesFlagsWithSameMeaning) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "-s 7 --temperature 0", "--seed 7 --temp 0"},
      {"run", "--n-predict 5 --device CPU0", "--predict 5 --devices CPU0"},
      {"run", "-sys x --chat-template-file y", "--system x --template y"},
      {"run", "--repeat-last-n=32 -l 5=1", "--penalty-last-n 32 --logit-bias 5=1"},
      {"run", "-nr -nkvo -kvo --op-offload", "--no-repack --no-kv-offload --no-kv-offload=0 --no-op-offload=0"},
      {"run", "model.gguf -p x", "-p x --model model.gguf"},
      {"bench", "-nkvo 1 -mmp 0 -nopo 0 model.gguf", "--no-kv-offload=1 --mmap=0 --no-op-offload=0 --model model.gguf"},
      {"bench", "-ctk q8_0 -r 3", "--cache-type-k q8_0 -r 3"},
      {"chat", "-ctxcp 4 --system-prompt x", "--ctx-checkpoints 4 --system x"},
      {"tokenize", "-o json", "-o json"},
  };
  for (const auto& [command, given, expected] : cases) {
    EXPECT_THAT(own(command, given), ElementsAreArray(words(expected))) << command << " " << given;
  }
}

TEST(ForeignFlags, DropsFlagsWithoutEffect) {
  for (const char* args : {"-fa -p x", "-fa on -p x", "-fa 1 -p x", "--flash-attn auto -p x", "--flash-attn=on -p x",
                           "-p x -fa", "--jinja -p x", "--no-display-prompt -p x"}) {
    EXPECT_THAT(own("run", args), ElementsAreArray(words("-p x"))) << args;
  }
}

TEST(ForeignFlags, RejectsFlagsWithDifferentMeaning) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "-fa off", "-fa off is not supported, because attention is always flash"},
      {"bench", "-fa 0,1", "-fa 0,1 is not supported, because attention is always flash"},
      {"run", "--mlock", "there is no flag --mlock"},
      {"run", "-mg 0", "there is no flag -mg"},
      {"tokenize", "-s 7", "there is no flag -s"},
      {"run", "-m x two words", "unexpected argument 'two words'; a value with blanks needs quotes"},
      {"run", "x.gguf y.gguf", "unexpected argument 'x.gguf y.gguf'"},
  };
  for (const auto& [command, args, message] : cases) {
    EXPECT_THAT(refusal(command, args), StartsWith(message)) << command << " " << args;
  }
}

TEST(ForeignFlags, RunsLlamaCppCommandLines) {
  const Finished plain = run({"run", "-m", kModel, "-p", kPrompt, "-n", "8", "--temp", "0"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  std::vector<std::string> args{"run", kModel, "-p", kPrompt};
  for (const std::string& word : words("--n-predict 8 --temperature 0 -ngl all -fa on -c 0 --no-display-prompt -s 1 "
                                       "--jinja -b 2048 -ub 512 --no-mmap")) {
    args.push_back(word);
  }
  const Finished pasted = run(args);
  EXPECT_EQ(pasted.code, 0) << pasted.err;
  EXPECT_EQ(pasted.out, plain.out);
}

TEST(ForeignFlags, EveryReportCommandSupportsJson) {
  for (const char* args :
       {"devices", "info -m MODEL", "plan -m MODEL", "tokenize -m MODEL -p x", "detokenize -m MODEL --ids 5"}) {
    Arguments all = words(args);
    for (std::string& arg : all) arg = arg == "MODEL" ? kModel : arg;
    all.insert(all.end(), {"-o", "json"});
    const Finished finished = run(all);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_TRUE(nlohmann::json::accept(finished.out)) << args;
  }
}

TEST(Help, IsAlsoACommand) {
  EXPECT_EQ(run({"help", "run"}).out, run({"run", "--help"}).out);
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "help"}).out, run({"--help"}).out);
  EXPECT_THAT(run({"help", "rnu"}).err, HasSubstr("there is no command 'rnu' (did you mean run?)"));
}

}  // namespace
}  // namespace shoal::tools
