// Owns an open file and a read-only mapping of it. Move-only; the mapped bytes stay where they are when it is moved.
// What is read through the mapping must be there: a file that has become shorter kills the process. read() says so
// instead, and is what large amounts are read with.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace shoal::models {

class GgufMap {
 public:
  /// Maps nothing.
  GgufMap() = default;
  /// Throws InvalidArgument for what the user can mend (missing, unreadable, empty, not a regular file), DeviceError
  /// when the system refuses to map it.
  explicit GgufMap(const std::string& path);
  ~GgufMap();
  GgufMap(GgufMap&& other) noexcept;
  GgufMap& operator=(GgufMap&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Reads `to.size()` bytes from `offset` on into memory. Any number of threads may. Throws InvalidArgument when the
  /// file ends before them, DeviceError when the system fails to read; `path` stands in messages.
  void read(size_t offset, std::span<std::byte> to, const std::string& path) const;

 private:
  int file_ = -1;
  std::span<const std::byte> bytes_;
};

}  // namespace shoal::models
