// Files that a user names. Opening one never waits, whatever it is: pipes without a writer, devices and folders are
// refused, or read as they come if a pipe makes sense. Files that were read are remembered, so that no output replaces
// them:
//
//   shoal run -m x.gguf --trace x.gguf     x.gguf: this command reads it; name another file for the trace
//
// Plain functions; any thread. Nothing is owned but what open_file() returns.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace shoal {

/// A file to read.
struct InputFile {
  std::string path;
  std::string_view what;  ///< in messages: "chat template"
  std::string_view remedy = "check the path and its permissions";
  bool is_kept = false;        ///< a cache of the program, which it may replace: not an input for check_output()
  bool takes_streams = false;  ///< pipes, terminals and other devices are read to their end
  size_t most_bytes = size_t{64} << 20;
  std::function<void()> poll = {};  ///< called every 50 ms while a stream is read; may throw to stop
};

/// A descriptor to read from, which the caller closes; it does not block. Throws InvalidArgument in one line.
int open_file(const InputFile& file);
/// All of it. Throws InvalidArgument for a file that cannot be read or is longer than `most_bytes`.
std::string read_file(const InputFile& file);
/// The same for a descriptor that is open already, such as standard input; file.path is its name in messages.
std::string read_stream(int descriptor, const InputFile& file);

/// From now on check_output() protects the file. One that is not there is not protected.
void note_input(const std::filesystem::path& path);

/// A file is there that the program may not replace.
class OutputRefused : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Throws OutputRefused if writing to `path` would destroy an input of this process, the file behind its stdout or
/// stderr, or a disk. Links are followed. `what` names the output in messages: "trace".
void check_output(const std::filesystem::path& path, std::string_view what);

}  // namespace shoal
