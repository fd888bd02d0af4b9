// Every failure prints one line with a remedy on stderr, and nothing on stdout. The exit code is 2 if the command line
// is wrong for every model and machine. Otherwise the exit code is 1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/sanitized.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  const char* name;
  const char* args;  ///< arguments, separated by blanks; MODEL stands for the model file, EMPTY for "", ~ for a blank
  int code;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

/// The exit code is 1, because these failures depend on the model or the machine.
const Case kFailures[] = {
    {"UnknownDevice", "run -m MODEL -p x -dev GPU7", 1, "there is no device 'GPU7'; there are: CPU0, CPU1, CPU2, CPU3"},
    {"OverrideMatchesNothing", "run -m MODEL -p x -ot no_such=CPU", 1, "matches 'no_such'; an example of a name is"},
    {"OverrideToUnknownDevice", "run -m MODEL -p x -ot ffn=GPU0", 1,
     "tensors 'ffn' cannot be placed on GPU0; use one of CPU0"},
    {"UnknownCpu", "run -m MODEL -p x -dev CPU0,CPU9", 1, "set SHOAL_CPU_DEVICES=10 to get that many"},
    {"UnknownCpus", "run -m MODEL -p x -dev CPU0,CPU8,CPU11,CPU9", 1,
     "'CPU8'; there are: CPU0, CPU1, CPU2, CPU3; "
     "set SHOAL_CPU_DEVICES=12 to get"},
    {"CpuOverflow", "run -m MODEL -p x -dev CPU2147483647", 1, "'CPU2147483647'; there are: CPU0, CPU1, CPU2, CPU3\n"},
    {"CpuTooMany", "run -m MODEL -p x -dev CPU1024", 1, "'CPU1024'; there are: CPU0, CPU1, CPU2, CPU3\n"},
    {"CpuNegative", "run -m MODEL -p x -dev CPU-1", 1, "'CPU-1'; there are: CPU0, CPU1, CPU2, CPU3\n"},
    {"CpuWithZeros", "run -m MODEL -p x -dev CPU00", 1, "'CPU00'; there are: CPU0, CPU1, CPU2, CPU3\n"},
    {"TestDevice", "run -m MODEL -p x -dev NULL0", 1, "there is no device 'NULL0'; there are: CPU0"},
    {"TestDeviceOfPlan", "plan -m MODEL -dev CPU0,null0", 1, "there is no device 'null0'; there are: CPU0"},
    {"TestDeviceOfCompare", "compare -m MODEL -dev CPU0,NULL0", 1, "there is no device 'NULL0'; there are: CPU0"},
    {"MissingFile", "run -m no-such-file.gguf -p x", 1, "no-such-file.gguf: cannot open the model file"},
    {"MissingFileOfPlan", "plan -m no-such-file.gguf", 1, "no-such-file.gguf: cannot open the model file"},
    {"MissingFileOfTokenize", "tokenize -m no-such-file.gguf -p x", 1, "no-such-file.gguf: cannot open"},
    {"BiasWithoutValue", "run -m MODEL -p a --logit-bias 15", 2, "--logit-bias: '15' is not ID=VALUE, such as 15=-2.5"},
    {"BiasOfTwoTokens", "run -m MODEL -p a --logit-bias 1,2=3", 2, "'1,2=3' is not ID=VALUE"},
    {"BiasOfUnknownToken", "run -m MODEL -p a --logit-bias 1024=1", 1,
     "--logit-bias: token 1024 is not in the vocabulary"},
    {"RepeatPenalty", "run -m MODEL -p a --repeat-penalty 0", 2, "--repeat-penalty must be a number from 0.01 to 100"},
    {"MissingFileWithEscapes",
     "run -m \x1b[31m\x7f\xc2\x9b"
     "1m -p x",
     1, "\\x1b[31m\\x7f\\u009b1m: cannot open"},
    {"Directory", "run -m / -p x", 1, "/: is a directory, not a model file; check the path"},
    {"NotAModel", "run -m BROKEN -p x", 1, "broken.gguf"},
    {"TruncatedModel", "run -m TRUNCATED -p x", 1, "truncated.gguf"},
    {"PromptTooLong", "run -m MODEL --prompt-tokens 1,2,3,4 -c 3", 1,
     "the prompt has 4 tokens, but the context holds 3; use -c 132 or more"},
    {"PromptTooLongWithoutAnswer", "run -m MODEL --prompt-tokens 1,2,3,4 -c 3 -n 0", 1, "holds 3; use -c 4 or more"},
    {"PromptTooLongForAnyAnswer", "run -m MODEL --prompt-tokens 1,2,3,4 -c 3 -n -1", 1, "holds 3; use -c 6 or more"},
    {"PromptTooLongForComparing", "compare -m MODEL -p In~the -dev CPU0,CPU1 -c 3", 1,
     "4 prompt tokens and one generated token do not fit into a context of 3; use -c 5 or more"},
    {"TokenOutsideVocabulary", "run -m MODEL --prompt-tokens 1,1024", 1,
     "--prompt-tokens: token 1024 is not in the vocabulary; use ids from 0 to 1023"},
    {"IdOutsideVocabulary", "detokenize -m MODEL --ids 1,99999", 1,
     "--ids: token 99999 is not in the vocabulary; use ids from"},
};

