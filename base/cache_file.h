// Files in which this machine's measurements are kept from one run of a program to the next. Several programs may read
// and write one at the same time: no reader sees half of it, and the last one to write wins.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shoal {

/// A cache, and the variable that names another place for it.
struct CacheFile {
  std::filesystem::path path;  ///< "": nothing is kept
  const char* variable;
};

/// The path in the environment variable, else shoal/<name> in XDG_CACHE_HOME, else in ~/.cache.
CacheFile cache_file(const char* variable, std::string_view name);

/// All of it; "" if there is none, or it cannot be read.
std::string read_cache_file(const CacheFile& file);

/// Throws what write_cache_file would, before there is something to be written. Makes the folder.
void check_cache_file(const CacheFile& file);

/// Makes the folder, writes a draft next to the file and moves it there. Throws DeviceError that names the file, the
/// system's reason and the variable; the file is unchanged then.
void write_cache_file(const CacheFile& file, std::string_view text);

}  // namespace shoal
