// External ops for tests, with CPU kernels:
//
//   test.lerp     x, y f32 of equal shape, args t -> x + t (y - x); rule with parallel factors
//   test.dot      x f32 [k, n], w f32 [k] -> [n]; rule with a summed factor; needs a workspace
//   test.reverse  x f32 -> x with the elements of each row in reverse order; no rule
//
// register_test_ops() registers these ops once per process. Thread-safe.
#pragma once

#include <string>

#include "graph/external_op.h"

namespace shoal::test {

void register_test_ops();

/// The functions of an op with one CPU kernel. The C structs point to the members, so the object must not move.
struct OpOfTest {
  OpOfTest(const char* name, const char* rule, int sources, decltype(shoal_op::infer) infer,
           decltype(shoal_op_kernel::run) run)
      : kernel{sizeof kernel, "CPU", run, nullptr, nullptr}, op{sizeof op, name,  rule,    sources, sources,
                                                                0,         infer, nullptr, &kernel, 1} {}
  OpOfTest(const OpOfTest&) = delete;
  OpOfTest& operator=(const OpOfTest&) = delete;
  shoal_op_kernel kernel;
  shoal_op op;
};

/// An op that is registered while the object exists.
struct RegisteredOp : OpOfTest {
  template <class... Arguments>
  explicit RegisteredOp(Arguments... arguments) : OpOfTest(arguments...) {
    register_op(op);
  }
  ~RegisteredOp() { unregister_op(op.name); }
};

/// Shape inference: the result has the dtype and shape of source 0.
int32_t infer_like_first(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size);
/// Number of elements, and the elements as floats.
int64_t count(const shoal_op_tensor& tensor);
float* floats(const shoal_op_tensor& tensor);
/// Elements [begin, end) of the call's part.
struct Share {
  int64_t begin, end;
};
Share share(const shoal_op_launch& launch, int64_t elements);

}  // namespace shoal::test
