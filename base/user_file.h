// Files that a user names. Opening a file never blocks. Directories are rejected, and so are pipes and devices unless
// the caller accepts streams. The program remembers files that it read, and no output may overwrite them:
//
//   shoal run -m x.gguf --trace x.gguf     x.gguf: this command reads it; name another file for the trace
//
// Plain functions; any thread. The caller owns the descriptor that open_file() returns.
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
  std::string_view what;  ///< name in messages: "chat template"
  std::string_view remedy = "check the path and its permissions";
  bool is_kept = false;        ///< whether the file is a cache of the program; check_output() does not protect caches
  bool takes_streams = false;  ///< whether pipes, terminals and other devices are accepted and read to their end
  size_t most_bytes = size_t{64} << 20;
  std::function<void()> poll = {};  ///< called every 50 ms while a stream is read; may throw to stop
};

/// Returns a non-blocking descriptor for reading, which the caller closes. Throws InvalidArgument with a one-line
/// message.
int open_file(const InputFile& file);
/// Reads the whole file. Throws InvalidArgument if the file cannot be read or is longer than `most_bytes`.
std::string read_file(const InputFile& file);
/// Reads an open descriptor, such as standard input, to its end. file.path is its name in messages.
std::string read_stream(int descriptor, const InputFile& file);

/// Makes check_output() protect the file from now on. A file that does not exist is not protected.
void note_input(const std::filesystem::path& path);

/// The output would overwrite a file that the program must not replace.
class OutputRefused : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Throws OutputRefused if writing to `path` would destroy an input of this process, the file that receives its stdout
/// or stderr, or a disk. Follows links. `what` names the output in messages: "trace".
void check_output(const std::filesystem::path& path, std::string_view what);

}  // namespace shoal
