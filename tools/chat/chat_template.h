// Chat templates: from a conversation to the text that a model was trained on. Templates are Jinja, and are rendered by
// jinja2 in its sandbox: a small Python program (chat_template.py) is run for each rendering, with limits on its time,
// memory and output, because templates come from strangers' files.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chat/child_process.h"

namespace shoal::tools {

/// Some of a rendered text. Only in template text are there control tokens; what users and models wrote stays text,
/// whatever it looks like.
struct RenderedPart {
  std::string text;
  bool is_template = false;
  bool operator==(const RenderedPart&) const = default;
};

struct ChatTemplate {
  std::string text;
  std::string origin;                                 ///< in messages: "m.gguf"
  std::map<std::string, std::string> special_tokens;  ///< "bos_token" -> "<s>"
  std::vector<std::string> stops;                     ///< strings that end an answer, besides the model's end tokens
};

/// What is rendered.
struct ChatRequest {
  nlohmann::json messages = nlohmann::json::array();  ///< of {"role", "content", ...}
  bool add_generation_prompt = true;
  nlohmann::json variables = nlohmann::json::object();  ///< further ones, such as {"enable_thinking": false}
};

/// The template of models without one: turns between <|im_start|> and <|im_end|>.
extern const std::string_view kChatMl;

/// Neighbours differ in is_template, and none is empty. Throws InvalidArgument with one line: what the template says
/// against the conversation, what is wrong with the template, or what is missing on this machine.
std::vector<RenderedPart> render_chat(const ChatTemplate& chat_template, const ChatRequest& request,
                                      const ChildLimits& limits = {});

/// All of it.
std::string text_of(const std::vector<RenderedPart>& parts);

}  // namespace shoal::tools
