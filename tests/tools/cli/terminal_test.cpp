// The progress bar on a terminal fits into a line and is removed at the end.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>

#include "tests/tools/child.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace shoal::tools {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// A pseudo-terminal with this width in columns. A width of 0 means that the width is unknown.
class Terminal {
 public:
  explicit Terminal(int columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(master_, 0);
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    path_ = ptsname(master_);
    other_ = open(path_.c_str(), O_RDWR | O_NOCTTY);
    EXPECT_GE(other_, 0);
    termios as_it_is{};
    tcgetattr(other_, &as_it_is);
    as_it_is.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // line ends are not translated
    tcsetattr(other_, TCSANOW, &as_it_is);
    resize(columns);
  }
  ~Terminal() {
    close(other_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(int columns) {
    const winsize size{24, static_cast<unsigned short>(columns), 0, 0};
    EXPECT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  const std::string& path() const { return path_; }
  int descriptor() const { return other_; }
  /// Reads all available output. Stops if no output arrives for `milliseconds`.
  std::string read(int milliseconds = 0) {
    std::string text;
    pollfd ready{master_, POLLIN, 0};
    for (char part[4096]; poll(&ready, 1, milliseconds) > 0;) {
      const ssize_t count = ::read(master_, part, sizeof(part));
      if (count <= 0) break;
      text.append(part, static_cast<size_t>(count));
    }
    return text;
  }
  /// Runs the program with this terminal as stderr. Returns the output to stderr.
  std::string show(const std::vector<std::string>& args) {
    Child child(args, {.err = path_});
    std::string text;
    while (child.runs()) text += read(10);
    EXPECT_EQ(child.wait(), 0);
    return text + read();
  }

 private:
  int master_, other_ = -1;
  std::string path_;
};

/// The successive contents of the progress line. Trailing blanks, which only erase older text, are omitted.
std::vector<std::string> drawn(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    std::string line = text.substr(begin, end - begin);
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

/// The lines of a screen with `columns` columns, after `text` is printed. A full line wraps to the next line.
std::vector<std::string> screen(const std::string& text, size_t columns) {
  std::vector<std::string> rows(1);
  size_t column = 0;
  for (const char c : text) {
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      rows.emplace_back(), column = 0;
    } else {
      if (column == columns) rows.emplace_back(), column = 0;
      if (rows.back().size() <= column) rows.back().resize(column + 1, ' ');
      rows.back()[column++] = c;
    }
  }
  for (std::string& row : rows) row.erase(row.find_last_not_of(' ') + 1);
  return rows;
}

std::vector<std::string> run_model() {
  return {"run", "-m", kModel, "-p", "In the", "-n", "2"};
}

TEST(TerminalOutput, ProgressBarFitsTheLineAndIsRemoved) {
  for (const char* kind : {"xterm", "dumb"}) {
    for (const int columns : {200, 80, 60, 40, 20, 9, 5, 1, 0}) {
      SCOPED_TRACE(fmt::format("TERM={}, {} columns", kind, columns));
      setenv("TERM", kind, 1);
      Terminal terminal(columns);
      const std::string text = terminal.show(run_model());
      EXPECT_THAT(text, Not(HasSubstr("\x1b")));
      const size_t wide = columns > 0 ? static_cast<size_t>(columns) : 80;
      const std::string before = text.substr(0, text.find('\n'));  // the rest of the line contains rates, which vary
      for (const std::string& line : drawn(before)) EXPECT_LT(line.size(), wide) << line;
      EXPECT_THAT(screen(before, wide), Each(IsEmpty()));
      EXPECT_THAT(screen(before, wide), SizeIs(1));
      const char* const last = wide > 70   ? "loading  [##############################] 100%  5."
                               : wide > 20 ? "loading  [########"
                                           : "";
      EXPECT_THAT(before, HasSubstr(last));
    }
  }
}

TEST(TerminalOutput, RecommendPrintsAProgressBar) {
  Terminal terminal(100);
  const std::string text = terminal.show({"plan", "-m", kModel, "--machine", "RTX4090x2", "--recommend"});
  EXPECT_THAT(text, HasSubstr("comparing  ["));
  EXPECT_THAT(screen(text, 100), Each(IsEmpty()));
  const Finished piped = run({"plan", "-m", kModel, "--machine", "RTX4090x2", "--recommend"});
  EXPECT_EQ(piped.err, "");
}

TEST(TerminalOutput, HelpIsAsWideAsTheTerminal) {
  for (const int columns : {200, 80}) {
    for (const char* command : {"", "run", "chat", "info", "plan", "bench", "probe", "simulate", "bench-comm"}) {
      Terminal terminal(columns);
      auto args = words(command);
      args.emplace_back("--help");
      Child child(args, {.out = terminal.path()});
      std::string text;
      while (child.runs()) text += terminal.read(10);
      EXPECT_EQ(child.wait(), 0);
      text += terminal.read();
      EXPECT_GT(text.size(), 300u);
      size_t widest = 0;
      for (const std::string& line : lines(text)) widest = std::max(widest, line.size());
      EXPECT_LT(widest, std::min<size_t>(static_cast<size_t>(columns), 111)) << command << " --help";
      EXPECT_GT(widest, std::min<size_t>(static_cast<size_t>(columns), 111) / 2) << command << " --help";
    }
  }
}

/// Redirects stderr to the terminal while the object exists.
class Redirected {
 public:
  explicit Redirected(int descriptor) : before_(dup(STDERR_FILENO)) { dup2(descriptor, STDERR_FILENO); }
  ~Redirected() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }

 private:
  int before_;
};

TEST(TerminalOutput, ProgressBarFitsTheChangedTerminalWidth) {
  Terminal terminal(100);
  std::string wide, narrow, gone;
  {
    const Redirected redirected(terminal.descriptor());
    ProgressBar bar("loading");
    bar.update(8, 8);
    wide = terminal.read();
    terminal.resize(30);
    bar.update(8, 8);
    narrow = terminal.read();
    bar.clear();
    gone = terminal.read();
    bar.clear();
  }
  EXPECT_EQ(terminal.read(), "") << "the progress bar was already removed";
  EXPECT_EQ(wide, "\rloading  [##############################] 100%  8 B of 8 B");
  EXPECT_EQ(narrow, "\rloading  [###################");
  EXPECT_EQ(gone, "\r" + std::string(29, ' ') + "\r");
}

TEST(TerminalOutput, ShorterLineErasesLongerLine) {
  Terminal terminal(100);
  {
    const Redirected redirected(terminal.descriptor());
    ProgressBar bar("probing");
    bar.update(1, 1, "a long name of something");
    bar.update(1, 1, "\xc2\xb5s");
    const std::string text = terminal.read();
    EXPECT_THAT(screen(text, 100), ::testing::ElementsAre("probing  [##############################] 100%  \xc2\xb5s"));
  }
}

}  // namespace
}  // namespace shoal::tools
