// A bounds-checked reading position in a GGUF image. Every read names what it reads, so that a file that is cut short
// gives an error that says where. Single-threaded; borrows the image and the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace shoal::models {

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> image, const std::string& path) : image_(image), path_(path) {}

  size_t position() const { return position_; }
  size_t remaining() const { return image_.size() - position_; }
  const std::byte* here() const { return image_.data() + position_; }

  /// Names the thing being read in later messages: enter("key 'a.b'"); enter("") between things.
  void enter(std::string subject) { subject_ = std::move(subject); }

  template <class T>
  T read(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, here(), sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  /// A 64-bit length and that many bytes; longer than `limit` is an error.
  std::string_view read_string(std::string_view what, uint64_t limit = UINT64_MAX);
  /// Steps over count elements of size bytes each; the product may be too big for 64 bits.
  void skip(uint64_t count, size_t size, std::string_view what);

  /// Throws "path: <what> of <subject> at byte <at>; <remedy>".
  [[noreturn]] void reject(size_t at, const std::string& what) const;
  /// The same with another remedy, for a file that is sound and has something that is not supported.
  [[noreturn]] void refuse(size_t at, const std::string& what, const std::string& remedy) const;

 private:
  void need(size_t bytes, std::string_view what) const {
    if (bytes > remaining()) cut_short(what);
  }
  [[noreturn]] void cut_short(std::string_view what) const;

  std::span<const std::byte> image_;
  const std::string& path_;
  std::string subject_;
  size_t position_ = 0;  // <= image_.size()
};

}  // namespace shoal::models
