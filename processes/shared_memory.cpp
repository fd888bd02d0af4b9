#include "processes/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace shoal {

SharedMemory::SharedMemory(size_t size) : size_(size), file_(memfd_create("shoal", MFD_CLOEXEC)) {
  const bool has_room = file_ >= 0 && ftruncate(file_, static_cast<off_t>(size)) == 0;
  if (has_room) map();
  require<DeviceError>(size == 0 || data_ != nullptr, "cannot share {} of memory with other processes: {}",
                       format_bytes(size), std::strerror(errno));
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
  if (file_ >= 0) close(file_);
}

void SharedMemory::map() {
  void* found = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (found != MAP_FAILED) data_ = static_cast<std::byte*>(found);
}

std::string SharedMemory::address() const {
  return fmt::format("/proc/{}/fd/{}", getpid(), file_);
}

std::optional<SharedMemory> SharedMemory::open(const std::string& address, size_t size) {
  SharedMemory memory;
  memory.size_ = size;
  memory.file_ = ::open(address.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  const bool is_it =
      memory.file_ >= 0 && fstat(memory.file_, &status) == 0 && static_cast<size_t>(status.st_size) == size;
  if (is_it) memory.map();
  if (memory.data_ == nullptr) return std::nullopt;
  return memory;
}

}  // namespace shoal
