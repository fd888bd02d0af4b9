// Files in which this machine's measurements are kept from one run of a program to the next. Several programs may read
// and write one at the same time: no reader sees half of it, and the last one to write wins.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shoal {

/// What the environment variable says, or shoal/<name> in XDG_CACHE_HOME, or in ~/.cache: that of HOME, or of the user
/// who runs the program. "" where there is no such folder: nothing is kept then.
std::filesystem::path cache_file(const char* variable, std::string_view name);

/// All of it; "" where there is none, or it cannot be read. Throws InvalidArgument, naming the variable, for a pipe,
/// which would be waited for without an end.
std::string read_cache_file(const std::filesystem::path& path, const char* variable);
/// The same for a file that the user names: a pipe is read to its end.
std::string read_whole_file(const std::filesystem::path& path);

/// Throws what write_cache_file would, before there is something to be written. Makes the folder.
void check_cache_file(const std::filesystem::path& path, const char* variable);

/// Makes the folder, writes beside the file and moves what it wrote there. Throws DeviceError that names the file, what
/// the system says and the variable that names another one; what was there is unchanged then.
void write_cache_file(const std::filesystem::path& path, std::string_view text, const char* variable);

}  // namespace shoal
