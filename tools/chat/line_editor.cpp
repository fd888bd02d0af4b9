#include "tools/chat/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <cwctype>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <utility>

#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

constexpr int kHistoryLines = 1000;
constexpr int kLookForInterruptsMs = 200;
constexpr std::string_view kQuotes = "\"\"\"";
// Control sequences that switch bracketed paste mode on and off. In bracketed paste mode, a terminal sends a control
// sequence before and after pasted text.
constexpr const char *kPasteOn = "\x1b[?2004h", *kPasteOff = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

bool supports_bracketed_paste() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

/// Path of the history file; "" if neither XDG_STATE_HOME nor HOME is an absolute path.
std::string history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/shoal/chat_history";
  return home != nullptr && *home == '/' ? std::string(home) + "/.local/state/shoal/chat_history" : "";
}

/// Path of the history file. Returns "" if the path names a pipe or a device, because libedit would block on it.
std::string usable_history_file() {
  const std::string file = history_file();
  std::error_code error;
  return !std::filesystem::exists(file, error) || std::filesystem::is_regular_file(file, error) ? file : "";
}

/// libedit counts multi-byte characters correctly only in a UTF-8 locale.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

/// Callback of libedit that reads the next key. Returns 0 (no key) at the end of the input and after a signal. This
/// callback is needed because libedit's own reader continues to wait after a signal.
int read_key(EditLine*, wchar_t* key) {
  std::mbstate_t state{};
  while (true) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (poll(&input, 1, kLookForInterruptsMs) <= 0)
      if (interrupted()) return 0;
    char byte = 0;
    if (read(STDIN_FILENO, &byte, 1) <= 0) return 0;
    const size_t taken = std::mbrtowc(key, &byte, 1, &state);
    if (taken <= 1) return 1;
    if (taken == static_cast<size_t>(-1)) state = {};  // skips invalid UTF-8
  }
}

}  // namespace

/// The editor on a terminal. Prompts go to standard error, because answers go to standard output.
class LineEditor::Terminal {
 public:
  Terminal() : history_(history_init()), file_(usable_history_file()) {
    use_utf8();
    editor_ = el_init("shoal", stdin, stderr, stderr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty()) history(history_, &event, H_LOAD, file_.c_str());
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_GETCFN, &read_key);
    el_set(editor_, EL_PROMPT, &prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    // el_set() is not used, because it would never free its copies of the names.
    el_wset(editor_, EL_ADDFN, L"shoal-cancel", L"Discards the line", &cancel);
    // While the user edits a line, Ctrl-C is an ordinary key.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor_, EL_BIND, "^C", "shoal-cancel", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_wset(editor_, EL_ADDFN, L"shoal-paste", L"Inserts the pasted text", &paste);
    el_set(editor_, EL_BIND, "\\e[200~", "shoal-paste", nullptr);
    if (supports_bracketed_paste()) std::fputs(kPasteOn, stderr);
  }
  ~Terminal() {
    if (supports_bracketed_paste()) std::fputs(kPasteOff, stderr);
    HistEvent event;
    std::error_code error;
    if (!file_.empty()) std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), error);
    if (!file_.empty()) history(history_, &event, H_SAVE, file_.c_str());
    history_end(history_);
    el_end(editor_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Input read(bool continues) {
    prompt_ = continues ? ". " : "> ";
    cancelled_ = false;
    int count = 0;
    // Sets up the terminal before libedit prints the prompt. Otherwise keys that the user presses immediately would be
    // lost.
    el_set(editor_, EL_PREP_TERM, 1);
    clear_interrupt();  // discards an earlier Ctrl-C
    const char* line = el_gets(editor_, &count);
    if (cancelled_) return {End::kInterrupt, ""};
    if (line == nullptr || count <= 0) {
      std::fputs("\n", stderr);  // ends the line that contains the prompt
      return {End::kEnd, ""};
    }
    std::string text(line, static_cast<size_t>(count));
    if (text.ends_with('\n')) text.pop_back();
    if (text.find_first_not_of(" \t") != std::string::npos) {
      HistEvent event;
      history(history_, &event, H_ENTER, text.c_str());
    }
    return {End::kLine, text};
  }

 private:
  static Terminal& self(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<Terminal*>(data);
  }
  static char* prompt(EditLine* editor) { return const_cast<char*>(self(editor).prompt_); }
  static unsigned char cancel(EditLine* editor, wint_t) {
    self(editor).cancelled_ = true;
    std::fputs("^C\n", stderr);
    return CC_EOF;
  }

  /// Inserts the pasted text, including its newlines, into the line.
  static unsigned char paste(EditLine* editor, wint_t) {
    std::wstring text;
    wchar_t key = 0;
    while (!text.ends_with(kPasteEnd) && el_wgetc(editor, &key) == 1) text += key == L'\r' ? L'\n' : key;
    if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
    if (text.ends_with(L'\n')) text.pop_back();
    std::erase_if(text,
                  [](wchar_t c) { return c != L'\n' && c != L'\t' && std::iswcntrl(static_cast<wint_t>(c)) != 0; });
    el_winsertstr(editor, text.c_str());
    return CC_REFRESH;
  }

  ::History* history_;
  std::string file_;  ///< "": the history is not saved
  EditLine* editor_ = nullptr;
  const char* prompt_ = "> ";
  bool cancelled_ = false;
};

LineEditor::LineEditor() {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0) terminal_ = std::make_unique<Terminal>();
}

LineEditor::~LineEditor() = default;

LineEditor::Input LineEditor::read_line(bool continues) {
  Input line;
  if (terminal_) {
    line = terminal_->read(continues);
  } else if (!std::getline(std::cin, line.text)) {
    line.end = End::kEnd;
  }
  if (line.text.ends_with('\r')) line.text.pop_back();
  return line;
}

LineEditor::Input LineEditor::read() {
  Input all;
  while (true) {
    const Input line = read_line(!all.text.empty());
    if (line.end == End::kEnd && !all.text.empty()) return all;
    if (line.end != End::kLine) return line;
    const bool is_first = all.text.empty();
    all.text += line.text;
    if (is_first && all.text.starts_with(kQuotes)) return read_quoted(std::move(all));
    if (!all.text.ends_with('\\')) return all;
    all.text.back() = '\n';
  }
}

LineEditor::Input LineEditor::read_quoted(Input all) {
  all.is_quoted = true;
  all.text.erase(0, kQuotes.size());
  while (!all.text.ends_with(kQuotes)) {
    const Input line = read_line(true);
    if (line.end == End::kInterrupt) return line;
    if (line.end == End::kEnd) return all;
    all.text += (all.text.empty() ? "" : "\n") + line.text;
  }
  all.text.resize(all.text.size() - kQuotes.size());
  if (all.text.ends_with('\n')) all.text.pop_back();
  return all;
}

}  // namespace shoal::tools
