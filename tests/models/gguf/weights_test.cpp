#include "models/gguf/weights.h"

#include <gmock/gmock.h>

#include "devices/allocate.h"
#include "tests/models/checks.h"
#include "tests/models/tiny_model.h"
#include "tests/support/gguf_writer.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

struct GgufWeights : ::testing::Test {
  GgufWeights() {
    const std::vector<float> values{1, 2, 3, 4, 5, 6};
    writer.add_tensor("w", DType::kF32, {3, 2}, values).add_tensor("b", DType::kF32, {2}, std::span(values).first(2));
    image = writer.image();
  }
  test::GgufWriter writer;
  test::Bytes image;
  TensorContext weights;
};

TEST_F(GgufWeights, AreFoundByName) {
  Tensor* b = weights.add("b", DType::kF32, {2, 1, 1, 1});
  Tensor* w = weights.add("w", DType::kF32, {3, 2, 1, 1});
  const auto memory = allocate_tensors(weights.tensors(), cpu_devices(1)[0]->buffer_type(), Usage::kWeights);
  load_tensors(GgufFile("m.gguf", image), weights.tensors());
  std::vector<float> found(6);
  tensor_get(*w, found.data(), 0, w->bytes());
  EXPECT_THAT(found, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  tensor_get(*b, found.data(), 0, b->bytes());
  EXPECT_EQ(found[1], 2);
}

TEST_F(GgufWeights, MustHaveTheShapeAndDtypeOfTheGraph) {
  weights.add("w", DType::kF32, {2, 3, 1, 1});
  EXPECT_THAT(message_of([&] { load_tensors(GgufFile("m.gguf", image), weights.tensors()); }),
              HasSubstr("m.gguf: tensor 'w' is f32 [3, 2], the graph needs f32 [2, 3]"));
}

TEST_F(GgufWeights, MustBeInTheFile) {
  weights.add("absent", DType::kF32, {1, 1, 1, 1});
  EXPECT_THAT(message_of([&] { load_tensors(GgufFile("m.gguf", image), weights.tensors()); }), HasSubstr("absent"));
}

}  // namespace
}  // namespace shoal::models
