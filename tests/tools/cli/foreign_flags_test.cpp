// Command lines of llama.cpp: accepted where the outcome is the same, else refused with a hint.
#include "tools/cli/foreign_flags.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/tools/child.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Arguments = std::vector<std::string>;

/// The arguments of a command in shoal's own spelling.
Arguments own(const std::string& command, const std::string& args) {
  CLI::App app;
  define_program(app, [](const CommandBody&) {});
  return spell_out(*app.get_subcommand(command), words(args));
}

/// Why they are refused; "" where they are not.
std::string refusal(const std::string& command, const std::string& args) {
  try {
    own(command, args);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(ForeignFlags, OfTheSameMeaningAreTranslated) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "-s 7 --temperature 0", "--seed 7 --temp 0"},
      {"run", "--n-predict 5 --device CPU0", "--predict 5 --devices CPU0"},
      {"run", "-sys x --chat-template-file y", "--system x --template y"},
      {"run", "--repeat-last-n=32 -l 5=1", "--penalty-last-n 32 --logit-bias 5=1"},
      {"run", "-nr -nkvo -kvo --op-offload", "--no-repack --no-kv-offload --no-kv-offload=0 --no-op-offload=0"},
      {"run", "model.gguf -p x", "-p x --model model.gguf"},
      {"bench", "-nkvo 1 -mmp 0 -nopo 0 model.gguf", "--no-kv-offload=1 --mmap=0 --no-op-offload=0 --model model.gguf"},
      {"bench", "-pg 512,128 -ctk q8_0 -r 3", "--pg 512,128 --cache-type-k q8_0 -r 3"},
      {"chat", "-ctxcp 4 -sys x", "--ctx-checkpoints 4 --system x"},
      {"tokenize", "-o json", "-o json"},
  };
  for (const auto& [command, given, expected] : cases) {
    EXPECT_THAT(own(command, given), ElementsAreArray(words(expected))) << command << " " << given;
  }
}

TEST(ForeignFlags, WithoutEffectAreLeftOut) {
  for (const char* args :
       {"-fa -p x", "-fa on -p x", "-fa 1 -p x", "--flash-attn auto -p x", "--flash-attn=on -p x", "--jinja -p x",
        "--no-display-prompt -p x", "-no-cnv -p x", "--no-warmup -p x", "--no-escape -p x", "--offline -p x",
        "--mirostat 0 -p x", "--typical 1.0 -p x", "--top-nsigma -1.00 -p x", "-np 1 -p x", "-kvu -p x", "-p x -fa",
        "--no-context-shift -p x", "--keep 0 -p x"}) {
    EXPECT_THAT(own("run", args), ElementsAreArray(words("-p x"))) << args;
  }
  EXPECT_THAT(own("run", "-co off --color -p x --color"), ElementsAreArray(words("-p x")));
  EXPECT_THAT(own("chat", "-cnv --no-warmup -i -if --interactive"), ElementsAreArray(Arguments()));
}

TEST(ForeignFlags, AModelBehindAFlagIsNoValueOfIt) {
  const test::TemporaryFile file("model_without_suffix");
  std::ofstream(file.path) << "GGUF";
  for (const std::string& model : {std::string("none.gguf"), file.path}) {
    for (const char* flag : {"-fa", "--color", "-co"}) {
      EXPECT_THAT(own("run", fmt::format("{} {}", flag, model)), ElementsAreArray(Arguments{"--model", model}));
    }
  }
}

