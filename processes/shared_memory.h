// Memory that several processes of one computer share. The memory has no name in the file system. Other processes open
// the memory through the process that created the memory. The system frees the memory after the last process that uses
// the memory has ended, even after a crash.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace shoal {

class SharedMemory {
 public:
  SharedMemory() = default;
  /// Creates zeroed memory. Throws DeviceError.
  explicit SharedMemory(size_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// Returns the address with which other processes can open the memory. The address is valid until this object is
  /// destroyed.
  std::string address() const;
  /// Opens the memory of another process. Returns nullopt if this process cannot see the memory.
  static std::optional<SharedMemory> open(const std::string& address, size_t size);

 private:
  void swap(SharedMemory& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_), std::swap(file_, other.file_);
  }
  void map();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int file_ = -1;
};

}  // namespace shoal
