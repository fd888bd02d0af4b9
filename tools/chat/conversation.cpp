#include "tools/chat/conversation.h"

#include <fmt/format.h>

#include "base/error.h"
#include "tools/chat/answer.h"
#include "tools/cli/options.h"
#include "tools/cli/program.h"
#include "tools/cli/prompt.h"

namespace shoal::tools {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

/// Parses a value as JSON. Text that is not JSON becomes a string.
nlohmann::json value_of(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json(text) : value;
}

}  // namespace

void ChatFlags::add_to(CLI::App& app) {
  const auto read_file = [this](const std::string& flag, const std::string& text) {
    check_file_name(flag, text);
    template_file = text;
  };
  add_parsed(app, "--template", "FILE", read_file,
             "File with a chat template (Jinja) that replaces the model's template");
  const auto read_variable = [this](const std::string& flag, const std::string& text) {
    const size_t equals = text.find('=');
    require<InvalidArgument>(equals != std::string::npos && equals > 0,
                             "{}: '{}' is not NAME=VALUE, such as enable_thinking=false", flag, text);
    const std::string name = text.substr(0, equals);
    require<InvalidArgument>(name != "messages" && name != "add_generation_prompt",
                             "{}: '{}' is set by the conversation; name another variable", flag, name);
    variables[name] = value_of(text.substr(equals + 1));
  };
  add_repeated(app, "--template-var", "NAME=VALUE", read_variable,
               "Set a variable of the chat template, such as enable_thinking=false; may be repeated");
  const auto read_system = [this](const std::string&, const std::string& text) { system = text; };
  add_parsed(app, "--system", "TEXT", read_system, "Text of the system prompt");
}

ChatTemplate ChatFlags::find_template(const models::GgufFile& model, const models::Tokenizer& tokenizer) const {
  ChatTemplate found;
  const auto named = [&](const char* name, int32_t id) {
    if (id >= 0) found.special_tokens[name] = tokenizer.vocabulary().piece(id);
  };
  named("bos_token", tokenizer.bos());
  named("eos_token", tokenizer.eos());
  if (template_file) {
    found.origin = *template_file;
    found.text = read_text_file(*template_file, "chat template");
    require<InvalidArgument>(!found.text.empty(), "{}: the file is empty; give a file with a chat template",
                             *template_file);
  } else if (model.has(kTemplateKey)) {
    found.origin = model.path();
    found.text = model.get<std::string>(kTemplateKey);
  } else {
    warn(
        fmt::format("{}: the file has no chat template; ChatML is used, which may not suit the model; give a template "
                    "with --template",
                    model.path()));
    found.origin = "ChatML";
    found.text = kChatMl;
    found.stops = {"<|im_end|>"};  // ends an answer even if the model has no end token for ChatML
  }
  return found;
}

Conversation::Conversation(const ChatFlags& flags, ChatTemplate chat_template, const models::Tokenizer& tokenizer)
    : flags_(flags), template_(std::move(chat_template)), tokenizer_(tokenizer) {
  clear();
}

void Conversation::add_user(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
}

void Conversation::add_answer(const std::string& text, const std::string& thought) {
  nlohmann::json message{{"role", "assistant"}, {"content", text}};
  // A template reads one of these two fields.
  if (!thought.empty()) message["reasoning_content"] = message["thinking"] = thought;
  messages_.push_back(std::move(message));
}

bool Conversation::drop_answer() {
  if (messages_.empty() || messages_.back()["role"] != "assistant") return false;
  messages_.erase(messages_.size() - 1);
  return true;
}

bool Conversation::evict_oldest() {
  const size_t first = first_question();
  if (messages_.size() < first + 3) return false;
  messages_.erase(first);
  messages_.erase(first);
  return true;
}

void Conversation::clear() {
  messages_.clear();
  if (flags_.system) messages_.push_back({{"role", "system"}, {"content", *flags_.system}});
}

Conversation::Prompt Conversation::prompt() const {
  const std::vector<RenderedPart> rendered = render_chat(template_, messages_, flags_.variables);
  std::vector<models::TextPart> parts;
  for (const auto& [text, is_template] : rendered) parts.push_back({text, is_template});
  require<InvalidArgument>(!parts.empty(),
                           "{}: the chat template renders an empty prompt; give another template with --template FILE",
                           template_.origin);
  const bool begins_thought = rendered.back().second && ends_in_thought(rendered.back().first);
  return {tokenizer_.encode(parts), begins_thought};
}

}  // namespace shoal::tools
