// test_c GROUP MODEL: runs one group of tests.
#include "tests/c/check.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
#define RUN(name)                    \
  if (strcmp(argv[1], #name) == 0) { \
    test_##name(argv[2]);            \
    return 0;                        \
  }
  GROUPS(RUN)
#undef RUN
  fprintf(stderr, "there is no group %s\n", argv[1]);
  return 2;
}
