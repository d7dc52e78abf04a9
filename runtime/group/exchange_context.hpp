#pragma once

// `ExchangeContext`: how batches and columns of one call get onto the wire and off it.
//
// Over a column exchange what is big stays where it is and is referred to; without one (a job of
// small values only) columns travel whole.
// Ownership: borrows the exchange and the meter; made for one call, or one value.
// **Threads:** one at a time.
// **Invariants:** both ends of a link use the same of the two forms.

#include "runtime/batch/column_ref.hpp"
#include "runtime/wire/wire_stream.hpp"

#include <memory>
#include <vector>

namespace troupe::runtime {

class ColumnExchange;

class ExchangeContext final : public WireContext {
 public:
  enum class Give {
    kLend,   ///< arguments: kept for as long as `keeps` live
    kGrant,  ///< results: the peer, which is the controller, gets the lease
  };
  struct Options {
    ColumnExchange* exchange = nullptr;  ///< null: columns travel whole
    Give give = Give::kLend;
    bool resolve = false;        ///< what is read has its payload here
    PullMeter* meter = nullptr;  ///< counts what was pulled
  };
  explicit ExchangeContext(Options options) : options_(options) {}

  result<std::vector<std::byte>> export_batch(const Batch& batch) override;
  result<Batch> import_batch(std::span<const std::byte> bytes) override;
  result<std::vector<std::byte>> export_column(const Column& column) override;
  result<Column> import_column(std::span<const std::byte> bytes) override;

  /// Puts a value that is too large for a frame where the peer can pull it; kResourceExhausted
  /// without an exchange.
  result<std::vector<std::byte>> hold(std::vector<std::byte> value);
  /// The value behind bytes that `hold` gave.
  result<std::vector<std::byte>> fetch(std::span<const std::byte> held);

  /// What must live until the peer is through with the call.
  std::vector<std::shared_ptr<const void>> take_keeps() { return std::move(keeps_); }

 private:
  Options options_;
  std::vector<std::shared_ptr<const void>> keeps_;
};

}  // namespace troupe::runtime
