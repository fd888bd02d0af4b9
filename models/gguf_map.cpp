#include "models/gguf_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "graph/error.h"

namespace shoal::models {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

// Closes the descriptor; a mapping outlives it.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

}  // namespace

GgufMap::GgufMap(const std::string& path) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not hang before we can refuse it.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  require<InvalidArgument>(file.value >= 0, "{}: cannot open the model file: {}; check the path and its permissions",
                           path, reason(errno));
  struct stat status {};
  require<InvalidArgument>(fstat(file.value, &status) == 0, "{}: cannot read the model file: {}; check its permissions",
                           path, reason(errno));
  require<InvalidArgument>(!S_ISDIR(status.st_mode), "{}: is a directory; name a GGUF file inside it", path);
  require<InvalidArgument>(S_ISREG(status.st_mode), "{}: is not a regular file; copy the model to one", path);
  require<InvalidArgument>(status.st_size > 0, "{}: the file is empty; download or convert the model again", path);

  const auto size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  require<DeviceError>(address != MAP_FAILED, "{}: cannot map {} bytes: {}; check the address-space limit (ulimit -v)",
                       path, size, reason(errno));
  bytes_ = {static_cast<const std::byte*>(address), size};
}

GgufMap::~GgufMap() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

GgufMap::GgufMap(GgufMap&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

GgufMap& GgufMap::operator=(GgufMap&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace shoal::models
