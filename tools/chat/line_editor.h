// Reads what a user types, with editing and history where there is a terminal (libedit), and else line by line.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace shoal::tools {

class LineEditor {
 public:
  /// Reads the history of earlier conversations; a file that cannot be read counts as none.
  LineEditor();
  /// Writes it: $XDG_STATE_HOME/shoal/chat_history, or in ~/.local/state; if that is not possible it is lost.
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End : uint8_t { kLine, kInterrupt, kEnd };
  struct Input {
    End end = End::kLine;  ///< Enter; Ctrl-C, which gives the line up; Ctrl-D or the end of the file
    /// A "\" at the end of a line continues it on the next. Lines from one that begins with """ to one that ends with
    /// """ are one text, and so are pasted lines at a terminal.
    std::string text;
    bool is_quoted = false;  ///< it was between """ and """
  };
  Input read();
  /// Does it read from a terminal?
  bool is_terminal() const { return terminal_ != nullptr; }

 private:
  class Terminal;
  /// One line.
  Input read_line(bool continues);
  /// The rest of a text behind """, of which `all` has the first line.
  Input read_quoted(Input all);

  std::unique_ptr<Terminal> terminal_;
};

}  // namespace shoal::tools
