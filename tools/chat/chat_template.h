// Chat templates: from a conversation to the text that a model was trained on. Templates are Jinja, and are rendered by
// jinja2 in its sandbox: a small Python program (chat_template.py) is run for each rendering, with limits on its time,
// memory and output, because templates come from strangers' files.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::tools {

/// Some of a rendered text, and whether it is template text. Only there are control tokens; the words of users and
/// models stay text, whatever they look like.
using RenderedPart = std::pair<std::string, bool>;

struct ChatTemplate {
  std::string text;
  std::string origin;                                 ///< in messages: "m.gguf"
  std::map<std::string, std::string> special_tokens;  ///< "bos_token" -> "<s>"
  std::vector<std::string> stops;                     ///< strings that end an answer, besides the model's end tokens
};

/// The template of models without one: turns between <|im_start|> and <|im_end|>.
extern const std::string_view kChatMl;

/// Parts of a prompt that asks for the next answer; neighbours differ in kind, and none is empty. `messages`: of
/// {"role", "content", ...}; `variables`: further ones, such as {"enable_thinking": false}. Throws InvalidArgument with
/// one line: the template's objection to the conversation, an error in the template, or a missing part of this machine.
std::vector<RenderedPart> render_chat(const ChatTemplate& chat_template, const nlohmann::json& messages,
                                      const nlohmann::json& variables);

}  // namespace shoal::tools
