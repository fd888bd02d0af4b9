#include "models/gguf/cursor.h"

namespace shoal::models {

std::string_view GgufCursor::read_string(std::string_view what, uint64_t limit) {
  const size_t start = position_;
  const auto length = read<uint64_t>(what);
  if (length > limit) reject(start, fmt::format("{} has {} bytes, the format allows {}", what, length, limit));
  if (length > remaining()) {
    reject(start, fmt::format("{} has {} bytes, but only {} follow in the file", what, length, remaining()));
  }
  const std::string_view text(reinterpret_cast<const char*>(here()), length);
  position_ += length;
  return text;
}

void GgufCursor::skip(uint64_t count, size_t size, std::string_view what) {
  if (count > remaining() / size) {
    reject(position_, fmt::format("{}: {} x {} bytes do not fit in the {} that follow in the file", what, count, size,
                                  remaining()));
  }
  position_ += count * size;
}

void GgufCursor::reject(size_t at, const std::string& what) const {
  refuse(at, what, "the file is damaged or no valid GGUF: download or convert it again");
}

void GgufCursor::refuse(size_t at, const std::string& what, const std::string& remedy) const {
  fail<InvalidArgument>("{}: {}{} (at byte {}); {}", path_, subject_.empty() ? "" : subject_ + ": ", what, at, remedy);
}

void GgufCursor::cut_short(std::string_view what) const {
  reject(position_, fmt::format("the file ends inside {}", what));
}

}  // namespace shoal::models