/// The exit code is 2, because these command lines are wrong for every model and machine.
const Case kUsageErrors[] = {
    {"DeviceTwice", "run -m MODEL -p x -dev CPU0,CPU0", 2, "device CPU0 is named twice in 'CPU0,CPU0'"},
    {"DeviceTwiceInAnyCase", "plan -m MODEL -dev CPU1,~cpu1", 2, "device cpu1 is named twice"},
    {"DeviceWithoutName", "run -m MODEL -p x -dev CPU0,", 2, "an empty device name in 'CPU0,'; give names such as"},
    {"EmptyDeviceList", "run -m MODEL -p x -dev EMPTY", 2, "an empty device name in ''; give names such as"},
    {"SplitMode", "run -m MODEL -p x -dev CPU0,CPU1 -sm row", 2,
     "--split-mode must be tensor or layer, got 'row'; tensor splits rows and"},
    {"ExpertSplit", "run -m MODEL -p x -dev CPU0,CPU1 --expert-split groups", 2,
     "--expert-split: unknown expert split 'groups'; use auto, inside or whole"},
    {"LatentSplit", "run -m MODEL -p x -dev CPU0,CPU1 --latent-split row", 2,
     "--latent-split: unknown latent split 'row'; use auto, mirrored or rows"},
    {"LayersOnDevices", "run -m MODEL -p x -ngl -2", 2, "--n-gpu-layers must be a whole number from -1 to"},
    {"OverrideWithoutDevice", "run -m MODEL -p x -ot ffn", 2, "'ffn' is not PATTERN=DEVICE, such as ffn_.*_exps=CPU"},
    {"RatioOfGroups", "run -m MODEL -p x -sm layer -dev CPU0+CPU1,CPU2 -ts 1,2,3", 2, "3 numbers for 2 devices"},
    {"GroupWithoutName", "run -m MODEL -p x -dev CPU0+,CPU2", 2, "an empty device name in 'CPU0+,CPU2'"},
    {"RatioIsNotANumber", "run -m MODEL -p x -dev CPU0,CPU1 -ts 3,x", 2,
     "bad ratio '3,x': 'x' is not a number >= 0; give"},
    {"RatioIsNegative", "run -m MODEL -p x -dev CPU0,CPU1 -ts 3,-1", 2, "'-1' is not a number >= 0"},
    {"RatioIsAllZero", "plan -m MODEL -dev CPU0,CPU1 -ts 0,0", 2, "at least one must be above 0"},
    {"RatioHasTooFewShares", "plan -m MODEL -dev CPU0,CPU1,CPU2 -ts 3,1", 2,
     "2 numbers for 3 devices; give one for each"},
    {"NoPrompt", "run -m MODEL", 2, "no prompt; give a text with -p, a file with -f, standard input with -f -, or ids"},
    {"NoPromptTokens", "run -m MODEL --prompt-tokens EMPTY", 2,
     "--prompt-tokens: the list is empty; give ids such as 1,527"},
    {"NoText", "tokenize -m MODEL", 2, "no text; give a text with -p, a file with -f, or standard input with -f -"},
    {"OverridePattern", "run -m MODEL -p x -ot (=CPU", 2, "--override-tensor: '(' is not a regular expression for"},
    {"ProfileWithoutName", "run -m MODEL -p x -ts @", 2, "--tensor-split @: the name of the profile is missing"},
    {"EmptyDeviceListOfBench", "bench -m MODEL -dev EMPTY", 2, "an empty device name in ''; give names such as"},
    {"PluginWithoutName", "run -m MODEL -p x --plugin EMPTY", 2, "--plugin: the file name is empty; give the path"},
    {"ModelWithoutName", "run -m EMPTY -p x", 2, "--model: the file name is empty; give the path of a file"},
    {"ModelWithoutNameOfBench", "bench -m EMPTY", 2, "--model: the file name is empty; give the path of"},
    {"P2pWithOneDevice", "run -m MODEL -p x --comm p2p", 2, "--comm p2p needs several devices that act as one"},
    {"NcclWithOneDeviceInPlan", "plan -m MODEL --comm nccl", 2, "--comm nccl needs several devices that act as one"},
    {"StagedWithOneDeviceInBench", "bench -m MODEL --comm staged", 2, "--comm staged needs several devices"},
    {"P2pWithoutGroupsByLayer", "run -m MODEL -p x -dev CPU0,CPU1 -sm layer --comm p2p", 2,
     "--comm p2p needs several devices that act as one; name a group such as CPU0+CPU1 with --devices, or omit --comm"},
    {"P2pWithoutGroupsByLayerInBench", "bench -m MODEL -dev CPU0,CPU1 -sm layer --comm p2p", 2,
     "name a group such as CPU0+CPU1"},
    {"TwoPrompts", "run -m MODEL -p x --prompt-tokens 1", 2, "excludes"},
    {"TokenIsNotANumber", "run -m MODEL --prompt-tokens 1,x", 2,
     "--prompt-tokens must be a whole number from 0 to 2147483647, got 'x'"},
    {"TokenIsEmpty", "detokenize -m MODEL --ids 1,", 2, "--ids must be a whole number from 0 to 2147483647, got ''"},
    {"CacheType", "run -m MODEL -p x -ctk q4_K", 2,
     "--cache-type-k must be auto, f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl, got 'q4_K'"},
    {"CacheTypeUnknown", "run -m MODEL -p x -ctv f17", 2,
     "--cache-type-v must be auto, f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl, got 'f17'"},
    {"Temperature", "run -m MODEL -p x --temp nan", 2, "--temp must be a finite number, got 'nan'"},
    {"TemperatureTooHigh", "run -m MODEL -p x --temp 1e39", 2, "--temp must be a finite number, got '1e39'"},
    {"TopK", "run -m MODEL -p x --top-k -1", 2, "--top-k must be a whole number from 0 to 2147483647, got '-1'"},
    {"TopP", "run -m MODEL -p x --top-p 1.5", 2, "--top-p must be a number from 0 to 1, got '1.5'"},
    {"MinP", "run -m MODEL -p x --min-p x", 2, "--min-p must be a number from 0 to 1, got 'x'"},
    {"TopLogits", "run -m MODEL -p x --top-logits -1", 2, "--top-logits must be a whole number from 0"},
    {"Context", "run -m MODEL -p x -c -5", 2, "--ctx-size must be a whole number from 0 to 2147483647, got '-5'"},
    {"ContextTooLarge", "plan -m MODEL -c 9223372036854775808", 2, "--ctx-size must be a whole number from 0"},
    {"Batch", "run -m MODEL -p x -ub 0", 2, "--ubatch-size must be a whole number from 1 to 2147483647, got '0'"},
    {"Count", "run -m MODEL -p x -n many", 2, "--predict must be a whole number from -1 to 2147483647, got 'many'"},
    {"CountBelowMinusOne", "run -m MODEL -p x -n -7", 2, "--predict must be a whole number from -1"},
    {"CountIsEmpty", "run -m MODEL -p x -n EMPTY", 2, "--predict must be a whole number from -1"},
    {"CountTooLarge", "run -m MODEL -p x -n 99999999999999999999", 2, "--predict must be a whole number from -1"},
    {"Seed", "run -m MODEL -p x --seed 18446744073709551616", 2,
     "--seed must be a whole number from 0 to 18446744073709551615, or -1 for a random one"},
    {"SeedIsNegative", "run -m MODEL -p x --seed -2", 2, "--seed must be a whole number from 0"},
    {"Threads", "run -m MODEL -p x -t -1", 2, "--threads must be a whole number from 0 to 1024, got '-1'"},
    {"ThreadsTooMany", "run -m MODEL -p x -t 1025", 2, "--threads must be a whole number from 0 to 1024"},
    {"CompareWithOneDevice", "compare -m MODEL -dev CPU0", 2, "compare needs at least two devices"},
    {"CompareWithoutDevices", "compare -m MODEL", 2, "compare needs at least two devices; name them with --devices"},
    {"CompareWithBatchSize", "compare -m MODEL -dev CPU0,CPU1 -ub 4", 2,
     "there is no flag -ub; see shoal compare --help"},
    {"Threshold", "compare -m MODEL -dev CPU0,CPU1 --threshold inf", 2,
     "--threshold must be a finite number of at least 0, got 'inf'"},
    {"ThresholdIsNegative", "compare -m MODEL -dev CPU0,CPU1 --threshold -1", 2, "--threshold must be a finite number"},
    {"Rank", "plan -m MODEL -dev CPU0,CPU1 --rank 2", 2, "--rank 2: ranks are 0 to 1"},
    {"RankIsNegative", "plan -m MODEL --rank -1", 2, "--rank must be a whole number from 0 to"},
    {"NoCommand", "", 2, "no command; the commands are run, chat, tokenize, detokenize, info, devices, plan, compare"},
    {"UnknownCommand", "generate", 2, "there is no command 'generate'; the commands are run, chat"},
    {"FlagBeforeTheCommand", "-m MODEL run -p x", 2, "-m comes before the command; begin with a command: run, chat,"},
    {"UnknownFlag", "run -m MODEL -p x --bogus 3", 2, "there is no flag --bogus; see shoal run --help"},
    {"UnknownShortFlag", "run -m MODEL -p x -nkv", 2, "there is no flag -nkv (did you mean -nkvo?); see shoal"},
    {"UnknownShortFlagLikeThreads", "run -m MODEL -p x -tb 3", 2, "there is no flag -tb; see shoal run --help"},
    {"UnknownShortFlagLikeModel", "run -m MODEL -p x -mg 0", 2, "there is no flag -mg; see shoal run --help"},
    {"ArgumentWithoutFlag", "run -m MODEL -p x more", 2,
     "unexpected argument 'more'; a value with blanks needs quotes"},
    {"MissingFlag", "run -p x", 2, "--model or --hf-repo is required; see shoal run --help"},
    {"MissingValue", "run -m MODEL -p x -dev", 2, "--devices"},
    {"OutputFormat", "plan -m MODEL --output xml", 2, "--output must be text or json, got 'xml'"},
};

