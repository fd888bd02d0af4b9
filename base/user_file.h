// Opens files whose paths come from the user. Opening a file never blocks. Directories are rejected. Pipes and devices
// are rejected unless InputFile::takes_streams is true. The program remembers the files that it has read. An output
// that would overwrite such a file is rejected:
//
//   shoal run -m x.gguf --trace x.gguf     x.gguf: is also an input file; name another file for the trace
//
// All functions are thread-safe. The caller owns the descriptor that open_file() returns.
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
  std::string_view what;  ///< name of the file in messages, such as "chat template"
  std::string_view remedy = "check the path and its permissions";
  bool is_kept = false;        ///< whether the file is a cache of this program; check_output() does not protect caches
  bool takes_streams = false;  ///< whether pipes, terminals and other devices are accepted; such a stream is read to
                               ///< its end
  size_t most_bytes = size_t{64} << 20;
  std::function<void()> poll = {};  ///< called every 50 ms while a stream is read; may throw to stop the read
};

/// Opens the file for reading. Returns a non-blocking descriptor, which the caller closes. Throws InvalidArgument with
/// a one-line message.
int open_file(const InputFile& file);
/// Reads the whole file. Throws InvalidArgument if the file cannot be read or is longer than `most_bytes`.
std::string read_file(const InputFile& file);
/// Reads an open descriptor, such as standard input, to its end. Messages contain file.path as the name of the
/// descriptor.
std::string read_stream(int descriptor, const InputFile& file);

/// Makes all later calls of check_output() reject this file as an output. A file that does not exist is not protected.
void note_input(const std::filesystem::path& path);

/// check_output() throws this error if the output would overwrite a protected file.
class OutputRefused : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Throws OutputRefused if a write to `path` would destroy one of these:
/// - an input of this process
/// - the file that receives stdout or stderr of this process
/// - a disk (block device)
/// The function follows symbolic links. `what` is the name of the output in messages, for example "trace".
void check_output(const std::filesystem::path& path, std::string_view what);

}  // namespace shoal
