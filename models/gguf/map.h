// Owns open files and one mapping of all of them, read-only until unlock(). The files lie one after the other, each
// from a page on, so that a model in several parts is one range of bytes to all who use it:
//
//   files of 10000 and 5000 bytes   begin at 0 and 12288; bytes().size() is 17288
//
// Move-only; the mapped bytes stay where they are when it is moved. What is read through the mapping must be there:
// where a file has become shorter the system sends SIGBUS. read() and fetch() say so instead, at the time they are
// called.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shoal::models {

class GgufMap {
 public:
  /// Maps nothing.
  GgufMap() = default;
  /// Throws InvalidArgument for what the user can mend (missing, unreadable, empty, not a regular file), DeviceError
  /// when the system refuses to map them.
  explicit GgufMap(const std::vector<std::string>& paths);
  ~GgufMap();
  GgufMap(GgufMap&& other) noexcept;
  GgufMap& operator=(GgufMap&& other) noexcept;

  struct Part {
    std::string path;
    int file = -1;
    size_t begin = 0;  ///< in bytes()
    size_t size = 0;
  };
  /// In the order of the paths.
  std::span<const Part> parts() const { return parts_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Reads `to.size()` bytes from `offset` on, all of one part, into memory. Any number of threads may. Throws
  /// InvalidArgument when the file ends before them, DeviceError when the system fails to read.
  void read(size_t offset, std::span<std::byte> to) const;
  /// Brings mapped bytes into memory, so that later reads of them neither wait for the disk nor for the system to map
  /// pages. Any number of threads may. Throws as read() does.
  void fetch(size_t offset, size_t size) const;
  /// Lets a part of the mapping be written: what is written is seen by this process alone, as copies of the pages
  /// concerned, and never reaches the file. Parts larger than memory may be unlocked. False where the system refuses
  /// (vm.overcommit_memory=2, ulimit -d).
  bool unlock(size_t offset, size_t size);

 private:
  const Part& part_of(size_t offset) const;
  void close_all();

  std::vector<Part> parts_;
  std::span<const std::byte> bytes_;
};

}  // namespace shoal::models
