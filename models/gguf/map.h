// Owns an open file and a mapping of it, read-only until unlock(). Move-only; the mapped bytes stay where they are when
// it is moved. What is read through the mapping must be there: where the file has become shorter the system sends
// SIGBUS. read() and fetch() say so instead, at the time they are called.
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
  /// Brings mapped bytes into memory, so that later reads of them neither wait for the disk nor for the system to map
  /// pages. Any number of threads may. Throws as read() does.
  void fetch(size_t offset, size_t size, const std::string& path) const;
  /// Lets a part of the mapping be written: what is written is seen by this process alone, as copies of the pages
  /// concerned, and never reaches the file. Parts larger than memory may be unlocked. False where the system refuses
  /// (vm.overcommit_memory=2, ulimit -d).
  bool unlock(size_t offset, size_t size);

 private:
  /// Throws InvalidArgument unless the file still has bytes up to `end`.
  void require_length(size_t end, const std::string& path) const;

  int file_ = -1;
  std::span<const std::byte> bytes_;
};

}  // namespace shoal::models
