#include "tools/cli/prompt.h"

#include <unistd.h>

#include "base/error.h"
#include "base/user_file.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

/// Maximum size of a prompt in bytes. No context needs a larger prompt. Because of this limit, reading an endless file
/// such as /dev/zero ends with an error.
constexpr size_t kLongestPrompt = size_t{64} << 20;

/// Describes a text file or standard input for read_file().
InputFile text_file(const std::string& path, std::string_view what) {
  return {.path = path, .what = what, .takes_streams = true, .most_bytes = kLongestPrompt, .poll = stop_if_interrupted};
}

/// Removes the byte order mark that some editors put in front of UTF-8.
std::string without_mark(std::string text, const std::string& name) {
  require<InvalidArgument>(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"),
                           "{}: the text is UTF-16; save it as UTF-8", name);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

/// Removes the final newline, which belongs to the editor and not to the prompt.
std::string prompt_of(std::string text, const std::string& name) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  require<InvalidArgument>(!text.empty(), "{}: contains no text; for an empty prompt use -p \"\"", name);
  return text;
}

}  // namespace

void PromptFlags::add_to(CLI::App& app) {
  const auto read_prompt = [this](const std::string&, const std::string& value) { text = value; };
  const auto read_name = [this](const std::string& flag, const std::string& value) {
    check_file_name(flag, value);
    file = value;
  };
  CLI::Option* prompt = add_parsed(app, "-p,--prompt", "TEXT", read_prompt, "Prompt text; -: standard input");
  add_parsed(app, "-f,--file", "FILE", read_name,
             "File with the prompt text; -: standard input. One newline at the end is dropped")
      ->excludes(prompt);
}

std::string PromptFlags::read() const {
  if (file == "-" || text == "-") {
    note_input("/dev/stdin");
    const InputFile input = text_file("standard input", "prompt");
    return prompt_of(without_mark(read_stream(STDIN_FILENO, input), input.path), input.path);
  }
  return file ? prompt_of(read_text_file(*file, "prompt"), *file) : text.value_or("");
}

std::string read_text_file(const std::string& path, std::string_view what) {
  return without_mark(read_file(text_file(path, what)), path);
}

void warn_of_tokenizer(const models::GgufFile& file, const models::Tokenizer& tokenizer) {
  if (!tokenizer.guesses_pieces()) return;
  warn(
      fmt::format("{}: key 'tokenizer.ggml.pre' does not name a pre-tokenizer; the GPT-2 pre-tokenizer is used, so the "
                  "output may be poor; convert the model again",
                  file.path()));
}

void check_tokenizer(const models::Model& model, const models::Tokenizer& tokenizer) {
  warn_of_tokenizer(model.file, tokenizer);
  require<InvalidArgument>(
      tokenizer.vocabulary().size() == model.hparams.vocab,
      "{}: the tokenizer has {} tokens, but token_embd.weight has {} rows; convert the model again", model.file.path(),
      tokenizer.vocabulary().size(), model.hparams.vocab);
}

void check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t vocabulary) {
  for (int32_t id : ids) {
    require<InvalidArgument>(id >= 0 && id < vocabulary, "{}: token {} is not in the vocabulary; use ids from 0 to {}",
                             flag, id, vocabulary - 1);
  }
}

int64_t context_needed(int64_t tokens, int64_t answer) {
  return tokens + (answer < 0 ? tokens / 3 + 1 : answer);
}

void check_length(std::span<const int32_t> tokens, const models::SessionSize& size, int64_t answer) {
  int64_t count = static_cast<int64_t>(tokens.size());
  require<InvalidArgument>(count > 0, "the prompt is empty; give a text with -p or ids with --prompt-tokens");
  require<InvalidArgument>(count <= size.context,
                           "the prompt has {} tokens, but the context holds {}; use -c {} or more", count, size.context,
                           context_needed(count, answer));
}

void warn_of_context(const models::Hparams& hparams, int64_t context) {
  if (context <= hparams.context) return;
  warn(fmt::format("a context of {} exceeds the {} tokens that the model was trained for; longer texts may be poor",
                   context, hparams.context));
}

}  // namespace shoal::tools
