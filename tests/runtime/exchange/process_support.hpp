#pragma once

// What exchange_process_test and its rank processes both know: options, and batches that either can
// make up.
//
// **Threads:** any.

#include "runtime/exchange/column_exchange.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::runtime {

/// `direct` or `tcp`.
inline result<std::unique_ptr<ColumnExchange>> open_process_exchange(
    ColumnOwner self, const std::vector<std::byte>& key, const std::string& mode) {
  TransportOptions transport;
  std::copy(key.begin(), key.end(), transport.key.begin());
  transport.interfaces = "lo";
  transport.direct_copy = mode == "direct";
  if (mode == "tcp") transport.lanes = TransportLanes::kTcp;
  ExchangeOptions options;
  options.self = std::move(self);
  options.inline_bytes_max = 256;
  options.pull_deadline = std::chrono::seconds(60);  // also under a sanitizer on a busy machine
  return ColumnExchange::open(std::move(options), std::move(transport));
}

/// Dense, jagged, text and JSON columns of `rows` rows, a pure function of the arguments.
inline Batch step_batch(std::int32_t rank, std::int64_t rows, std::int64_t row_bytes) {
  const std::int64_t width = std::max<std::int64_t>(1, row_bytes / 4);
  std::vector<float> dense;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> texts;
  std::vector<std::string> objects;
  dense.reserve(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i)
      dense.push_back(static_cast<float>((row * 31 + i * 7 + rank) % 4096));
    lengths.push_back((row * 5 + rank) % 7);
    for (std::int64_t i = 0; i < lengths.back(); ++i)
      tokens.push_back(static_cast<std::int32_t>(row * 100 + i));
    texts.push_back(std::string(static_cast<std::size_t>(row % 5), 'a'));
    objects.push_back("{\"row\": " + std::to_string(row) + "}");
  }
  Batch batch;
  const bool made = batch.set("dense", Column::dense(std::move(dense), {width})) &&
                    batch.set("tokens", Column::jagged(std::move(tokens), std::move(lengths))) &&
                    batch.set("texts", Column::strings(texts)) &&
                    batch.set("objects", Column::json(objects));
  TROUPE_CHECK(made, "step batch of {} rows", rows);
  return batch;
}

/// One number a row, of the column `dense`.
inline Column row_sums(const Batch& batch) {
  std::vector<double> sums;
  for (std::int64_t i = 0; i < batch.rows(); ++i) {
    double sum = 0;
    for (const float one : batch.column("dense").row<float>(i)) sum += static_cast<double>(one);
    sums.push_back(sum);
  }
  return Column::dense(std::move(sums));
}

}  // namespace troupe::runtime
