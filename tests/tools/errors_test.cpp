// Every failure is one line on stderr with the remedy, nothing on stdout, and an exit code: 1, or 2 for usage.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  const char* name;
  const char* args;  ///< words; MODEL stands for the model file
  int code;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const Case kCases[] = {
    {"UnknownDevice", "run -m MODEL -p x -dev GPU7", 1, "there is no device 'GPU7'; there are: CPU0, CPU1, CPU2, CPU3"},
    {"UnknownCpu", "run -m MODEL -p x -dev CPU0,CPU9", 1, "SHOAL_CPU_DEVICES=10 makes that many"},
    {"DeviceTwice", "run -m MODEL -p x -dev CPU0,CPU0", 1, "device CPU0 is named twice"},
    {"RatioIsNoNumber", "run -m MODEL -p x -dev CPU0,CPU1 -ts 3,x", 1, "bad ratio '3,x': 'x' is no number >= 0; give"},
    {"RatioIsNegative", "run -m MODEL -p x -dev CPU0,CPU1 -ts 3,-1", 1, "'-1' is no number >= 0"},
    {"RatioIsAllZero", "plan -m MODEL -dev CPU0,CPU1 -ts 0,0", 1, "at least one must be above 0"},
    {"RatioHasTooFew", "plan -m MODEL -dev CPU0,CPU1,CPU2 -ts 3,1", 1, "2 numbers for 3 devices; give one for each"},
    {"MissingFile", "run -m no-such-file.gguf -p x", 1, "no-such-file.gguf: cannot open the model file"},
    {"MissingFileOfPlan", "plan -m no-such-file.gguf", 1, "no-such-file.gguf: cannot open the model file"},
    {"MissingFileOfTokenize", "tokenize -m no-such-file.gguf -p x", 1, "no-such-file.gguf: cannot open"},
    {"Directory", "run -m / -p x", 1, "/: is a directory; name a GGUF file"},
    {"NotAModel", "run -m BROKEN -p x", 1, "broken.gguf"},
    {"TruncatedModel", "run -m TRUNCATED -p x", 1, "truncated.gguf"},
    {"TooLittleMemory", "run -m MODEL -p x -c 2000000000", 1, "CPU0 needs 5.6 TiB and has "},
    {"TooLittleMemoryOfMany", "run -m MODEL -p x -c 2000000000 -dev CPU1,CPU2", 1, "CPU1 needs 2.8 TiB and has "},
    {"NoPrompt", "run -m MODEL", 1, "no prompt; give a text with -p or ids with --prompt-tokens"},
    {"PromptTooLong", "run -m MODEL --prompt-tokens 1,2,3,4 -c 3", 1,
     "the prompt has 4 tokens and the context holds 3;"},
    {"TokenOutside", "run -m MODEL --prompt-tokens 1,1024", 1, "token 1024 is not in the vocabulary of 1024"},
    {"TokenIsNoNumber", "run -m MODEL --prompt-tokens 1,x", 1, "--prompt-tokens"},
    {"CacheType", "run -m MODEL -p x -ctk q4_0", 1, "a KV cache cannot hold keys as q4_0; use f16, f32 or q8_0"},
    {"CacheTypeUnknown", "run -m MODEL -p x -ctv f17", 1, "--cache-type-v f17: no such type; use f16, f32 or q8_0"},
    {"Temperature", "run -m MODEL -p x --temp nan", 1, "temp"},
    {"TopP", "run -m MODEL -p x --top-p 1.5", 1, "top_p"},
    {"Context", "run -m MODEL -p x -c -5", 1, "a context of -5 tokens is not possible"},
    {"Batch", "run -m MODEL -p x -ub 0", 1, "a batch of 0 tokens is not possible"},
    {"CompareOfOne", "compare -m MODEL", 1, "comparing needs at least two devices"},
    {"IdsOutside", "detokenize -m MODEL --ids 1,99999", 1, "99999"},
    {"NoCommand", "", 2, "no command; name one of run, tokenize, detokenize, devices, plan, compare"},
    {"UnknownCommand", "generate", 2, "there is no command 'generate'; there are run,"},
    {"UnknownFlag", "run -m MODEL -p x --bogus", 2, "--bogus; see shoal run --help"},
    {"MissingFlag", "run -p x", 2, "--model is required; see shoal run --help"},
    {"MissingValue", "run -m MODEL -p x -dev", 2, "--devices"},
    {"NotANumber", "run -m MODEL -p x -n many", 2, "--predict = many; see shoal run --help"},
    {"OutputFormat", "plan -m MODEL --output xml", 2, "xml not in"},
    {"TwoPrompts", "run -m MODEL -p x --prompt-tokens 1", 2, "excludes"},
    {"Threads", "run -m MODEL -p x -t -1", 2, "--threads"},
};

/// Files that are no models, by the word that stands for them.
std::string broken_file(const std::string& word) {
  std::string path =
      ::testing::TempDir() + std::to_string(getpid()) + (word == "BROKEN" ? "broken.gguf" : "truncated.gguf");
  std::ifstream model(kModel, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(model), {}};
  std::ofstream(path, std::ios::binary) << (word == "BROKEN" ? "This is no model." : bytes.substr(0, 2000000));
  return path;
}

class Errors : public ::testing::TestWithParam<Case> {};

TEST_P(Errors, OneLineWithTheRemedy) {
  std::vector<std::string> args = words(GetParam().args);
  std::string broken;
  for (std::string& arg : args) {
    if (arg == "MODEL") arg = kModel;
    if (arg == "BROKEN" || arg == "TRUNCATED") arg = broken = broken_file(arg);
  }
  Finished finished = run(args);
  if (!broken.empty()) std::filesystem::remove(broken);
  EXPECT_EQ(finished.code, GetParam().code);
  EXPECT_EQ(finished.out, "");
  EXPECT_THAT(finished.err, StartsWith("shoal: error: "));
  EXPECT_THAT(finished.err, HasSubstr(GetParam().message));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

INSTANTIATE_TEST_SUITE_P(All, Errors, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::tools
