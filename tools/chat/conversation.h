// A conversation with a model: its messages, and the prompt that the chat template renders from them.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/gguf/gguf.h"
#include "models/tokenizer/tokenizer.h"
#include "tools/chat/chat_template.h"

namespace shoal::tools {

/// --template --template-var --system
struct ChatFlags {
  std::optional<std::string> template_file, system;
  nlohmann::json variables = nlohmann::json::object();

  void add_to(CLI::App& app);
  bool given() const { return template_file || system || !variables.empty(); }
  /// Returns the template of the named file. If no file is named, returns the model's template. If the model has no
  /// template, prints a warning and returns ChatML. Throws InvalidArgument for a file that cannot be read.
  ChatTemplate find_template(const models::GgufFile& model, const models::Tokenizer& tokenizer) const;
};

class Conversation {
 public:
  /// Keeps references to `flags` and `tokenizer`, which must outlive the conversation.
  Conversation(const ChatFlags& flags, ChatTemplate chat_template, const models::Tokenizer& tokenizer);

  void add_user(const std::string& text);
  /// Adds an answer and the thoughts before it. The template decides whether a prompt contains the thoughts.
  void add_answer(const std::string& text, const std::string& thought);
  /// The whole conversation, in the form that restore() accepts.
  const nlohmann::json& messages() const { return messages_; }
  void restore(nlohmann::json messages) { messages_ = std::move(messages); }
  /// Drops the last answer, so that its question can be answered again. Returns false if there is no answer.
  bool drop_answer();
  /// Drops the oldest question and its answer. Returns false if only one question is left.
  bool evict_oldest();
  /// Drops all messages except the system prompt.
  void clear();

  struct Prompt {
    std::vector<int32_t> ids;
    bool begins_thought = false;  ///< whether the answer begins with a thought
  };
  /// Renders the prompt for the next answer. Throws InvalidArgument if the template fails or renders nothing.
  Prompt prompt() const;

 private:
  size_t first_question() const { return flags_.system ? 1 : 0; }

  const ChatFlags& flags_;
  const ChatTemplate template_;
  const models::Tokenizer& tokenizer_;
  nlohmann::json messages_ = nlohmann::json::array();
};

}  // namespace shoal::tools
