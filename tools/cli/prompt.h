// Reads prompts, and checks prompts against the model before the weights of the model are loaded.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/arch/model.h"
#include "models/session/session.h"
#include "models/tokenizer/tokenizer.h"

namespace shoal::tools {

/// The flags of the prompt: -p -f
struct PromptFlags {
  std::optional<std::string> text;  ///< value of -p
  std::optional<std::string> file;  ///< value of -f

  void add_to(CLI::App& app);
  bool given() const { return text || file; }
  /// Returns the text of -p unchanged, or the content of standard input (`-p -`, `-f -`) or of the file without one
  /// final newline. If the input is a pipe, reads until the pipe ends. So call this function only once, and before
  /// catch_interrupts(). Throws InvalidArgument for a file that cannot be read, has no text, or is larger than 64 MiB.
  std::string read() const;
};

/// Reads a file or pipe as UTF-8 text. `what` names the text in errors, such as "prompt". Throws InvalidArgument for a
/// file that cannot be read or is larger than 64 MiB. After catch_interrupts(), a signal throws Interrupted.
std::string read_text_file(const std::string& path, std::string_view what);

/// Prints one line on stderr if the file does not name a pre-tokenizer.
void warn_of_tokenizer(const models::GgufFile& file, const models::Tokenizer& tokenizer);
/// Calls warn_of_tokenizer(). Throws InvalidArgument if the tokenizer and the embedding have different numbers of
/// tokens.
void check_tokenizer(const models::Model& model, const models::Tokenizer& tokenizer);

/// For an id outside [0, vocabulary), throws InvalidArgument with `flag` in the message.
void check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t vocabulary);

/// Context size for a prompt of `tokens` tokens and an answer of `answer` tokens (-n). An unlimited answer (-1) counts
/// as a third of the prompt.
int64_t context_needed(int64_t tokens, int64_t answer);
/// Throws InvalidArgument if there are no tokens, or more tokens than the context holds. The message names the required
/// context.
void check_length(std::span<const int32_t> tokens, const models::SessionSize& size, int64_t answer);

/// Prints one line on stderr if the context is larger than the trained context.
void warn_of_context(const models::Hparams& hparams, int64_t context);

}  // namespace shoal::tools
