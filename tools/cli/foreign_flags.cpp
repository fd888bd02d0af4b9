#include "tools/cli/foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace shoal::tools {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOwnNames[] = {
    {"-s", "--seed"},
    {"--temperature", "--temp"},
    {"--n-predict", "--predict"},
    {"--device", "--devices"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"--chat-template-file", "--template"},
    {"--repeat-last-n", "--penalty-last-n"},
    {"-l", "--logit-bias"},
    {"-ctxcp", "--ctx-checkpoints"},
    {"--swa-checkpoints", "--ctx-checkpoints"},
    {"-kvo", "--no-kv-offload=0"},
    {"--kv-offload", "--no-kv-offload=0"},
    {"--op-offload", "--no-op-offload=0"},
    {"-nopo", "--no-op-offload"},
    {"-nr", "--no-repack"},
    {"-mmp", "--mmap"},
    {"-bs", "--sample-on-host=0"},
    {"--backend-sampling", "--sample-on-host=0"},
    {"--no-show-timings", "--show-timings=0"},
    {"--usage", "--help"},
};

constexpr std::string_view kNoSampler =
    "shoal samples by penalties, top-k, top-p, min-p and temperature, in this order";
constexpr std::string_view kNoDownload = "shoal downloads nothing; download the GGUF file and name it with -m";
constexpr std::string_view kNoServer = "shoal is not a server; shoal chat holds a conversation";
constexpr std::string_view kCores = "-t sets the number of threads, and taskset or numactl in front of shoal the cores";
constexpr std::string_view kConversation = "shoal chat holds a conversation, and run --chat asks a single question";
constexpr std::string_view kThoughts =
    "--template-var sets what the chat template knows, such as enable_thinking=false; thoughts go to stderr";
constexpr std::string_view kAsInFile = "shoal follows the metadata of the file as it is";
constexpr std::string_view kNoLog = "shoal has no log; --trace FILE records every step";

/// Flags that change nothing here.
struct Followed {
  std::string_view names;     ///< with blanks between them
  std::string_view commands;  ///< with blanks between them; "": all
  std::string_view values;    ///< with "|" between them; an empty one: the flag may stand alone
  std::string_view hint;      ///< for other values
};
constexpr Followed kFollowed[] = {
    {"-fa --flash-attn", "", "|on|auto|1|-1|enabled", "attention is always computed as flash attention"},
    {"--jinja", "", "", ""},
    {"--no-display-prompt --no-escape --offline --no-mmproj -ndio --no-direct-io", "", "", ""},
    {"-kvu --kv-unified -no-kvu --no-kv-unified", "", "", ""},
    {"-no-cnv --no-conversation --no-context-shift --show-timings --perf", "run", "", ""},
    {"-cnv --conversation -i --interactive -if --interactive-first", "chat", "", ""},
    {"--no-warmup", "run chat", "", ""},
    {"-np --parallel", "", "1", "shoal works on one sequence at a time"},
    {"-lm --load-mode", "", "auto", "--mmap and --no-mmap say how weights are loaded"},
    {"-co --color", "", "|off|auto", "shoal prints text without colours"},
    {"--keep", "", "0", "chat keeps the system prompt (--system) and drops the oldest questions"},
    {"--mirostat --xtc-probability --dry-multiplier --dynatemp-range", "", "0", kNoSampler},
    {"--typical --typical-p", "", "1", kNoSampler},
    {"--top-nsigma --top-n-sigma --adaptive-target", "", "-1", kNoSampler},
    {"--delay", "", "0", "bench runs the tests without a pause"},
    {"-embd --embeddings --no-host", "bench", "0", "bench measures the text of a model alone"},
};

