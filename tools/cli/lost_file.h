// A model file that is cut off while it is mapped: the system can no longer give what is read there, and would kill the
// program with SIGBUS.
#pragma once

namespace shoal::tools {

/// From now on reading mapped bytes that their file has no more ends the program with one line on stderr and exit code
/// kFailed. For the whole process, any thread. Other causes of SIGBUS, such as broken memory, kill it as ever.
void report_lost_files();

}  // namespace shoal::tools
