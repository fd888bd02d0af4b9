// Files in which this machine's measurements are kept from one run of a program to the next. Several programs may read
// and write one at the same time: no reader sees half of it, and the last one to write wins.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/user_file.h"

namespace shoal {

/// What the environment variable says, or shoal/<name> in XDG_CACHE_HOME, or in ~/.cache: that of HOME, or of the user
/// who runs the program. "" where there is no such folder: nothing is kept then.
std::filesystem::path cache_file(const char* variable, std::string_view name);

/// A cache, and the variable that names another place for it.
struct CacheFile {
  std::filesystem::path path;
  const char* variable;
  OutputKind kind;
};

/// All of it; "" if there is none, or it cannot be read. Throws InvalidArgument, naming the variable, for a pipe.
std::string read_cache_file(const CacheFile& file);

/// Throws what write_cache_file would, before there is something to be written. Makes the folder.
void check_cache_file(const CacheFile& file);

/// Makes the folder, writes a draft next to the file and moves it there. Throws OutputRefused for a file of another
/// kind or an input, and DeviceError that names the file, the system's reason and the variable. What was there is
/// unchanged then.
void write_cache_file(const CacheFile& file, std::string_view text);

}  // namespace shoal
