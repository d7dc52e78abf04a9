#include "reshard/execution/delta.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::reshard {
namespace {

constexpr std::int64_t kHeader = 8;
/// Equal bytes that are looked at together.
constexpr std::size_t kStride = 256;

/// Walks two lists of spans side by side as pairs of equal length.
template <class Pair>
void for_each_pair(Spans now, Spans base, Pair pair) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t in_now = 0;
  std::size_t in_base = 0;
  while (i < now.size() && j < base.size()) {
    const std::size_t take = std::min(now[i].size() - in_now, base[j].size() - in_base);
    pair(now[i].data() + in_now, base[j].data() + in_base, take);
    in_now += take;
    in_base += take;
    if (in_now == now[i].size()) ++i, in_now = 0;
    if (in_base == base[j].size()) ++j, in_base = 0;
  }
}

std::int64_t total(Spans spans) {
  std::int64_t bytes = 0;
  for (const auto& span : spans) bytes += static_cast<std::int64_t>(span.size());
  return bytes;
}

/// Finds the runs that changed and tells `begin(at)`, `more(data, bytes)` of each; joins runs that
/// at most kHeader equal bytes separate.
template <class Sink>
class RunFinder {
 public:
  explicit RunFinder(Sink& sink) : sink_(sink) {}

  void compare(const std::byte* now, const std::byte* base, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes;) {
      const std::size_t far = std::min(kStride, bytes - i);
      if (std::memcmp(now + i, base + i, far) == 0) {
        equal(now + i, far);
        i += far;
        continue;
      }
      for (std::size_t end = i + far; i < end; ++i) {
        if (now[i] == base[i])
          equal(now + i, 1);
        else
          differs(now + i);
      }
    }
  }

 private:
  void equal(const std::byte* data, std::size_t count) {
    if (open_ && held_.size() + count <= kHeader)
      held_.insert(held_.end(), data, data + count);
    else
      close();
    at_ += static_cast<std::int64_t>(count);
  }
  void differs(const std::byte* data) {
    if (!open_) sink_.begin(at_);
    open_ = true;
    if (!held_.empty()) sink_.more(held_.data(), held_.size());
    held_.clear();
    sink_.more(data, 1);
    ++at_;
  }
  void close() {
    open_ = false;
    held_.clear();
  }

  Sink& sink_;
  std::int64_t at_ = 0;
  bool open_ = false;
  std::vector<std::byte> held_;  ///< equal bytes that a run may go on after
};

struct Counter {
  std::int64_t bytes = 0;
  void begin(std::int64_t /*at*/) { bytes += kHeader; }
  void more(const std::byte* /*data*/, std::size_t count) {
    bytes += static_cast<std::int64_t>(count);
  }
};

struct Writer {
  std::vector<std::byte> out;
  std::size_t header = 0;    ///< of the open run
  std::int64_t covered = 0;  ///< end of the last run
  std::uint32_t length = 0;

  void begin(std::int64_t at) {
    header = out.size();
    out.resize(header + kHeader);
    const auto same = static_cast<std::uint32_t>(at - covered);
    std::memcpy(out.data() + header, &same, 4);
    covered = at;
    length = 0;
  }
  void more(const std::byte* data, std::size_t count) {
    out.insert(out.end(), data, data + count);
    length += static_cast<std::uint32_t>(count);
    covered += static_cast<std::int64_t>(count);
    std::memcpy(out.data() + header + 4, &length, 4);
  }
};

}  // namespace

std::vector<std::byte> encode_delta(Spans now, Spans base) {
  TROUPE_CHECK(total(now) == total(base) && total(now) <= (std::int64_t{1} << 30),
               "delta: {} bytes against {}", total(now), total(base));
  Writer writer;
  RunFinder finder(writer);
  for_each_pair(now, base, [&](const std::byte* a, const std::byte* b, std::size_t bytes) {
    finder.compare(a, b, bytes);
  });
  return std::move(writer.out);
}

std::int64_t delta_bytes(Spans now, Spans base) {
  const std::int64_t whole = total(now);
  if (total(base) != whole) return -1;
  Counter counter;
  RunFinder finder(counter);
  for_each_pair(now, base, [&](const std::byte* a, const std::byte* b, std::size_t bytes) {
    finder.compare(a, b, bytes);
  });
  return counter.bytes < whole ? counter.bytes : -1;
}

result<std::vector<DeltaRun>> decode_delta(std::span<const std::byte> delta,
                                           std::int64_t piece_bytes) {
  std::vector<DeltaRun> runs;
  std::int64_t at = 0;
  while (!delta.empty()) {
    std::uint32_t same = 0;
    std::uint32_t length = 0;
    if (delta.size() >= kHeader) {
      std::memcpy(&same, delta.data(), 4);
      std::memcpy(&length, delta.data() + 4, 4);
    }
    const bool fits = delta.size() >= kHeader && length > 0 && length <= delta.size() - kHeader &&
                      at + same + length <= piece_bytes;
    if (!fits)
      return fail(ErrorCode::kCorrupt, "delta: run of {} bytes at {} of {}, {} bytes are left",
                  length, at + same, piece_bytes, delta.size());
    at += same;
    runs.push_back({.at = at, .bytes = delta.subspan(kHeader, length)});
    at += length;
    delta = delta.subspan(kHeader + length);
  }
  return runs;
}

}  // namespace troupe::reshard
