#include "base/cache_file.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace shoal {
namespace {

/// A cache has no more.
constexpr size_t kMostBytes = size_t{1} << 30;

std::string value_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

/// What is no file, such as /dev/full, is written to and not replaced.
bool is_replaced(const std::filesystem::path& path) {
  std::error_code ignored;
  return !std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored);
}

void remove_draft(const std::filesystem::path& draft, const std::filesystem::path& path) {
  std::error_code ignored;
  if (draft != path) std::filesystem::remove(draft, ignored);
}

/// Opening a pipe waits for its other end.
void refuse_pipe(const std::filesystem::path& path, const char* variable) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  require<InvalidArgument>(!std::filesystem::is_fifo(status) && !std::filesystem::is_socket(status),
                           "{}: is no regular file; name one in {}", path.string(), variable);
}

void require_place(const CacheFile& file) {
  require<DeviceError>(!file.path.empty(),
                       "there is no folder to write to, as HOME is not set; set it, or name a file in {}",
                       file.variable);
  refuse_pipe(file.path, file.variable);
  check_output(file.path, file.kind, fmt::format("move it away, or name another file in {}", file.variable));
}

/// A file beside the one at `path`, or this one if it is not replaced, with the text; "" with the reason in errno when
/// it cannot be written.
std::filesystem::path write_draft(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<int> drafts{0};
  std::error_code ignored;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  const std::filesystem::path draft =
      is_replaced(path) ? path.string() + fmt::format(".{}.{}", getpid(), ++drafts) : path.string();
  errno = 0;
  std::ofstream file(draft);
  file << text;
  file.close();
  if (file) return draft;
  const int reason = errno;
  remove_draft(draft, path);
  errno = reason;
  return {};
}

/// Of HOME, else of the user; "" where there is neither.
std::string home_folder() {
  if (std::string home = value_of("HOME"); !home.empty()) return home;
  std::array<char, 4096> text{};
  passwd entry{};
  passwd* found = nullptr;
  const bool known = getpwuid_r(getuid(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr;
  return known && found->pw_dir != nullptr ? found->pw_dir : "";
}

[[noreturn]] void fail_to_write(const CacheFile& file, const std::error_code& error) {
  fail<DeviceError>("{}: cannot be written{}; name another file in {}", file.path.string(),
                    error ? ": " + error.message() : "", file.variable);
}

}  // namespace

std::filesystem::path cache_file(const char* variable, std::string_view name) {
  if (const std::string own = value_of(variable); !own.empty()) return own;
  if (const std::string cache = value_of("XDG_CACHE_HOME"); !cache.empty())
    return cache + fmt::format("/shoal/{}", name);
  const std::string home = home_folder();
  return home.empty() ? "" : home + fmt::format("/.cache/shoal/{}", name);
}

std::string read_cache_file(const CacheFile& file) {
  refuse_pipe(file.path, file.variable);
  try {
    return read_file({.path = file.path.string(), .what = file.kind.name, .is_kept = true, .most_bytes = kMostBytes});
  } catch (const InvalidArgument&) {
    return {};
  }
}

void check_cache_file(const CacheFile& file) {
  require_place(file);
  const std::filesystem::path draft = write_draft(file.path, "");
  if (draft.empty()) fail_to_write(file, std::error_code(errno, std::generic_category()));
  remove_draft(draft, file.path);
}

void write_cache_file(const CacheFile& file, std::string_view text) {
  require_place(file);
  const std::filesystem::path draft = write_draft(file.path, text);
  if (draft.empty()) fail_to_write(file, std::error_code(errno, std::generic_category()));
  if (draft == file.path) return;
  std::error_code error;
  std::filesystem::rename(draft, file.path, error);
  if (!error) return;
  remove_draft(draft, file.path);
  fail_to_write(file, error);
}

}  // namespace shoal
