// Cache files store this machine's measurements for later runs of the program. Several programs may read and write a
// cache at the same time. No reader sees a partial file, and the file contains the text of the last writer.
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

/// Returns the cache file. If the environment variable `variable` is set, its value is the path. Otherwise, the path is
/// shoal/<name> in XDG_CACHE_HOME, or in ~/.cache if XDG_CACHE_HOME is unset.
CacheFile cache_file(const char* variable, std::string_view name);

/// Returns the whole text of the file. Returns "" if the file does not exist or cannot be read.
std::string read_cache_file(const CacheFile& file);

/// Creates the folder, and throws the errors that write_cache_file() would throw. Call this function before a long
/// measurement.
void check_cache_file(const CacheFile& file);

/// Creates the folder, writes a new file next to the cache and renames this file to the path of the cache. On failure,
/// the cache is unchanged. The thrown DeviceError names the file, the system's error text and the environment variable.
void write_cache_file(const CacheFile& file, std::string_view text);

}  // namespace shoal
