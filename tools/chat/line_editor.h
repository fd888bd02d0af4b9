// Reads the user's input. On a terminal, libedit provides editing and history. Otherwise, input is read line by line.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace shoal::tools {

class LineEditor {
 public:
  /// Loads the history of earlier conversations. A history file that cannot be read counts as empty.
  LineEditor();
  /// Saves the history in $XDG_STATE_HOME/shoal/chat_history. If the variable is not an absolute path, saves the
  /// history in ~/.local/state/shoal. If saving fails, the history is lost.
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End : uint8_t { kLine, kInterrupt, kEnd };
  struct Input {
    End end = End::kLine;  ///< kLine: Enter; kInterrupt: Ctrl-C, which discards the line; kEnd: Ctrl-D or the end of
                           ///< the file
    /// A "\" at the end of a line continues the text on the next line. All lines between """ and """ are one text. On a
    /// terminal, pasted lines are also one text.
    std::string text;
    bool is_quoted = false;  ///< whether the text was between """ and """
  };
  Input read();
  /// Whether the input comes from a terminal.
  bool is_terminal() const { return terminal_ != nullptr; }

 private:
  class Terminal;
  /// Reads one line.
  Input read_line(bool continues);
  /// Reads the rest of a text that begins with """. `all` contains the first line.
  Input read_quoted(Input all);

  std::unique_ptr<Terminal> terminal_;
};

}  // namespace shoal::tools
