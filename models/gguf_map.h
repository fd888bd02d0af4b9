// Owns a read-only mapping of a file. Move-only; the mapped bytes stay where they are when it is moved.
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

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace shoal::models
