// A GgufMap owns open files and one mapping of all files. The mapping is read-only until unlock(). Each file starts on
// a page boundary after the previous file, so the parts of a model form one range of bytes:
//
//   files of 10000 and 5000 bytes   begin at 0 and 12288; bytes().size() is 17288
//
// Move-only. Moving keeps the addresses of the mapped bytes. If a file was truncated, access to mapped bytes beyond the
// end of the file raises SIGBUS. read() and fetch() check the length of the file and throw instead.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shoal::models {

class GgufMap {
 public:
  /// An empty map.
  GgufMap() = default;
  /// Throws InvalidArgument for files that are missing, unreadable, empty or not regular, and DeviceError if the system
  /// refuses to map them.
  explicit GgufMap(const std::vector<std::string>& paths);
  ~GgufMap();
  GgufMap(GgufMap&& other) noexcept;
  GgufMap& operator=(GgufMap&& other) noexcept;

  struct Part {
    std::string path;
    int file = -1;
    size_t begin = 0;  ///< offset of the part in bytes()
    size_t size = 0;
  };
  /// The files, in the order of the paths.
  std::span<const Part> parts() const { return parts_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Copies `to.size()` bytes at `offset` into `to`. These bytes must belong to one part. Thread-safe. Throws
  /// InvalidArgument if the file was truncated, or DeviceError if the system fails to read.
  void read(size_t offset, std::span<std::byte> to) const;
  /// Reads mapped bytes from the disk into memory and maps their pages. Later accesses then wait neither for the disk
  /// nor for page faults. Thread-safe. Throws like read().
  void fetch(size_t offset, size_t size) const;
  /// Makes a range of the mapping writable. Writes copy the affected pages for this process and never reach the file.
  /// The range may be larger than memory. Returns false if the system refuses (vm.overcommit_memory=2, ulimit -d).
  bool unlock(size_t offset, size_t size);

 private:
  const Part& part_of(size_t offset) const;
  void close_all();

  std::vector<Part> parts_;
  std::span<const std::byte> bytes_;
};

}  // namespace shoal::models