/// Writes a file that is not a valid model. BROKEN is a text file, and TRUNCATED is the beginning of a model file.
std::string broken_file(const std::string& word) {
  std::string path = test::temporary(word == "BROKEN" ? "broken.gguf" : "truncated.gguf");
  std::ofstream(path, std::ios::binary) << (word == "BROKEN" ? "This is no model."
                                                             : test::text_of(kModel).substr(0, 2000000));
  return path;
}

class Errors : public ::testing::TestWithParam<Case> {};

TEST_P(Errors, PrintOneLineWithARemedy) {
  std::vector<std::string> args = words(GetParam().args);
  std::string broken;
  for (std::string& arg : args) {
    std::replace(arg.begin(), arg.end(), '~', ' ');
    if (arg == "MODEL") arg = kModel;
    if (arg == "EMPTY") arg = "";
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

INSTANTIATE_TEST_SUITE_P(Failures, Errors, ::testing::ValuesIn(kFailures),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Usage, Errors, ::testing::ValuesIn(kUsageErrors),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MemoryErrors, ReportDeviceAndNeededMemory) {
  auto err = [](const char* args) {
    std::vector<std::string> all = words(args);
    all.insert(all.begin() + 1, {"-m", kModel, "-c", "2000000000"});
    Finished finished = run(all);
    EXPECT_EQ(finished.code, 1);
    EXPECT_EQ(finished.out, "");
    return finished.err;
  };
  EXPECT_THAT(err("run -p x"), HasSubstr("CPU0 needs 5.6 TiB and has "));
  EXPECT_THAT(err("run -p x -dev CPU1,CPU2"), HasSubstr("CPU1 needs 2.8 TiB and has "));
  // CPU0 needs memory for one whole cache and half of another cache.
  EXPECT_THAT(err("compare -dev CPU0,CPU1"), HasSubstr("CPU0 needs 8.4 TiB and has "));
}

TEST(SystemErrors, ReportThreadsThatCannotStart) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need the whole address space";
  // The stack of each thread takes several megabytes of the address space.
  Finished finished = run({"run", "-m", kModel, "-p", "x", "-t", "1000"}, {.address_space = size_t{1} << 30});
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_THAT(
      finished.err,
      StartsWith("shoal: error: 1002 threads are needed, but the system starts only "));  // 1000 threads of the device
                                                                                          // and two threads for loading
  EXPECT_THAT(finished.err, HasSubstr("; use fewer devices or threads (-t), or raise the limit"));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

/// Invalid values of SHOAL_CPU_DEVICES and SHOAL_CPU_ISA.
TEST(EnvironmentErrors, PrintOneLine) {
  Finished devices = run({"devices"}, {.cpu_devices = "many"});
  EXPECT_EQ(devices.code, 1);
  EXPECT_THAT(devices.err, HasSubstr("SHOAL_CPU_DEVICES must be a whole number from 0 to 1024, got 'many'"));
  setenv("SHOAL_CPU_ISA", "sse9", 1);
  Finished isa = run({"run", "-m", kModel, "-p", "x", "-n", "1"});
  unsetenv("SHOAL_CPU_ISA");
  EXPECT_EQ(isa.code, 1);
  EXPECT_THAT(isa.err, HasSubstr("got 'sse9'; unset the variable for the best level"));
}

}  // namespace
}  // namespace shoal::tools
