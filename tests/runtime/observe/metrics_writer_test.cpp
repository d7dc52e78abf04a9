// Proves that metrics.jsonl reads back bit for bit, and that a file cut or killed anywhere and
// resumed equals the file of a run that never stopped.

#include "runtime/observe/metrics_writer.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

namespace troupe::runtime {
namespace {

class MetricsFile : public testing::Test {
 protected:
  void SetUp() override { std::remove(path_.c_str()); }
  void TearDown() override { std::remove(path_.c_str()); }
  std::string content() { return read_text_file(path_, 1 << 20).value_or(""); }
  void put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  const std::string path_ = testing::TempDir() + "troupe_metrics_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MetricsFile, WritesOneObjectPerStepWithNamesInOrder) {
  auto writer = MetricsWriter::open(path_);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(0, MetricValues{{"b", 2.5}, {"a", 1}, {"step", 99}, {"b", 3}}));
  Metrics metrics;
  metrics.add("mean", 1, Reduction::kMean, 1);
  metrics.add("mean", 4, Reduction::kMean, 2);
  metrics.add("none", 4, Reduction::kMean, 0);
  ASSERT_TRUE(writer->write(5, metrics));
  EXPECT_EQ(content(), "{\"step\":0,\"a\":1,\"b\":3}\n{\"step\":5,\"mean\":3}\n");
  EXPECT_EQ(writer->write(5, metrics).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(writer->write(4, metrics).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(writer->sync());
}

TEST_F(MetricsFile, EveryDoubleReadsBackToTheSameBits) {
  MetricValues values{{"nan", std::numeric_limits<double>::quiet_NaN()},
                      {"inf", std::numeric_limits<double>::infinity()},
                      {"-inf", -std::numeric_limits<double>::infinity()},
                      {"max", std::numeric_limits<double>::max()},
                      {"denormal", std::numeric_limits<double>::denorm_min()},
                      {"-0", -0.0},
                      {"quo\"te\n\\ 日", 1},
                      {"", 2}};
  Rng rng(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bits = rng.next();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isnan(value)) values.emplace_back("random/" + std::to_string(i), value);
  }
  auto writer = MetricsWriter::open(path_);
  ASSERT_TRUE(writer->write(1, values));
  const auto rows = read_metrics(path_);
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 1U);
  for (const auto& [name, value] : values) {
    const double got = (*rows)[0].values.at(name);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(got));
    else
      EXPECT_EQ(std::memcmp(&got, &value, sizeof value), 0) << name << " " << got << " " << value;
  }
}

TEST_F(MetricsFile, AnyCutAndResumeEqualsTheRunThatNeverStopped) {
  std::string whole;
  for (std::int64_t step = 0; step < 4; ++step) {
    whole += metrics_line(step, MetricValues{{"a", 0.5 * static_cast<double>(step)}}) + "\n";
  }
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    for (std::int64_t resumed : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}}) {
      const std::string kept = whole.substr(0, cut);
      const auto lines = std::count(kept.begin(), kept.end(), '\n');
      if (lines < resumed + 1) continue;  // a checkpoint is later than its metrics line
      put(kept);
      auto writer = MetricsWriter::open(path_, resumed);
      ASSERT_TRUE(writer) << writer.error().message << " cut at " << cut;
      EXPECT_EQ(writer->last_step(), resumed);
      for (std::int64_t step = resumed + 1; step < 4; ++step) {
        ASSERT_TRUE(writer->write(step, MetricValues{{"a", 0.5 * static_cast<double>(step)}}));
      }
      ASSERT_EQ(content(), whole) << "cut at " << cut << " resumed at " << resumed;
    }
  }
}

TEST_F(MetricsFile, NewRunsStartEmptyAndResumeMayFindNoFile) {
  put("{\"step\":1}\n");
  ASSERT_TRUE(MetricsWriter::open(path_));
  EXPECT_EQ(content(), "");
  std::remove(path_.c_str());
  auto writer = MetricsWriter::open(path_, 7);
  ASSERT_TRUE(writer);
  EXPECT_EQ(writer->last_step(), -1);
  MetricsWriter moved = std::move(*writer);
  EXPECT_TRUE(moved.write(8, MetricValues{}));
  EXPECT_EQ(content(), "{\"step\":8}\n");
}

TEST_F(MetricsFile, DamagedLinesAreNamedWithFileAndLine) {
  for (const char* bad : {"{\"step\":1}\nnonsense\n{\"step\":3}\n", "{\"step\":1}\n{}\n",
                          "{\"step\":1}\n{\"step\":\"a\"}\n", "{\"step\":1}\n{\"step\":1}\n",
                          "{\"step\":1}\n{\"step\":-4}\n", "{\"step\":1}\n[1]\n",
                          "{\"step\":1}\n{\"step\":18446744073709551615}\n", "{\"step\":1}\n\n"}) {
    put(bad);
    const auto rows = read_metrics(path_);
    ASSERT_FALSE(rows) << bad;
    EXPECT_EQ(rows.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(rows.error().message.find(path_ + ":2"), std::string::npos) << rows.error().message;
    EXPECT_FALSE(MetricsWriter::open(path_, 9));
    EXPECT_EQ(content(), bad) << "a refused file must stay as it is";
  }
  EXPECT_EQ(MetricsWriter::open("/nonexistent/metrics.jsonl").error().code, ErrorCode::kIo);
  EXPECT_EQ(read_metrics("/nonexistent/metrics.jsonl").error().code, ErrorCode::kNotFound);
  put("");
  EXPECT_TRUE(read_metrics(path_)->empty());
  put("{\"step\":1,\"text\":\"x\",\"list\":[1],\"null\":null,\"a\":2}\n");
  EXPECT_EQ((*read_metrics(path_))[0].values.size(), 1U);
}

}  // namespace
}  // namespace troupe::runtime
