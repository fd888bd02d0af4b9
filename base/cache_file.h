// Cache files keep this machine's measurements from one program run to the next. Several programs may read and write a
// cache at the same time: no reader sees a partial file, and the last writer wins.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shoal {

/// A cache file and the environment variable that overrides its path.
struct CacheFile {
  std::filesystem::path path;  ///< empty if there is no cache
  const char* variable;
};

/// The path in the environment variable; by default shoal/<name> in XDG_CACHE_HOME, or else in ~/.cache.
CacheFile cache_file(const char* variable, std::string_view name);

/// The whole text; "" if the file does not exist or cannot be read.
std::string read_cache_file(const CacheFile& file);

/// Creates the folder, and throws the errors that write_cache_file() would throw. Call it before a long measurement.
void check_cache_file(const CacheFile& file);

/// Creates the folder, writes a draft next to the file and renames it to the file. On failure the file is unchanged,
/// and the thrown DeviceError names the file, the system's reason and the variable.
void write_cache_file(const CacheFile& file, std::string_view text);

}  // namespace shoal
