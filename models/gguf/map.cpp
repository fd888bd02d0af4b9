#include "models/gguf/map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace shoal::models {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

/// The pages that bytes lie in.
std::span<std::byte> pages_of(std::span<const std::byte> bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  const uintptr_t first = begin / page * page;
  return {reinterpret_cast<std::byte*>(first), end - first};
}

[[noreturn]] void fail_short(const std::string& path, size_t end, size_t before) {
  fail<InvalidArgument>(
      "{}: the file ends at byte {}, it had {} when it was opened; another program writes to it: "
      "wait for that to end, then start again",
      path, end, before);
}

// Closes the descriptor unless it was taken out.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

GgufMap::GgufMap(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not hang before we can refuse it.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  require<InvalidArgument>(file.value >= 0, "{}: cannot open the model file: {}; check the path and its permissions",
                           path, reason(errno));
  struct stat status {};
  require<InvalidArgument>(fstat(file.value, &status) == 0, "{}: cannot read the model file: {}; check its permissions",
                           path, reason(errno));
  require<InvalidArgument>(!S_ISDIR(status.st_mode), "{}: is a directory; name a GGUF file inside it", path);
  require<InvalidArgument>(S_ISREG(status.st_mode), "{}: is not a regular file; copy the model to one", path);
  require<InvalidArgument>(status.st_size > 0, "{}: the file is empty; download or convert the model again", path);

  const auto size = static_cast<size_t>(status.st_size);
  // MAP_NORESERVE: a file larger than memory may become writable in unlock(), as only pages written to need memory.
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file.value, 0);
  require<DeviceError>(address != MAP_FAILED, "{}: cannot map {} bytes: {}; check the address-space limit (ulimit -v)",
                       path, size, reason(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
  file_ = std::exchange(file.value, -1);
}

void GgufMap::read(size_t offset, std::span<std::byte> to, const std::string& path) const {
  while (!to.empty()) {
    const ssize_t count = pread(file_, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    require<DeviceError>(count >= 0, "{}: cannot read {} bytes at byte {}: {}; check the disk or copy the file", path,
                         to.size(), offset, reason(errno));
    if (count == 0) {
      require_length(offset + to.size(), path);  // which knows where the file ends
      fail_short(path, offset, bytes_.size());   // should it have grown again
    }
    offset += static_cast<size_t>(count);
    to = to.subspan(static_cast<size_t>(count));
  }
}

void GgufMap::require_length(size_t end, const std::string& path) const {
  struct stat status {};
  require<DeviceError>(fstat(file_, &status) == 0, "{}: cannot read the model file: {}; check the disk", path,
                       reason(errno));
  const auto size = static_cast<size_t>(status.st_size);
  if (size < end) fail_short(path, size, bytes_.size());
}

void GgufMap::fetch(size_t offset, size_t size, const std::string& path) const {
  // Of the last page that the file has, the system maps what is missing as zeros.
  require_length(offset + size, path);
  const std::span<std::byte> pages = pages_of(bytes_.subspan(offset, size));
#ifdef MADV_POPULATE_READ
  while (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) break;  // not known before Linux 5.14
    const int code = errno;
    require_length(offset + size, path);
    fail<DeviceError>("{}: cannot read {} bytes at byte {}: {}; check the disk or copy the file", path, size, offset,
                      reason(code));
  }
#else
  madvise(pages.data(), pages.size(), MADV_WILLNEED);
#endif
}

bool GgufMap::unlock(size_t offset, size_t size) {
  const std::span<std::byte> pages = pages_of(bytes_.subspan(offset, size));
  return mprotect(pages.data(), pages.size(), PROT_READ | PROT_WRITE) == 0;
}

GgufMap::~GgufMap() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (file_ >= 0) close(file_);
}

GgufMap::GgufMap(GgufMap&& other) noexcept
    : file_(std::exchange(other.file_, -1)), bytes_(std::exchange(other.bytes_, {})) {}

GgufMap& GgufMap::operator=(GgufMap&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace shoal::models
