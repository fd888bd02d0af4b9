#include "tools/chat/chat_template.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace shoal::tools {
namespace {

constexpr int kMemoryMib = 1024;

/// Beside the program, installed or not.
std::string renderer() {
  namespace fs = std::filesystem;
  const fs::path own = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path file = (own / "../share/shoal/chat_template.py").lexically_normal();
  require<InvalidArgument>(fs::exists(file), "{}: is missing, it renders chat templates; install shoal again",
                           file.string());
  return file.string();
}

std::string why_no_answer(const ChildAnswer& answer, const ChildLimits& limits) {
  switch (answer.end) {
    case ChildEnd::kTookTooLong:
      return fmt::format("did not come to an end within {} ms", limits.time.count());
    case ChildEnd::kSaidTooMuch:
      return fmt::format("prints more than {} bytes", limits.output);
    case ChildEnd::kKilled:
      return fmt::format("was ended by signal {}", answer.code);
    case ChildEnd::kExited:
      break;
  }
  if (answer.code == 0) return "could not be rendered: python3 gave no answer";
  return fmt::format("could not be rendered: python3 ended with code {}, and needs the package python3-jinja2",
                     answer.code);
}

/// Either the parts or why there are none.
nlohmann::json parsed(const ChildAnswer& answer, const ChildLimits& limits) {
  if (answer.end == ChildEnd::kExited && answer.code == 0) {
    nlohmann::json json = nlohmann::json::parse(answer.out, nullptr, false);
    if (json.is_object()) return json;
  }
  return {{"error", why_no_answer(answer, limits)}};
}

}  // namespace

const std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<RenderedPart> render_chat(const ChatTemplate& chat_template, const ChatRequest& request,
                                      const ChildLimits& limits) {
  const nlohmann::json question{{"template", chat_template.text},
                                {"messages", request.messages},
                                {"add_generation_prompt", request.add_generation_prompt},
                                {"special_tokens", chat_template.special_tokens},
                                {"kwargs", request.variables}};
  // Text that is no UTF-8 gets U+FFFD in place of what is wrong.
  const std::string input = question.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const char* python = std::getenv("SHOAL_PYTHON");
  const int64_t seconds = limits.time.count() / 1000 + 1;
  const nlohmann::json answer = parsed(ask_child({python != nullptr ? python : "python3", "-I", renderer(),
                                                  fmt::format("{}", seconds), fmt::format("{}", kMemoryMib)},
                                                 input, limits),
                                       limits);
  if (answer.contains("error")) {
    fail<InvalidArgument>("{}: the chat template {}; another can be given with --template FILE", chat_template.origin,
                          answer.at("error").get<std::string>());
  }
  std::vector<RenderedPart> parts;
  for (const nlohmann::json& part : answer.at("parts")) {
    parts.push_back({part.at(0).get<std::string>(), part.at(1).get<bool>()});
  }
  return parts;
}

std::string text_of(const std::vector<RenderedPart>& parts) {
  std::string text;
  for (const RenderedPart& part : parts) text += part.text;
  return text;
}

}  // namespace shoal::tools