// What only looks the same has another outcome.
TEST(ForeignFlags, OfAnotherOutcomeAreRefusedWithAHint) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "-fa off", "-fa off is not possible: attention is always computed as flash attention"},
      {"run", "--mirostat 2", "--mirostat 2 is not possible: shoal samples by penalties"},
      {"run", "-np 4", "-np 4 is not possible: shoal works on one sequence at a time"},
      {"run", "-np", "-np needs a value: shoal works on one sequence at a time"},
      {"run", "--color on", "--color on is not possible: shoal prints text without colours"},
      {"run", "-i", "there is no flag -i: shoal chat holds a conversation"},
      {"bench", "-fa 0,1", "-fa 0,1 is not possible: attention is always computed as flash attention"},
      {"run", "-r User:", "there is no flag -r: --stop TEXT ends the text"},
      {"run", "-e", "there is no flag -e: -p takes the text as it is"},
      {"run", "-cnv", "there is no flag -cnv: shoal chat holds a conversation"},
      {"chat", "-no-cnv", "there is no flag -no-cnv: shoal run goes on from a text"},
      {"run", "-hf ggml-org/x", "there is no flag -hf: shoal downloads nothing; download the GGUF file and name it"},
      {"run", "--mlock", "there is no flag --mlock: shoal does not lock memory"},
      {"run", "-mg 0", "there is no flag -mg: --devices CUDA0 names the GPU"},
      {"run", "-tb 4", "there is no flag -tb: -t counts for prompts and for generation"},
      {"chat", "-mli", "there is no flag -mli: chat takes lines between \"\"\""},
      {"run", "--spec-draft-model x", "there is no flag --spec-draft-model: shoal has no speculative decoding"},
      {"run", "-m x two words", "'two words' was not expected; a text with blanks needs quotes"},
      {"run", "x.gguf y.gguf", "'x.gguf y.gguf' was not expected"},
  };
  for (const auto& [command, args, message] : cases) {
    EXPECT_THAT(refusal(command, args), StartsWith(message)) << command << " " << args;
  }
}

// The names in the documentation of llama-cli and llama-bench.
constexpr const char* kOfLlamaCli =
    "-h --help --usage -cl --cache-list --completion-bash --verbose-prompt -t --threads -tb --threads-batch -C "
    "--cpu-mask "
    "-Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch "
    "--prio-batch --poll-batch -c --ctx-size -n --predict --n-predict -b --batch-size -ub --ubatch-size --keep "
    "--swa-full "
    "-fa --flash-attn -p --prompt --perf --no-perf -f --file -bf --binary-file -e --escape --no-escape --rope-scaling "
    "--rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor "
    "--yarn-beta-slow --yarn-beta-fast -kvo --kv-offload -nkvo --no-kv-offload --repack -nr --no-repack --no-host -ctk "
    "--cache-type-k -ctv --cache-type-v -dt --defrag-thold -np --parallel --rpc --mlock --mmap --no-mmap -dio "
    "--direct-io -ndio --no-direct-io -lm --load-mode --numa -dev --device --list-devices -ot --override-tensor -cmoe "
    "--cpu-moe -ncmoe --n-cpu-moe -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu "
    "-fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors --override-kv --op-offload --no-op-offload --lora "
    "--lora-scaled --control-vector --control-vector-scaled --control-vector-layer-range -m --model -mu --model-url "
    "-dr "
    "--docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token --log-disable --log-file --log-colors -v "
    "--verbose "
    "--log-verbose --offline -lv --verbosity --log-verbosity --log-prefix --no-log-prefix --log-timestamps "
    "--no-log-timestamps --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft "
    "--samplers -s --seed --sampler-seq --sampling-seq --ignore-eos --temp --temperature --top-k --top-p --min-p "
    "--top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n "
    "--repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length "
    "--dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp "
    "--mirostat --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf "
    "--json-schema-file -bs --backend-sampling --server-base --display-prompt --no-display-prompt -co --color -cram "
    "--cache-ram --context-shift --no-context-shift -sys --system-prompt --show-timings --no-show-timings -sysf "
    "--system-prompt-file -r --reverse-prompt -sp --special -cnv --conversation -no-cnv --no-conversation -st "
    "--single-turn -mli --multiline-input --warmup --no-warmup -mm --mmproj -mmu --mmproj-url --mmproj-auto "
    "--no-mmproj "
    "--no-mmproj-auto --mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image --audio --video "
    "--image-min-tokens --image-max-tokens -o --output --output-file --chat-template-kwargs --jinja --no-jinja "
    "--reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget --reasoning-budget-message "
    "--reasoning-preserve --no-reasoning-preserve --chat-template --chat-template-file --skip-chat-parsing "
    "--no-skip-chat-parsing --simple-io --log-prompts-dir --spec-draft-hf -hfd -hfrd --hf-repo-draft "
    "--spec-draft-threads -td --threads-draft -tbd --threads-batch-draft -Cd --cpu-mask-draft -Crd --cpu-range-draft "
    "--cpu-strict-draft --prio-draft --poll-draft -Cbd --cpu-mask-batch-draft -otd --override-tensor-draft -cmoed "
    "--cpu-moe-draft -ncmoed --n-cpu-moe-draft --spec-draft-n-max --draft-p-split -devd --device-draft -ngld "
    "--gpu-layers-draft --n-gpu-layers-draft -md --model-draft --spec-type --spec-ngram-mod-n-min --draft --draft-n "
    "--draft-max --draft-min --draft-n-min --gpt-oss-20b-default --vision-gemma-4b-default --spec-default --license";
