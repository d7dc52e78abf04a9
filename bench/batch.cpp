// What the controller pays to move a batch's metadata: split, concat and merge of 8,192 rows × 12
// columns in 8 parts, as local columns and as references, contiguous and shuffled. Prints p50 and
// p95 times and the payload bytes copied. With --check it fails when an operation's p50 is over
// 1 ms, when a payload byte is copied, or when references cost over 64 bytes a row.

#include "runtime/batch/batch.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/batch/column_ref.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::runtime;

constexpr std::int64_t kRows = 8192;
constexpr std::int64_t kParts = 8;
constexpr int kRounds = 200;
constexpr double kMillisecondsMax = 1.0;
constexpr double kBytesPerRowMax = 64;

/// Ends the program on an error.
void must(const result<void>& outcome) {
  TROUPE_CHECK(outcome.has_value(), "{}", outcome.error().message);
}

Column tokens(Rng& rng, std::int64_t rows, std::vector<std::int64_t>& lengths) {
  std::int64_t total = 0;
  for (std::int64_t i = static_cast<std::int64_t>(lengths.size()); i < rows; ++i)
    lengths.push_back(16 + static_cast<std::int64_t>(rng.below(48)));
  for (const std::int64_t length : lengths) total += length;
  return Column::jagged<std::int32_t>(std::vector<std::int32_t>(static_cast<std::size_t>(total)),
                                      lengths);
}

/// The 12 columns of a PPO step: 3 dense, 2 of text, 7 per token.
Batch step_batch(std::int64_t rows, std::uint64_t seed) {
  Rng rng(seed);
  Batch batch;
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> response;
  const auto put = [&batch](const char* name, Column column) {
    must(batch.set(name, std::move(column)));
  };
  put("prompts", tokens(rng, rows, prompt));
  put("responses", tokens(rng, rows, response));
  std::int64_t total = 0;
  for (const std::int64_t length : response) total += length;
  for (const char* name : {"log_probs", "reference_log_probs", "values", "advantages", "returns"})
    put(name, Column::jagged<float>(std::vector<float>(static_cast<std::size_t>(total)), response));
  put("score", Column::dense<float>(std::vector<float>(static_cast<std::size_t>(rows))));
  put("uid",
      Column::dense<std::int64_t>(std::vector<std::int64_t>(static_cast<std::size_t>(rows))));
  put("weight_version",
      Column::dense<std::int64_t>(std::vector<std::int64_t>(static_cast<std::size_t>(rows))));
  put("data_source",
      Column::strings(std::vector<std::string>(static_cast<std::size_t>(rows), "gsm8k")));
  put("extra_info", Column::json(std::vector<std::string>(static_cast<std::size_t>(rows),
                                                          "{\"split\": \"train\"}")));
  return batch;
}

struct Timing {
  double p50_ms = 0;
  double p95_ms = 0;
  std::int64_t copied = 0;  ///< payload bytes of all rounds
};

Timing measure(const std::function<void()>& body) {
  std::vector<double> times;
  const std::int64_t before = CopyCounter::bytes();
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  return {times[kRounds / 2], times[kRounds * 95 / 100], CopyCounter::bytes() - before};
}

bool report(std::string_view name, const Timing& timing) {
  const bool good = timing.p50_ms <= kMillisecondsMax && timing.copied == 0;
  fmt::print("{:<44} {:>9.4f} {:>9.4f} {:>9} {}\n", name, timing.p50_ms, timing.p95_ms,
             timing.copied, good ? "" : " MISSED");
  return good;
}

/// Splits, joins and merges `batch`; true when all bars hold.
bool run(std::string_view what, const Batch& batch, const Batch& produced) {
  const std::vector<Batch> parts = batch.split(kParts);
  std::vector<Batch> split;
  Batch joined;
  Batch merged;
  bool good = report(fmt::format("{}: split into {}", what, kParts),
                     measure([&] { split = batch.split(kParts); }));
  good &= report(fmt::format("{}: concat of {}", what, kParts),
                 measure([&] { joined = *Batch::concat(parts); }));
  good &= report(fmt::format("{}: merge of {} new columns", what, produced.columns().size()),
                 measure([&] {
                   merged = batch;
                   must(merged.merge(produced));
                 }));
  good &= report(fmt::format("{}: merge of its own columns", what),
                 measure([&] { must(merged.merge(joined)); }));
  return good;
}

Batch renamed(const Batch& batch) {
  Batch other(batch.rows());
  for (const auto& [name, column] : batch.columns()) must(other.set("new_" + name, column));
  return other;
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  fmt::print("{} rows × 12 columns, {} parts, {} rounds\n", kRows, kParts, kRounds);
  fmt::print("{:<44} {:>9} {:>9} {:>9}\n", "operation", "p50 ms", "p95 ms", "copied B");
  const Batch local = step_batch(kRows, 1);
  bool good = run("contiguous", local, renamed(step_batch(kRows, 2)));

  // As it comes back from 8 ranks: each part in storage of its own.
  std::vector<std::unique_ptr<ColumnStore>> stores;
  std::vector<Batch> at_ranks;
  std::vector<Batch> references;
  for (std::int64_t i = 0; i < kParts; ++i) {
    stores.push_back(
        std::make_unique<ColumnStore>(ColumnOwner{"policy", RankId{static_cast<std::int32_t>(i)}}));
    at_ranks.push_back(step_batch(kRows / kParts, static_cast<std::uint64_t>(i)));
    references.push_back(stores.back()->put(at_ranks.back()).value());
  }
  const Batch gathered = *Batch::concat(at_ranks);
  const Batch remote = *Batch::concat(references);
  good &= run("8 storages", gathered, renamed(gathered));
  good &= run("8 ranks' references", remote, renamed(remote));

  Rng rng(3);
  const std::vector<std::int64_t> order = rng.permutation(kRows);
  const Batch shuffled = *local.reorder(order);
  good &= run("shuffled", shuffled, renamed(*step_batch(kRows, 4).reorder(order)));
  report("for scale: reorder", measure([&] { (void)local.reorder(order).value(); }));
  report("for scale: reorder over 8 storages",
         measure([&] { (void)gathered.reorder(order).value(); }));

  at_ranks.clear();
  const double per_row =
      static_cast<double>(held_bytes(remote).metadata) / static_cast<double>(kRows);
  fmt::print("controller bytes a row for {} B a row of payload held at ranks: {:.1f} (bar {})\n",
             remote.bytes() / kRows, per_row, kBytesPerRowMax);
  good &= per_row <= kBytesPerRowMax && held_bytes(remote).payload == 0;
  fmt::print("{}\n", good ? "all bars hold" : "a bar was MISSED");
  return check && !good ? 1 : 0;
}
