#pragma once

// Random batches and a slow reference of them, for the tests of this folder.
//
// **Threads:** one test thread.
// **Invariants:** everything is a function of the seed; `Plain` shares no code with `Column`.

#include "runtime/base/rng.hpp"
#include "runtime/batch/batch.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::runtime {

inline std::int64_t pick(Rng& rng, std::int64_t below) {
  return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(below)));
}

/// Bytes of each row of each column: what a batch is, without views.
using Plain = std::map<std::string, std::vector<std::string>>;

inline std::vector<std::string> plain(const Column& column) {
  std::vector<std::string> rows;
  for (std::int64_t i = 0; i < column.rows(); ++i) {
    const auto bytes = column.row_bytes(i);
    rows.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return rows;
}

inline Plain plain(const Batch& batch) {
  Plain all;
  for (const auto& [name, column] : batch.columns()) all[name] = plain(column);
  return all;
}

/// Rows `order` of the reference.
inline Plain plain_rows(const Plain& from, const std::vector<std::int64_t>& order) {
  Plain all;
  for (const auto& [name, rows] : from) {
    all[name];
    for (const std::int64_t i : order) all[name].push_back(rows[static_cast<std::size_t>(i)]);
  }
  return all;
}

/// Floats with every kind of bit pattern: NaNs with payloads, infinities, both zeros, denormals.
template <class T>
T random_value(Rng& rng) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (pick(rng, 6)) {
      case 0: {
        if constexpr (sizeof(T) == 4)
          return std::bit_cast<T>(0x7F800001U | static_cast<std::uint32_t>(rng.below(1U << 22)));
        else
          return std::bit_cast<T>(0x7FF0000000000001ULL | rng.below(1ULL << 51));
      }
      case 1:
        return pick(rng, 2) == 0 ? T{0} : -T{0};
      case 2:
        return std::numeric_limits<T>::denorm_min();
      case 3:
        return -std::numeric_limits<T>::infinity();
      default:
        return static_cast<T>(rng.normal());
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    return rng.below(2) == 1;
  } else {
    return static_cast<T>(rng.next());
  }
}

template <class T>
Column random_numbers(Rng& rng, std::int64_t rows) {
  std::vector<T> values;
  if (pick(rng, 2) == 0) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < rows; ++i) {
      lengths.push_back(pick(rng, 5));
      for (std::int64_t j = 0; j < lengths.back(); ++j) values.push_back(random_value<T>(rng));
    }
    return Column::jagged<T>(std::move(values), std::move(lengths));
  }
  std::vector<std::int64_t> shape;
  for (std::int64_t i = pick(rng, 3); i > 0; --i)
    shape.push_back(pick(rng, 8) == 0 ? 0 : 1 + pick(rng, 3));
  const std::int64_t elements = rows * row_elements(shape);
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(random_value<T>(rng));
  return Column::dense_rows<T>(rows, std::move(values), std::move(shape));
}

inline std::string random_text(Rng& rng) {
  std::string text;
  for (std::int64_t i = pick(rng, 9); i > 0; --i) text += static_cast<char>(pick(rng, 256));
  return text;
}

inline Column random_flat_column(Rng& rng, std::int64_t rows, std::int64_t kind) {
  std::vector<std::string> texts;
  switch (kind) {
    case 0:
      return random_numbers<float>(rng, rows);
    case 1:
      return random_numbers<double>(rng, rows);
    case 2:
      return random_numbers<std::int64_t>(rng, rows);
    case 3:
      return random_numbers<std::int32_t>(rng, rows);
    case 4:
      return random_numbers<std::uint8_t>(rng, rows);
    case 5:
      return random_numbers<bool>(rng, rows);
    case 6:
      for (std::int64_t i = 0; i < rows; ++i) texts.push_back(random_text(rng));
      return Column::strings(texts);
    default:
      for (std::int64_t i = 0; i < rows; ++i)
        texts.push_back(fmt::format("{{\"n\": {}, \"t\": [null, true]}}", pick(rng, 100)));
      return Column::json(texts);
  }
}

/// A column of `rows` rows that is a view of some depth, so that ropes and maps are met.
inline Column random_column(Rng& rng, std::int64_t rows, std::int64_t kind) {
  Column base = random_flat_column(rng, rows + pick(rng, 6), kind);
  for (std::int64_t depth = pick(rng, 3); depth > 0; --depth) {
    std::vector<std::int64_t> order;
    const std::int64_t wanted = rows + pick(rng, 4);
    for (std::int64_t i = 0; base.rows() > 0 && i < wanted; ++i)
      order.push_back(pick(rng, base.rows()));
    if (pick(rng, 2) == 0 && static_cast<std::int64_t>(order.size()) == wanted)
      base = base.index(order);
    const std::int64_t cut = pick(rng, base.rows() + 1);
    const Column pieces[] = {base.slice(cut, base.rows() - cut), base.slice(0, cut)};
    base = Column::concat(pieces);
  }
  return base.slice(base.rows() - rows, rows);
}

inline Metrics random_metrics(Rng& rng) {
  Metrics metrics;
  for (std::int64_t i = pick(rng, 5); i > 0; --i) {
    const auto reduction = static_cast<Reduction>(pick(rng, 6));
    const double value = pick(rng, 12) == 0 ? std::numeric_limits<double>::quiet_NaN()
                                            : static_cast<double>(pick(rng, 9)) - 4;
    metrics.add(fmt::format("m/{}", reduction_name(reduction)), value, reduction,
                static_cast<double>(pick(rng, 4)));
  }
  return metrics;
}

inline Batch random_batch(Rng& rng, std::int64_t rows) {
  Batch batch(rows);
  for (std::int64_t i = pick(rng, 6); i >= 0; --i) {
    const std::int64_t kind = pick(rng, 8);
    EXPECT_TRUE(batch.set(fmt::format("c{}_{}", i, kind), random_column(rng, rows, kind)));
  }
  for (std::int64_t i = pick(rng, 3); i > 0; --i)
    EXPECT_TRUE(batch.set_metadata(fmt::format("key{}", i), fmt::format("[{}]", pick(rng, 10))));
  batch.metrics() = random_metrics(rng);
  return batch;
}

/// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs `body(rng)` for many seeds and prints the seed of a failure.
template <class Body>
void for_seeds(int count, Body&& body) {
  for (int seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(mix_seed(20261201, static_cast<std::uint64_t>(seed)));
    body(rng);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace troupe::runtime
