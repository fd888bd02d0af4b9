// Ctrl-C: the first one asks the program to end, a second one kills it.
#pragma once

namespace shoal::tools {

/// From now on Ctrl-C only sets a flag, once.
void catch_interrupts();
/// Has Ctrl-C been pressed? Any thread.
bool interrupted();

}  // namespace shoal::tools
