#include "tests/placement/simulation/sim_ledger.hpp"

#include "placement/ledger_frame.hpp"
#include "runtime/base/check.hpp"

#include <utility>

namespace troupe::placement::simulation {
namespace {

std::vector<std::byte> frame_of(std::uint64_t number, std::span<const LedgerRecord> records) {
  const auto payload = encode_records(records);
  TROUPE_CHECK(payload, "sim: {}", payload.error().message);
  auto frame = encode_ledger_frame(number, *payload);
  TROUPE_CHECK(frame, "sim: {}", frame.error().message);
  return *frame;
}

}  // namespace

SimLedger::SimLedger() : file_(encode_ledger_header(0)) {}

void SimLedger::append(std::vector<LedgerRecord> records, std::uint64_t last) {
  if (!queued_) queued_.emplace();
  for (LedgerRecord& record : records) queued_->records.push_back(std::move(record));
  queued_->last = last;
}

void SimLedger::replace(std::vector<LedgerRecord> snapshot, std::uint64_t last) {
  queued_ = Batch{.snapshot = std::move(snapshot), .records = {}, .last = last};
}

bool SimLedger::start_flush() {
  if (flushing_ || !queued_) return false;
  flushing_ = std::exchange(queued_, std::nullopt);
  return true;
}

void SimLedger::apply(LedgerState& state, const Batch& batch) {
  if (batch.snapshot) {
    state = {};
    for (const LedgerRecord& record : *batch.snapshot)
      TROUPE_CHECK(state.apply(record), "sim: a snapshot that does not apply");
  }
  for (const LedgerRecord& record : batch.records)
    TROUPE_CHECK(state.apply(record), "sim: a record that does not apply");
}

std::vector<std::byte> SimLedger::file_after(const Batch& batch) const {
  std::vector<std::byte> bytes = batch.snapshot ? encode_ledger_header(next_frame_) : file_;
  std::uint64_t number = next_frame_;
  if (batch.snapshot) {
    const auto frame = frame_of(number++, *batch.snapshot);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  if (!batch.records.empty()) {
    const auto frame = frame_of(number, batch.records);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  return bytes;
}

std::uint64_t SimLedger::finish_flush() {
  const Batch batch = std::move(*flushing_);
  flushing_.reset();
  file_ = file_after(batch);
  next_frame_ += (batch.snapshot ? 1U : 0U) + (batch.records.empty() ? 0U : 1U);
  apply(durable_, batch);
  return batch.last;
}

void SimLedger::crash(Rng& rng) {
  queued_.reset();
  if (!flushing_) return;
  const Batch batch = std::move(*flushing_);
  flushing_.reset();
  // A snapshot is renamed into place: the old file or the new one. Records tear anywhere.
  const std::vector<std::byte> after = file_after(batch);
  const std::uint64_t kind = rng.below(3);
  if (kind == 0) return;
  const bool whole = kind == 1 || batch.snapshot;
  if (whole) {
    file_ = after;
    return;
  }
  const std::size_t torn = file_.size() + rng.below(after.size() - file_.size());
  const std::size_t before = file_.size();
  file_.assign(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(torn));
  if (torn > before && rng.below(2) == 0)
    file_[before + rng.below(torn - before)] ^= std::byte{0x40};
}

result<LedgerState> SimLedger::open() {
  TROUPE_TRY(const LedgerContent content, read_ledger(file_, "sim.ledger"));
  TROUPE_TRY(LedgerState state, replay(content.payloads));
  file_.resize(content.bytes);
  next_frame_ = content.next_frame;
  durable_ = state;
  return state;
}

}  // namespace troupe::placement::simulation
