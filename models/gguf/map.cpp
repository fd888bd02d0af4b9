#include "models/gguf/map.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/user_file.h"

namespace shoal::models {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

/// Extends `bytes` to the start of the page that contains the first byte.
std::span<std::byte> pages_of(std::span<const std::byte> bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  const uintptr_t first = begin / page * page;
  return {reinterpret_cast<std::byte*>(first), end - first};
}

[[noreturn]] void fail_short(const GgufMap::Part& part, size_t end) {
  fail<InvalidArgument>(
      "{}: the file ends at byte {}, but had {} bytes when it was opened; another program writes to the "
      "file: wait until that program is done, then start again",
      part.path, end, part.size);
}

/// Throws InvalidArgument if the file is now shorter than `end` bytes.
void require_length(const GgufMap::Part& part, size_t end) {
  struct stat status {};
  require<DeviceError>(fstat(part.file, &status) == 0, "{}: cannot read the model file: {}; check the disk", part.path,
                       reason(errno));
  const auto size = static_cast<size_t>(status.st_size);
  if (size < end) fail_short(part, size);
}

void open_part(GgufMap::Part& part) {
  const std::string& path = part.path;
  part.file = open_file({.path = path, .what = "model file"});
  struct stat status {};
  require<InvalidArgument>(fstat(part.file, &status) == 0, "{}: cannot read the model file: {}; check its permissions",
                           path, reason(errno));
  require<InvalidArgument>(status.st_size > 0, "{}: the file is empty; download or convert the model again", path);
  part.size = static_cast<size_t>(status.st_size);
}

}  // namespace

GgufMap::GgufMap(const std::vector<std::string>& paths) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  try {
    size_t size = 0;
    for (const std::string& path : paths) {
      Part& part = parts_.emplace_back(Part{.path = path});
      open_part(part);
      part.begin = (size + page - 1) / page * page;
      size = part.begin + part.size;
    }
    // With MAP_NORESERVE, unlock() also works for files larger than memory. Only written pages need memory.
    constexpr int kFlags = MAP_PRIVATE | MAP_NORESERVE;
    const auto map = [&](void* at, size_t bytes, int protection, int flags, int file) {
      void* address = mmap(at, bytes, protection, kFlags | flags, file, 0);
      require<DeviceError>(address != MAP_FAILED,
                           "{}: cannot map {} bytes: {}; check the address-space limit (ulimit -v)", paths.front(),
                           size, reason(errno));
      return static_cast<std::byte*>(address);
    };
    std::byte* const base = map(nullptr, size, PROT_NONE, MAP_ANONYMOUS, -1);
    bytes_ = {base, size};
    for (const Part& part : parts_) map(base + part.begin, part.size, PROT_READ, MAP_FIXED, part.file);
  } catch (...) {
    close_all();
    throw;
  }
}

const GgufMap::Part& GgufMap::part_of(size_t offset) const {
  return *--std::upper_bound(parts_.begin(), parts_.end(), offset,
                             [](size_t place, const Part& part) { return place < part.begin; });
}

void GgufMap::read(size_t offset, std::span<std::byte> to) const {
  const Part& part = part_of(offset);
  offset -= part.begin;
  while (!to.empty()) {
    const ssize_t count = pread(part.file, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    require<DeviceError>(count >= 0, "{}: cannot read {} bytes at byte {}: {}; check the disk or copy the file",
                         part.path, to.size(), offset, reason(errno));
    if (count == 0) {
      require_length(part, offset + to.size());  // throws with the current size of the file
      fail_short(part, offset);                  // reached only if the file has grown again
    }
    offset += static_cast<size_t>(count);
    to = to.subspan(static_cast<size_t>(count));
  }
}

void GgufMap::fetch(size_t offset, size_t size) const {
  const Part& part = part_of(offset);
  const size_t end = offset - part.begin + size;
  // madvise() does not detect a truncation inside the last page, because the system fills the rest of this page with
  // zeros. So the length of the file is also checked.
  require_length(part, end);
  const std::span<std::byte> pages = pages_of(bytes_.subspan(offset, size));
#ifdef MADV_POPULATE_READ
  while (madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) break;  // Linux before 5.14 does not support MADV_POPULATE_READ
    const int code = errno;
    require_length(part, end);
    fail<DeviceError>("{}: cannot read {} bytes at byte {}: {}; check the disk or copy the file", part.path, size,
                      end - size, reason(code));
  }
#else
  madvise(pages.data(), pages.size(), MADV_WILLNEED);
#endif
}

bool GgufMap::unlock(size_t offset, size_t size) {
  const std::span<std::byte> pages = pages_of(bytes_.subspan(offset, size));
  return mprotect(pages.data(), pages.size(), PROT_READ | PROT_WRITE) == 0;
}

void GgufMap::close_all() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  for (const Part& part : parts_) {
    if (part.file >= 0) close(part.file);
  }
}

GgufMap::~GgufMap() {
  close_all();
}

GgufMap::GgufMap(GgufMap&& other) noexcept
    : parts_(std::exchange(other.parts_, {})), bytes_(std::exchange(other.bytes_, {})) {}

GgufMap& GgufMap::operator=(GgufMap&& other) noexcept {
  std::swap(parts_, other.parts_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace shoal::models