/// Flags that shoal cannot follow. A name that ends in "*" stands for all that begin so.
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
    {"-r --reverse-prompt", "--stop TEXT ends the text, and is not printed itself"},
    {"-e --escape", "-p takes the text as it is; shells write line ends as in $'a\\nb'"},
    {"-no-cnv --no-conversation", "shoal run goes on from a text without a conversation"},
    {"-cnv --conversation -st --single-turn -i --interactive -if --interactive-first", kConversation},
    {"--context-shift --no-context-shift",
     "run stops at the end of the context (-c), and chat drops the oldest questions"},
    {"--display-prompt", "the output is the answer alone"},
    {"--verbose-prompt -sp --special", "shoal tokenize shows the tokens of a text"},
    {"--warmup", "only bench warms up"},
    {"--show-timings --no-show-timings --perf --no-perf", "timings go to stderr"},
    {"-mli --multiline-input",
     "chat takes lines between \"\"\" and \"\"\", pasted ones, and more after a \\ at the end of one"},
    {"--simple-io", "chat reads plain lines where its input is not a terminal"},
    {"-sysf --system-prompt-file", "--system \"$(cat FILE)\" reads a file"},
    {"-bf --binary-file", "-f takes a file as it is"},
    {"--stdin", "-f - reads standard input"},
    {"--in-prefix --in-prefix-bos --in-suffix", "the chat template says what surrounds a question (--template FILE)"},
    {"--chat-template", "--template FILE takes a template; the model's is used without it"},
    {"--chat-template-kwargs", "--template-var NAME=VALUE sets one variable of the template"},
    {"--no-jinja --skip-chat-parsing --no-skip-chat-parsing", "templates are always rendered by Jinja"},
    {"--reasoning* --no-reasoning* -rea", kThoughts},
    {"-tb --threads-batch", "-t counts for prompts and for generation"},
    {"-C --cpu-mask* -Cr --cpu-range* --cpu-strict* -Cb -Crb --prio* --poll*", kCores},
    {"--numa", "every NUMA node is a CPU device; name several with --devices CPU0,CPU1"},
    {"-mg --main-gpu", "--devices CUDA0 names the GPU"},
    {"--list-devices", "shoal devices lists them"},
    {"--rpc -rpc", "mpirun joins the devices of several hosts (docs/hosts.md)"},
    {"--mlock", "shoal does not lock memory; --no-mmap copies weights into memory"},
    {"-dio --direct-io", "weights are read through the page cache"},
    {"--no-host", "shoal has no such buffers"},
    {"--check-tensors", "files are checked as they are opened, weights are not"},
    {"--swa-full", "windows keep what they see; --ctx-checkpoints is for going back"},
    {"-dt --defrag-thold", "caches have no gaps"},
    {"-cram --cache-ram", "--ctx-checkpoints says how much is kept"},
    {"--prompt-cache*", "prompts are not kept between runs"},
    {"--override-kv --rope-* --yarn-*", kAsInFile},
    {"--lora* --control-vector*", "adapters are not supported; merge them into the model"},
    {"-mm --mmproj* --no-mmproj* -mmu -mmdev --image* --audio --video", "shoal reads text alone"},
    {"-hf -hfr -hff -hft -hfd -hfrd --hf-* -mu --model-url -dr --docker-repo -cl --cache-list --gpt-oss-* --vision-*",
     kNoDownload},
    {"-md -td -tbd -devd -ngld -otd -ctkd -ctvd -cmoed -ncmoed -Cd -Crd -Cbd --spec-* --draft* --model-draft "
     "--threads-draft --threads-batch-draft --device-draft --gpu-layers-draft --n-gpu-layers-draft "
     "--override-tensor-draft --cache-type-k-draft --cache-type-v-draft --cpu-moe-draft --n-cpu-moe-draft",
     "shoal has no speculative decoding"},
    {"--samplers --sampler-seq --sampling-seq --xtc-threshold --dry-* --adaptive-decay --dynatemp-exp --mirostat-*",
     kNoSampler},
    {"--grammar* -j --json-schema* -jf", "shoal cannot hold a model to a grammar or schema"},
    {"-v --verbose --log-* --no-log-* -lv --verbosity", kNoLog},
    {"--host --port --path --api-key* --metrics --slots --props --embeddings --embedding --rerank* -cb "
     "--cont-batching --no-webui --webui --ssl-* -a --alias --server-base -to --timeout",
     kNoServer},
    {"-oe --output-err --progress", "-o says how stdout is written; the rows come as they are measured"},
    {"--output-file", "shell redirection (> FILE) writes stdout to a file"},
    {"--n-gen-warmup", "bench warms up by itself; --no-warmup leaves that out"},
    {"--completion-bash --license", "shoal COMMAND --help lists the flags"},
};

/// The part in front of the first `separator`, which is cut off with it.
std::string_view next_part(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

bool is_among(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::string_view one = next_part(names, ' ');
    if (one == name || (one.ends_with('*') && name.starts_with(one.substr(0, one.size() - 1)))) return true;
  }
  return false;
}

/// Equal texts, or equal numbers: "0" and "0.0".
bool is_same_value(std::string_view one, std::string_view other) {
  double a = 0, b = 0;
  const auto read = [](std::string_view text, double& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  return one == other || (read(one, a) && read(other, b) && a == b);
}

/// Is it among the values? The empty one does not count.
bool has_value(std::string_view values, std::string_view value) {
  while (!values.empty()) {
    const std::string_view one = next_part(values, '|');
    if (!one.empty() && is_same_value(one, value)) return true;
  }
  return false;
}

/// Is the argument behind a flag that may stand alone no value of it? So are other flags, and files: the model.
bool is_no_value(const std::string& next) {
  std::error_code ignored;
  return next.starts_with('-') || next.ends_with(".gguf") || std::filesystem::is_regular_file(next, ignored);
}

}  // namespace

std::string_view own_name(std::string_view flag) {
  const auto* const found =
      std::find_if(std::begin(kOwnNames), std::end(kOwnNames), [flag](const auto& pair) { return pair.first == flag; });
  return found == std::end(kOwnNames) ? std::string_view() : found->second;
}

std::optional<bool> passed_over(std::string_view command, std::string_view flag, const std::string* value) {
  for (const Followed& one : kFollowed) {
    if (!is_among(one.names, flag) || !(one.commands.empty() || is_among(one.commands, command))) continue;
    if (value != nullptr && has_value(one.values, *value)) return true;
    const bool may_stand_alone = one.values.empty() || one.values.starts_with('|');
    const bool stands_alone = one.values.empty() || value == nullptr || is_no_value(*value);
    if (may_stand_alone && stands_alone) return false;
    require<InvalidArgument>(value != nullptr, "{} needs a value: {}", flag, one.hint);
    fail<InvalidArgument>("{} {} is not possible: {}", flag, *value, one.hint);
  }
  for (const auto& [names, hint] : kRefused) {
    if (is_among(names, flag)) fail<InvalidArgument>("there is no flag {}: {}", flag, hint);
  }
  return std::nullopt;
}

std::string hint_for_command(std::string_view command) {
  if (is_among("serve server llama-server", command)) return fmt::format(": {}", kNoServer);
  if (is_among("pull download", command)) return fmt::format(": {}", kNoDownload);
  if (is_among("generate completion complete llama-completion", command)) return " (did you mean run?)";
  if (is_among("cli llama-cli", command)) return " (did you mean chat?)";
  if (command.ends_with(".gguf")) return fmt::format(": write shoal run {}", command);
  return is_among("llama-bench benchmark", command) ? " (did you mean bench?)" : "";
}

}  // namespace shoal::tools
