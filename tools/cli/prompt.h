// What a model is asked with: where its text comes from, and checks against the model before its weights are loaded.
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

/// -p -f
struct PromptFlags {
  std::optional<std::string> text;  ///< of -p
  std::optional<std::string> file;  ///< of -f

  void add_to(CLI::App& app);
  bool given() const { return text || file; }
  /// The text of -p; what standard input (`-p -`, `-f -`) or the file holds, less one line end at its end. Blocks as
  /// long as a pipe does, and takes what it reads: to be called once, before interrupts are caught. Throws
  /// InvalidArgument for a file that cannot be read, has no text, or more than a prompt can be.
  std::string read() const;
};

/// A file's text as UTF-8, pipes included. `what` names it in errors: "prompt". Throws InvalidArgument for a file that
/// cannot be read or is longer than any prompt, and Interrupted after catch_interrupts().
std::string read_text_file(const std::string& path, std::string_view what);

/// One line on stderr where the file does not say how the tokenizer cuts texts into pieces.
void warn_of_tokenizer(const models::GgufFile& file, const models::Tokenizer& tokenizer);
/// The same; throws InvalidArgument when the tokenizer has more or fewer tokens than the model has embeddings.
void check_tokenizer(const models::Model& model, const models::Tokenizer& tokenizer);

/// Throws InvalidArgument for an id that is not in [0, vocabulary), naming `flag`.
void check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t vocabulary);

/// The context that a prompt of so many tokens needs with an answer of `answer` (-n); of -1 (any), a third of the
/// prompt.
int64_t context_needed(int64_t tokens, int64_t answer);
/// Throws InvalidArgument when there are no tokens, or more than the context holds; it names the context needed.
void check_length(std::span<const int32_t> tokens, const models::SessionSize& size, int64_t answer);

/// One line on stderr where the context is larger than what the model was trained for.
void warn_of_context(const models::Hparams& hparams, int64_t context);

}  // namespace shoal::tools
