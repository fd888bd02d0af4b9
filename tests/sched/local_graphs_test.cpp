// Tests of check_writable(). This function rejects a copy if a write to the copy would precede the allocation of its
// memory.
#include "sched/local_graphs.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/sched/rig.h"

namespace shoal::sched {
namespace {

using test::Rig;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A plan in which every input is writable from segment `from` on.
struct FakePlan final : GraphPlan {
  FakePlan(Backend& backend, int from) : GraphPlan(backend), from_(from) {}
  size_t allocated_bytes() const override { return 0; }
  int writable_from(const Tensor&) const override { return from_; }
  int from_;
};

TEST(LocalGraphs, CopyWithoutMemoryIsNotWritable) {
  const Rig rig(1);
  const auto backend = Rig::cpu(0).init();
  Graph graph;
  const LocalSplit split{2, {graph.input("x", DType::kF32, {4, 1, 1, 1})}};
  for (int from : {0, 1, 2}) EXPECT_NO_THROW(check_writable(split, FakePlan(*backend, from))) << from;
  EXPECT_THAT([&] { check_writable(split, FakePlan(*backend, 3)); },
              ThrowsMessage<InternalError>(HasSubstr("the copy of x is written before segment 2, but has no memory")));
}

}  // namespace
}  // namespace shoal::sched