constexpr const char* kOfLlamaBench =
    "-h --help --numa -r --repetitions --prio --delay -o --output -oe --output-err --list-devices -v --verbose "
    "--progress "
    "--no-warmup --n-gen-warmup -rpc --rpc -m --model -hf -hfr --hf-repo -hff --hf-file -hft --hf-token --offline -p "
    "--n-prompt -n --n-gen -pg -d --n-depth -b --batch-size -ub --ubatch-size -ctk --cache-type-k -ctv --cache-type-v "
    "-t "
    "--threads -C --cpu-mask --cpu-strict --poll -ngl --n-gpu-layers -ncmoe --n-cpu-moe --repack -nr --no-repack -sm "
    "--split-mode -mg --main-gpu -nkvo --no-kv-offload -fa --flash-attn -dev --device -mmp --mmap -dio --direct-io -lm "
    "--load-mode -embd --embeddings -ts --tensor-split -ot --override-tensor -nopo --no-op-offload --no-host";

TEST(ForeignFlags, EveryDocumentedFlagOfLlamaCppIsFollowedOrExplained) {
  for (const auto& [command, flags] :
       {std::pair("run", kOfLlamaCli), {"chat", kOfLlamaCli}, {"bench", kOfLlamaBench}}) {
    for (const std::string& flag : words(flags)) {
      const std::string why = refusal(command, flag);
      EXPECT_TRUE(why.empty() || why.find(": ") != std::string::npos) << command << " " << flag << ": " << why;
      EXPECT_THAT(why, Not(HasSubstr("\n")));
      EXPECT_THAT(why, Not(testing::EndsWith(": "))) << command << " " << flag;
    }
  }
}

TEST(ForeignFlags, LinesOfLlamaCppRun) {
  const Finished plain = run({"run", "-m", kModel, "-p", kPrompt, "-n", "8", "--temp", "0"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  const Finished pasted = run({"run",
                               kModel,
                               "-p",
                               kPrompt,
                               "--n-predict",
                               "8",
                               "--temperature",
                               "0",
                               "-ngl",
                               "all",
                               "-fa",
                               "on",
                               "-c",
                               "0",
                               "--no-display-prompt",
                               "-no-cnv",
                               "-s",
                               "1",
                               "--jinja",
                               "-b",
                               "2048",
                               "-ub",
                               "512",
                               "--no-mmap"});
  EXPECT_EQ(pasted.code, 0) << pasted.err;
  EXPECT_EQ(pasted.out, plain.out);
}

TEST(ForeignFlags, EveryCommandWithAReportWritesJson) {
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

TEST(ForeignCommands, HelpIsACommandToo) {
  EXPECT_EQ(run({"help", "run"}).out, run({"run", "--help"}).out);
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "help"}).out, run({"--help"}).out);
  EXPECT_THAT(run({"help", "rnu"}).err, HasSubstr("there is no command 'rnu' (did you mean run?)"));
}

TEST(ForeignCommands, OfOtherProgramsHaveAHint) {
  EXPECT_THAT(
      run({"serve", "-m", kModel}).err,
      HasSubstr("there is no command 'serve': shoal is not a server; shoal chat holds a conversation; there are"));
  EXPECT_THAT(run({"pull", "x"}).err, HasSubstr("there is no command 'pull': shoal downloads nothing"));
  EXPECT_THAT(run({"completion"}).err, HasSubstr("(did you mean run?)"));
  for (const std::string& model : {std::string("none.gguf"), kModel}) {
    EXPECT_THAT(run({model, "-p", "x"}).err,
                HasSubstr(fmt::format("there is no command '{}': write shoal run {}; there are", model, model)));
  }
}

}  // namespace
}  // namespace shoal::tools
