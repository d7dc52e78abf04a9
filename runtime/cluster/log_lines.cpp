#include "runtime/cluster/log_lines.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::runtime {
namespace {

unsigned char byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

/// Length of the well-formed UTF-8 character at `at`, 0 when there is none. Overlong forms,
/// surrogates and numbers above U+10FFFF are malformed.
std::size_t character_at(std::string_view bytes, std::size_t at) {
  const unsigned char lead = byte_at(bytes, at);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  if (length == 0 || at + length > bytes.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    const unsigned char next = byte_at(bytes, at + i);
    if (next < low || next > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

bool printable_ascii(unsigned char byte) { return (byte >= 0x20 && byte < 0x7F) || byte == '\t'; }

/// U+0080..U+009F: terminal controls in UTF-8 clothes.
bool control_character(std::string_view bytes, std::size_t at) {
  return byte_at(bytes, at) == 0xC2 && byte_at(bytes, at + 1) < 0xA0;
}

}  // namespace

std::string escape_line(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t plain = at;
    while (plain < bytes.size() && printable_ascii(byte_at(bytes, plain))) ++plain;
    text.append(bytes, at, plain - at);
    at = plain;
    if (at == bytes.size()) break;
    const std::size_t length = character_at(bytes, at);
    if (length >= 2 && !control_character(bytes, at)) {
      text.append(bytes, at, length);
      at += length;
      continue;
    }
    for (std::size_t i = 0; i < std::max<std::size_t>(length, 1); ++i)
      text += fmt::format("\\x{:02x}", byte_at(bytes, at + i));
    at += std::max<std::size_t>(length, 1);
  }
  return text;
}

LogLines::LogLines(LogLimits limits) : limits_(limits), ring_(limits.ring_lines) {
  TROUPE_CHECK(limits.line_bytes_max > 0 && limits.lines_per_second > 0 &&
                   limits.bytes_per_second > 0 && limits.burst_seconds > 0,
               "log lines: limits must be positive");
}

void LogLines::feed(std::size_t stream, std::string_view bytes, TimePoint now,
                    std::vector<std::string>& out) {
  Partial& partial = partial_.at(stream);
  refill(now);
  // Each end is looked for once, so that many of one kind do not make the other's search quadratic.
  std::size_t next_line = bytes.find('\n');
  std::size_t next_return = bytes.find('\r');
  for (std::size_t at = 0; at < bytes.size();) {
    if (next_line < at) next_line = bytes.find('\n', at);
    if (next_return < at) next_return = bytes.find('\r', at);
    const std::size_t end = std::min(next_line, next_return);
    if (std::exchange(partial.after_return, false) && end == at && bytes[at] == '\n') {
      ++at;  // `\r\n` is one end
      continue;
    }
    const std::string_view piece = bytes.substr(at, end == std::string_view::npos ? end : end - at);
    if (partial.bytes.empty() && partial.bytes_cut == 0) partial.since = now;
    const std::size_t room = limits_.line_bytes_max - partial.bytes.size();
    partial.bytes.append(piece.substr(0, room));
    if (piece.size() > room) partial.bytes_cut += piece.size() - room;
    if (end == std::string_view::npos) break;
    at = end + 1;
    end_line(partial, now, out);
    partial.after_return = bytes[end] == '\r';
  }
}

void LogLines::end_line(Partial& partial, TimePoint now, std::vector<std::string>& out) {
  std::string line = escape_line(partial.bytes);
  if (partial.bytes_cut > 0) line += fmt::format(" … ({} bytes cut)", partial.bytes_cut);
  partial.bytes.clear();
  partial.bytes_cut = 0;
  take_line(std::move(line), now, out);
}

void LogLines::take_line(std::string line, TimePoint now, std::vector<std::string>& out) {
  if (!ring_.empty()) ring_[lines_seen_ % ring_.size()] = line;
  ++lines_seen_;
  if (has_last_ && line == last_line_) {
    if (repeats_++ == 0) repeats_since_ = now;
    return;
  }
  say_repeats(now, out);
  last_line_ = line;
  has_last_ = true;
  forward(std::move(line), now, out);
}

void LogLines::forward(std::string line, TimePoint now, std::vector<std::string>& out) {
  const auto bytes = static_cast<double>(line.size() + 1);
  if (line_tokens_ < 1.0 || byte_tokens_ < bytes) {
    if (dropped_now_++ == 0) dropped_since_ = now;
    dropped_bytes_now_ += line.size();
    ++lines_dropped_;
    return;
  }
  say_dropped(now, out);
  line_tokens_ -= 1.0;
  byte_tokens_ -= bytes;
  out.push_back(std::move(line));
}

void LogLines::say_repeats(TimePoint now, std::vector<std::string>& out) {
  if (repeats_ == 0) return;
  const std::uint64_t count = std::exchange(repeats_, 0);
  forward(fmt::format("repeated {}×", count), now, out);
}

void LogLines::say_dropped(TimePoint now, std::vector<std::string>& out) {
  if (dropped_now_ == 0) return;
  out.push_back(
      fmt::format("dropped {} lines ({} bytes) in {:.1f} s: more than {} lines or {} "
                  "bytes a second",
                  dropped_now_, dropped_bytes_now_, seconds(now - dropped_since_),
                  limits_.lines_per_second, limits_.bytes_per_second));
  dropped_now_ = 0;
  dropped_bytes_now_ = 0;
}

void LogLines::refill(TimePoint now) {
  if (refilled_once_ && now <= refilled_at_) return;
  const double lines_max = static_cast<double>(limits_.lines_per_second) * limits_.burst_seconds;
  // A line of full length, every byte of it escaped, must always find room in the end.
  const double bytes_max =
      std::max(static_cast<double>(limits_.bytes_per_second) * limits_.burst_seconds,
               static_cast<double>(limits_.line_bytes_max * 4 + 64));
  if (!refilled_once_) {
    refilled_once_ = true;
    line_tokens_ = lines_max;
    byte_tokens_ = bytes_max;
  } else {
    const double span = seconds(now - refilled_at_);
    line_tokens_ =
        std::min(lines_max, line_tokens_ + span * static_cast<double>(limits_.lines_per_second));
    byte_tokens_ =
        std::min(bytes_max, byte_tokens_ + span * static_cast<double>(limits_.bytes_per_second));
  }
  refilled_at_ = now;
}

void LogLines::tick(TimePoint now, std::vector<std::string>& out) {
  refill(now);
  for (Partial& partial : partial_) {
    const bool waiting = !partial.bytes.empty() || partial.bytes_cut > 0;
    if (waiting && now - partial.since >= limits_.partial_after) end_line(partial, now, out);
  }
  if (repeats_ > 0 && now - repeats_since_ >= limits_.repeats_after) say_repeats(now, out);
  if (dropped_now_ > 0 && now - dropped_since_ >= limits_.repeats_after) say_dropped(now, out);
}

void LogLines::finish(TimePoint now, std::vector<std::string>& out) {
  refill(now);
  for (Partial& partial : partial_) {
    if (!partial.bytes.empty() || partial.bytes_cut > 0) end_line(partial, now, out);
  }
  say_repeats(now, out);
  say_dropped(now, out);
}

TimePoint LogLines::next_tick() const {
  TimePoint next = TimePoint::max();
  for (const Partial& partial : partial_) {
    if (!partial.bytes.empty() || partial.bytes_cut > 0)
      next = std::min(next, partial.since + limits_.partial_after);
  }
  if (repeats_ > 0) next = std::min(next, repeats_since_ + limits_.repeats_after);
  if (dropped_now_ > 0) next = std::min(next, dropped_since_ + limits_.repeats_after);
  return next;
}

std::vector<std::string> LogLines::last_lines() const {
  std::vector<std::string> lines;
  const std::uint64_t kept = std::min<std::uint64_t>(lines_seen_, ring_.size());
  for (std::uint64_t i = lines_seen_ - kept; i < lines_seen_; ++i)
    lines.push_back(ring_[i % ring_.size()]);
  return lines;
}

}  // namespace troupe::runtime
