#pragma once

// Who holds which columns of this process: counted leases of holders in other processes.
//
// A holder is one session of a controller's channel. Each export of a column to it is a grant; the
// holder releases as many grants as it received, so that a release that crosses a fresh export on
// the way does not free the column. Pure: time comes in as an argument.
// **Threads:** none; its owner locks.
// **Invariants:** a column is held while some holder has a grant of it; a holder that is gone or
// not renewed in time holds nothing, and gets nothing until it is opened again.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// As many grants of a column as its holder gives back.
struct LeaseRelease {
  ColumnId column;
  std::int64_t grants = 1;
  bool operator==(const LeaseRelease&) const = default;
};

class LeaseTable {
 public:
  /// `expires_after`: how long a holder of columns lives without being renewed.
  explicit LeaseTable(Duration expires_after);

  /// A holder may be opened again while it is open, which renews it.
  void open(const std::string& holder, TimePoint now);
  bool is_open(std::string_view holder) const;
  /// One more grant. kAborted when the holder is not open.
  result<void> grant(std::string_view holder, ColumnId column, TimePoint now);
  /// Renews too. Returns the columns that nobody holds any more. Grants that the holder does not
  /// have, and unknown holders, are ignored: they belong to a session that is gone.
  std::vector<ColumnId> release(std::string_view holder, std::span<const LeaseRelease> releases,
                                TimePoint now);
  void renew(std::string_view holder, TimePoint now);
  /// The holder's channel is down: what only it held is free.
  std::vector<ColumnId> close(std::string_view holder);

  struct Expired {
    std::vector<std::string> holders;
    std::vector<ColumnId> columns;
  };
  /// Closes every holder that holds something and was not renewed for `expires_after`.
  Expired expire(TimePoint now);
  std::optional<TimePoint> next_expiry() const;

  std::int64_t columns() const { return static_cast<std::int64_t>(holders_of_.size()); }
  std::int64_t grants(std::string_view holder, ColumnId column) const;

 private:
  struct Holder {
    TimePoint renewed_at{};
    std::map<ColumnId, std::int64_t> grants;
  };
  /// True when `column` has lost its last holder.
  bool let_go(ColumnId column);

  Duration expires_after_;
  std::map<std::string, Holder, std::less<>> holders_;
  std::map<ColumnId, std::int64_t> holders_of_;  ///< how many hold each column
};

}  // namespace troupe::runtime
