// A conversation with a model: messages, and the prompt that the model's template makes of them.
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
  /// The template of the file that is named, or the model's; where there is none ChatML, with a warning. Throws
  /// InvalidArgument for a file that cannot be read.
  ChatTemplate find_template(const models::GgufFile& model, const models::Tokenizer& tokenizer) const;
};

class Conversation {
 public:
  /// Keeps references.
  Conversation(const ChatFlags& flags, ChatTemplate chat_template, const models::Tokenizer& tokenizer);

  void add_user(const std::string& text);
  /// An answer, and what was thought before it: where the template shows that, too.
  void add_answer(const std::string& text, const std::string& thought);
  /// All of it, and back to what it was.
  const nlohmann::json& messages() const { return messages_; }
  void restore(nlohmann::json messages) { messages_ = std::move(messages); }
  /// Drops the last answer, so that its question can be answered again; false where there is none.
  bool drop_answer();
  /// Drops the oldest question with its answer; false where only one question is left.
  bool drop_oldest();
  /// All but the system's message.
  void clear();

  struct Prompt {
    std::vector<int32_t> ids;
    bool begins_thought = false;  ///< the answer begins in a thought
  };
  /// For the next answer. Throws InvalidArgument where the template fails, or makes nothing.
  Prompt prompt() const;

 private:
  size_t first_question() const { return flags_.system ? 1 : 0; }

  const ChatFlags& flags_;
  const ChatTemplate template_;
  const models::Tokenizer& tokenizer_;
  nlohmann::json messages_ = nlohmann::json::array();
};

}  // namespace shoal::tools
