#include "base/user_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>

#include "base/text.h"

namespace shoal {
namespace {

constexpr size_t kPart = 1 << 16;
constexpr int kPollMs = 50;

std::string reason(int code) {
  return std::generic_category().message(code);
}

/// The files that check_output() protects. They are stored as paths instead of inodes, because the system may reuse the
/// inode of a removed file.
struct Inputs {
  std::mutex mutex;
  std::set<std::filesystem::path> paths;
};

Inputs& inputs() {
  static Inputs all;
  return all;
}

bool is_input(const struct stat& output) {
  const std::lock_guard lock(inputs().mutex);
  return std::any_of(inputs().paths.begin(), inputs().paths.end(), [&](const std::filesystem::path& path) {
    struct stat input{};
    return stat(path.c_str(), &input) == 0 && input.st_dev == output.st_dev && input.st_ino == output.st_ino;
  });
}

void check_kind(const struct stat& status, const InputFile& file) {
  require<InvalidArgument>(!S_ISDIR(status.st_mode), "{}: is a directory, not a {}; {}", file.path, file.what,
                           file.remedy);
  const bool is_stream = S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) || S_ISSOCK(status.st_mode);
  require<InvalidArgument>(S_ISREG(status.st_mode) || (file.takes_streams && is_stream),
                           "{}: is not a regular file; copy the {} to a regular file", file.path, file.what);
}

}  // namespace

int open_file(const InputFile& file) {
  const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  require<InvalidArgument>(descriptor >= 0, "{}: cannot open the {}: {}; {}", file.path, file.what, reason(errno),
                           file.remedy);
  try {
    struct stat status{};
    require<InvalidArgument>(fstat(descriptor, &status) == 0, "{}: cannot read the {}: {}; {}", file.path, file.what,
                             reason(errno), file.remedy);
    check_kind(status, file);
  } catch (...) {
    close(descriptor);
    throw;
  }
  if (!file.is_kept) note_input(file.path);
  return descriptor;
}

std::string read_stream(int descriptor, const InputFile& file) {
  std::string text;
  while (true) {
    // poll() reports the end of a pipe only after a writer has closed the pipe. So this loop also waits for the first
    // writer.
    pollfd ready{descriptor, POLLIN, 0};
    const int state = poll(&ready, 1, kPollMs);
    if (file.poll) file.poll();
    if (state <= 0) continue;  // no data yet, or a signal interrupted poll()
    const size_t before = text.size();
    text.resize(before + kPart);
    const ssize_t count = read(descriptor, text.data() + before, kPart);
    const int error = errno;
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return text;
    require<InvalidArgument>(count > 0 || error == EINTR || error == EAGAIN, "{}: cannot read the {}: {}; {}",
                             file.path, file.what, reason(error), file.remedy);
    require<InvalidArgument>(text.size() <= file.most_bytes, "{}: is larger than {}, the limit for a {}", file.path,
                             format_bytes(file.most_bytes), file.what);
  }
}

std::string read_file(const InputFile& file) {
  const int descriptor = open_file(file);
  const std::unique_ptr<const int, void (*)(const int*)> closed(&descriptor, [](const int* one) { close(*one); });
  return read_stream(descriptor, file);
}

void note_input(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error);
  if (error) return;
  const std::lock_guard lock(inputs().mutex);
  inputs().paths.insert(std::move(whole));
}

void check_output(const std::filesystem::path& path, std::string_view what) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return;
  require<OutputRefused>(!S_ISBLK(status.st_mode), "{}: is a disk; name another file for the {}", path.string(), what);
  require<OutputRefused>(!S_ISREG(status.st_mode) || !is_input(status),
                         "{}: is also an input file; name another file for the {}", path.string(), what);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own{};
    const bool is_own = S_ISREG(status.st_mode) && fstat(stream, &own) == 0 && own.st_dev == status.st_dev &&
                        own.st_ino == status.st_ino;
    require<OutputRefused>(!is_own,
                           "{}: stdout or stderr of this command is written to this file; name another file for the {}",
                           path.string(), what);
  }
}

}  // namespace shoal
