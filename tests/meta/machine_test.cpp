#include "meta/machine.h"

#include <gmock/gmock.h>

#include "graph/error.h"

namespace shoal::meta {
namespace {
TEST(Machine, GoesThereAndBack) {
  MachineModel m = parse_machine(
      R"({"version":1,"devices":[{"name":"GPU","count":2,"memory":80e9,"bandwidth":2e12,"rates":{"default":200e12}}]})",
      "x");
  EXPECT_EQ(parse_machine(to_json(m), "y"), m);
}
}  // namespace
}  // namespace shoal::meta
