// Memory that several processes of one computer see. It has no name in the file system: others find it by the process
// that made it, and it goes when the last one does, however that ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace shoal {

class SharedMemory {
 public:
  SharedMemory() = default;
  /// New and zeroed. Throws DeviceError.
  explicit SharedMemory(size_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// Where other processes find it, as long as this object lives.
  std::string address() const;
  /// nullopt: it cannot be seen from here.
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
