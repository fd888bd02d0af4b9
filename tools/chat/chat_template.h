// Renders a conversation with a chat template, in the format in which the model was trained. Templates are written in
// Jinja, and the sandbox of jinja2 renders them. Each rendering runs a small Python program (chat_template.py) with
// limits on time, memory and output, because model files are untrusted.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::tools {

/// A piece of rendered text, and a flag that is true if the template itself wrote the piece. Only text of the template
/// may contain control tokens. Text of users and models stays ordinary text, even if it looks like a control token.
using RenderedPart = std::pair<std::string, bool>;

struct ChatTemplate {
  std::string text;
  std::string origin;                                 ///< name of the template in messages, such as "m.gguf"
  std::map<std::string, std::string> special_tokens;  ///< "bos_token" -> "<s>"
  std::vector<std::string> stops;                     ///< strings that end an answer, in addition to the model's end
                                                      ///< tokens
};

/// The template for models without one: ChatML, with messages between <|im_start|> and <|im_end|>.
extern const std::string_view kChatMl;

/// Renders the prompt for the next answer. No part is empty. Parts that the template wrote alternate with parts that
/// come from messages. `messages`: array of {"role", "content", ...}. `variables`: additional template variables, such
/// as {"enable_thinking": false}. Throws InvalidArgument with a one-line message if the template refuses the
/// conversation or has an error, or if a required program is missing.
std::vector<RenderedPart> render_chat(const ChatTemplate& chat_template, const nlohmann::json& messages,
                                      const nlohmann::json& variables);

}  // namespace shoal::tools
