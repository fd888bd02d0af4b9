/* Checks for the tests of the C interface, and the list of the groups of tests. A failed check prints the condition and
 * the last error, and ends the program. */
#ifndef SHOAL_TESTS_C_CHECK_H
#define SHOAL_TESTS_C_CHECK_H

#include <shoal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK((call) == SHOAL_OK)
/* Checks that a call failed with this status, and that the error text contains `words`. */
#define CHECK_FAILS(failed, expected, words)                                                 \
  do {                                                                                       \
    CHECK(failed);                                                                           \
    CHECK(shoal_last_status() == (expected) && strstr(shoal_last_error(), (words)) != NULL); \
  } while (0)

static inline void check(bool good, const char* condition, const char* file, int line) {
  if (good) return;
  fprintf(stderr, "%s:%d: %s\n  last error: %d %s\n", file, line, condition, shoal_last_status(), shoal_last_error());
  exit(1);
}

/* Each group is in the file of its name. `model` is the path of the bundled model. */
#define GROUPS(X) X(errors) X(buffers) X(graphs) X(meta) X(schedulers) X(models) X(sessions) X(ops)
#define DECLARE(name) void test_##name(const char* model);
GROUPS(DECLARE)
#undef DECLARE

#endif
