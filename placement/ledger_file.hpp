#pragma once

// `LedgerFile`: the placement ledger on disk, as a list of opaque payloads.
//
// Ownership: one process owns a ledger at a time; a lock on the file beside it refuses a second.
// **Threads:** one at a time.
// **Invariants:** a payload is durable when the `sync` after its `append` returned; after any
// error the file must not be used again (the process restarts and reads what is durable).
// `replace` is atomic: a crash leaves the old file or the new one.
// **Cost:** `append` one write, `sync` one fdatasync.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::placement {

/// Larger ledgers are refused when opened; compaction keeps them far below.
inline constexpr std::int64_t kLedgerFileBytesMax = std::int64_t{1} << 30;

class LedgerFile {
 public:
  struct Opened;
  /// Opens or creates `path`, its folder included; a torn tail is cut off. kCorrupt names the
  /// place; kAlreadyExists when another process has it open.
  static result<Opened> open(const std::filesystem::path& path);

  LedgerFile(LedgerFile&& other) noexcept;
  LedgerFile& operator=(LedgerFile&&) = delete;
  ~LedgerFile();

  result<void> append(std::span<const std::byte> payload);
  result<void> sync();
  /// The file holds exactly `payloads` from now on, durably.
  result<void> replace(const std::vector<std::vector<std::byte>>& payloads);
  std::size_t bytes() const { return bytes_; }

 private:
  LedgerFile(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  result<void> reopen();

  std::filesystem::path path_;
  int lock_ = -1;
  int descriptor_ = -1;
  std::uint64_t next_frame_ = 0;
  std::size_t bytes_ = 0;
};

struct LedgerFile::Opened {
  LedgerFile file;
  std::vector<std::vector<std::byte>> payloads;
  std::optional<std::string> warning;  ///< what was cut off
};

}  // namespace troupe::placement
