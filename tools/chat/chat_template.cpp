#include "tools/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

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

std::string python() {
  const char* named = std::getenv("SHOAL_PYTHON");
  return named != nullptr ? named : "python3";
}

/// What is wrong and what helps, in place of an answer.
nlohmann::json failure_of(const ChildAnswer& answer, const ChildLimits& limits) {
  switch (answer.end) {
    case ChildEnd::kTookTooLong:
      return {{"error", fmt::format("did not come to an end within {} ms", limits.time.count())}};
    case ChildEnd::kSaidTooMuch:
      return {{"error", fmt::format("prints more than {} bytes", limits.output)}};
    case ChildEnd::kKilled:
      return {{"error", fmt::format("was ended by signal {}", answer.code)}};
    case ChildEnd::kExited:
      break;
  }
  const std::string what = answer.code == 0 ? "gave no answer" : fmt::format("ended with code {}", answer.code);
  return {{"error", fmt::format("could not be rendered: {} {}", python(), what)},
          {"remedy", "name a Python that has jinja2 (package python3-jinja2) in SHOAL_PYTHON"}};
}

bool is_part(const nlohmann::json& part) {
  return part.is_array() && part.size() == 2 && part[0].is_string() && part[1].is_boolean();
}

/// Either the parts or why there are none: programs other than Python may print anything.
nlohmann::json parsed(const ChildAnswer& answer, const ChildLimits& limits) {
  if (answer.end != ChildEnd::kExited || answer.code != 0) return failure_of(answer, limits);
  nlohmann::json json = parse_json_or_nothing(answer.out);
  const auto has = [&json](const char* key, auto is_right) { return json.contains(key) && is_right(json[key]); };
  const bool is_error = json.is_object() && has("error", [](const auto& value) { return value.is_string(); });
  const bool is_text = json.is_object() && has("parts", [](const auto& value) {
                         return value.is_array() && std::all_of(value.begin(), value.end(), is_part);
                       });
  return is_error || is_text ? json : failure_of(answer, limits);
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
  const int64_t seconds = limits.time.count() / 1000 + 1;
  const nlohmann::json answer = parsed(
      ask_child({python(), "-I", renderer(), fmt::format("{}", seconds), fmt::format("{}", kMemoryMib)}, input, limits),
      limits);
  if (answer.contains("error")) {
    fail<InvalidArgument>("{}: the chat template {}; {}", chat_template.origin,
                          printable(answer.at("error").get<std::string>()),
                          answer.value("remedy", "another can be given with --template FILE"));
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
