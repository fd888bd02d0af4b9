#include "tools/chat/chat_template.h"

#include <fmt/chrono.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "tools/cli/child_process.h"

namespace shoal::tools {
namespace {

constexpr int kMemoryMib = 1024;
constexpr std::chrono::seconds kLongest{10};

/// Path of the renderer: ../share/shoal/chat_template.py relative to the program's folder. This path is the same in a
/// build tree and after installation.
std::string renderer() {
  namespace fs = std::filesystem;
  const fs::path own = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path file = (own / "../share/shoal/chat_template.py").lexically_normal();
  require<InvalidArgument>(fs::exists(file), "{}: the renderer of chat templates is missing; install shoal again",
                           file.string());
  return file.string();
}

std::string python() {
  const char* named = std::getenv("SHOAL_PYTHON");
  return named != nullptr ? named : "python3";
}

/// Returns the reason why the renderer gave no answer.
std::string failure_of(const ChildAnswer& answer) {
  if (answer.end == ChildEnd::kTookTooLong) return fmt::format("did not finish within {}", kLongest);
  if (answer.end == ChildEnd::kKilled)
    return fmt::format("could not be rendered: the renderer was killed by signal {}", answer.code);
  const std::string what = answer.code == 0 ? "gave no answer" : fmt::format("exited with code {}", answer.code);
  return fmt::format("could not be rendered: {} {}", python(), what);
}

}  // namespace

const std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<RenderedPart> render_chat(const ChatTemplate& chat_template, const nlohmann::json& messages,
                                      const nlohmann::json& variables) {
  const nlohmann::json question{{"template", chat_template.text},
                                {"messages", messages},
                                {"add_generation_prompt", true},
                                {"special_tokens", chat_template.special_tokens},
                                {"kwargs", variables}};
  // Invalid UTF-8 becomes U+FFFD.
  const std::string input = question.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const ChildAnswer answer = ask_child(
      {python(), "-I", renderer(), std::to_string(kLongest.count() + 1), std::to_string(kMemoryMib)}, input, kLongest);
  std::string error = failure_of(answer), remedy = "give another template with --template FILE";
  if (answer.end == ChildEnd::kExited) {
    remedy = "set SHOAL_PYTHON to a Python with jinja2 (package python3-jinja2)";
    try {  // SHOAL_PYTHON may name a program whose output is not JSON
      const nlohmann::json json = parse_json(answer.code == 0 ? answer.out : "");
      if (!json.contains("error")) return json.at("parts").get<std::vector<RenderedPart>>();
      error = printable(json["error"].get<std::string>());
      remedy = json.value("remedy", "give another template with --template FILE");
    } catch (const nlohmann::json::exception&) {
    } catch (const InvalidArgument&) {
    }
  }
  fail<InvalidArgument>("{}: the chat template {}; {}", chat_template.origin, error, remedy);
}

}  // namespace shoal::tools
