// Proves that tensors go through a batch without a copy, stay alive by what the batch keeps, and
// that rows whose shape does not fit their elements are refused.

#include "actors/roles/tensor_batch.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::CopyCounter;

TEST(TensorBatch, ViewsTensorsWithoutACopyAndKeepsThem) {
  auto values = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  const std::weak_ptr<std::vector<float>> alive = values;
  const std::vector<NamedTensor> tensors{
      {.name = "a", .shape = {2, 2}, .data = std::span(*values).first(4)},
      {.name = "b", .shape = {2}, .data = std::span(*values).subspan(4)}};
  const float* const place = values->data();
  auto batch = tensor_batch(tensors, values);
  ASSERT_TRUE(batch.has_value());
  values.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(tensor_bytes(*batch), 24);
  {
    const std::int64_t before = CopyCounter::bytes();
    const auto rows = TensorRows::open(*batch);
    ASSERT_TRUE(rows.has_value()) << rows.error().to_string();
    EXPECT_EQ(CopyCounter::bytes(), before);
    ASSERT_EQ(rows->tensors().size(), 2U);
    EXPECT_EQ(rows->tensors()[0].data.data(), place);
    EXPECT_EQ(rows->tensors()[1].name, "b");
    EXPECT_EQ(rows->tensors()[1].shape, std::vector<std::int64_t>{2});
    EXPECT_EQ(rows->tensors()[1].data[1], 6);
  }
  *batch = Batch();
  EXPECT_TRUE(alive.expired());
}

TEST(TensorBatch, MayBeEmpty) {
  const auto batch = tensor_batch({}, nullptr);
  ASSERT_TRUE(batch.has_value());
  const auto rows = TensorRows::open(*batch);
  ASSERT_TRUE(rows.has_value()) << rows.error().to_string();
  EXPECT_TRUE(rows->tensors().empty());
}

TEST(TensorBatch, RefusesRowsThatAreNoTensors) {
  const auto with = [](std::vector<std::vector<std::int64_t>> shapes) {
    Batch batch;
    EXPECT_TRUE(batch.set("name", Column::strings({"w"})));
    EXPECT_TRUE(batch.set("shape", Column::jagged(shapes)));
    EXPECT_TRUE(batch.set("data", Column::jagged(std::vector<std::vector<float>>{{1, 2, 3}})));
    return TensorRows::open(batch);
  };
  EXPECT_TRUE(with({{3}}).has_value());
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {2}, {-3}, {}, {1, -1, -3}, {std::int64_t{1} << 62, 4, 3}}) {
    const auto rows = with({shape});
    ASSERT_FALSE(rows.has_value());
    EXPECT_EQ(rows.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(rows.error().message.find("tensor w"), std::string::npos) << rows.error().message;
  }
  Batch other;
  ASSERT_TRUE(other.set("name", Column::strings({"w"})));
  EXPECT_EQ(TensorRows::open(other).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace troupe::actors
