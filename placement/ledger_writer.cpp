#include "placement/ledger_writer.hpp"

#include "placement/ledger_frame.hpp"

#include <iterator>
#include <utility>

namespace troupe::placement {

result<std::vector<std::vector<std::byte>>> encode_frames(std::span<const LedgerRecord> records) {
  TROUPE_TRY(std::vector<std::byte> payload, encode_records(records));
  std::vector<std::vector<std::byte>> frames;
  if (payload.size() <= kFramePayloadBytesMax) {
    frames.push_back(std::move(payload));
    return frames;
  }
  if (records.size() == 1)
    return fail(ErrorCode::kInvalidArgument, "ledger: one record of {} bytes, at most {}",
                payload.size(), kFramePayloadBytesMax);
  const std::size_t half = records.size() / 2;
  TROUPE_TRY(frames, encode_frames(records.first(half)));
  TROUPE_TRY(std::vector<std::vector<std::byte>> rest, encode_frames(records.subspan(half)));
  std::move(rest.begin(), rest.end(), std::back_inserter(frames));
  return frames;
}

LedgerWriter::LedgerWriter(LedgerFile file, Callbacks callbacks, Duration quick_flush)
    : file_(std::move(file)),
      callbacks_(std::move(callbacks)),
      quick_flush_(quick_flush),
      thread_([this] { run(); }) {}

LedgerWriter::~LedgerWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LedgerWriter::append(std::vector<LedgerRecord> records, std::uint64_t last) {
  {
    const std::lock_guard lock(mutex_);
    if (next_.records.empty()) {
      next_.records = std::move(records);
    } else {
      std::move(records.begin(), records.end(), std::back_inserter(next_.records));
    }
    next_.last = last;
    has_next_ = true;
  }
  if (const std::optional<Batch> batch = take_quick()) {
    finish(*batch);
  } else {
    changed_.notify_one();
  }
}

void LedgerWriter::replace(std::vector<LedgerRecord> snapshot, std::uint64_t last) {
  {
    const std::lock_guard lock(mutex_);
    next_ = Batch{.snapshot = std::move(snapshot), .records = {}, .last = last};
    has_next_ = true;
  }
  changed_.notify_one();
}

std::optional<LedgerWriter::Batch> LedgerWriter::take_quick() {
  const std::lock_guard lock(mutex_);
  if (!quick_ || writing_ || failed_ || !has_next_ || next_.snapshot) return std::nullopt;
  writing_ = true;
  has_next_ = false;
  return std::exchange(next_, {});
}

bool LedgerWriter::finish(const Batch& batch) {
  const TimePoint begin = steady_now();
  const result<void> written = write(batch);
  const bool quick = steady_now() - begin < quick_flush_;
  if (written) {
    callbacks_.durable(batch.last);
  } else {
    callbacks_.failed(written.error());
  }
  // Only now may the other write: what is told goes in order, too.
  const std::lock_guard lock(mutex_);
  writing_ = false;
  failed_ = !written;
  if (!batch.snapshot) quick_ = quick;
  return written.has_value();
}

void LedgerWriter::run() {
  for (;;) {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return (has_next_ && !writing_) || stopping_; });
      if (!has_next_ || failed_) return;
      batch = std::exchange(next_, {});
      has_next_ = false;
      writing_ = true;
    }
    if (!finish(batch)) return;
  }
}

result<void> LedgerWriter::write(const Batch& batch) {
  if (batch.snapshot) {
    TROUPE_TRY(const auto frames, encode_frames(*batch.snapshot));
    TROUPE_TRY_VOID(file_.replace(frames));
  }
  if (batch.records.empty()) return {};
  TROUPE_TRY(const auto frames, encode_frames(batch.records));
  for (const auto& frame : frames) {
    // Each frame is durable before the next one starts: a crash tears the last one only.
    TROUPE_TRY_VOID(file_.append(frame));
    TROUPE_TRY_VOID(file_.sync());
  }
  return {};
}

}  // namespace troupe::placement
