// The counter of the device tests, for this program too: operator new can be replaced once in each program.
#include "tests/devices/allocation_count.cpp"
