#pragma once

// Collectives: what the ranks of one group do together. The interface follows c10d's, so that an
// implementation between processes (Gloo, NCCL) can stand behind it; `make_local_group` gives the
// one for ranks that are threads of this process.
//
// Ownership: each rank owns its handle. Destroying a handle is the death of that rank: peers that
// wait for it, now or later, get `kRankDead` naming it.
// **Threads:** a handle is used by one thread at a time; `abort`, `epoch` and `failure` may be
// called from any thread. The ranks of a group call on different threads.
// **Invariants:** every rank calls the same operations in the same order. An operation succeeds
// on all ranks or fails on all. Reductions combine in rank order, so the bits are the same on
// every rank and do not depend on who came first. After a failure (death, abort, deadline,
// mismatch) every operation fails at once with the first cause until `rebuild`.
// **Cost:** no busy waiting. all_reduce moves 2 × bytes per rank and each rank reduces one slice.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

enum class ReduceOp : std::uint8_t { kSum, kMin, kMax, kProduct };
enum class ElementType : std::uint8_t { kF32, kF64, kI64, kByte };

std::string_view reduce_op_name(ReduceOp op);
std::string_view element_type_name(ElementType type);
std::size_t element_bytes(ElementType type);

/// Element types that collectives carry; only the first three can be reduced.
template <class T>
concept CollectiveElement = std::same_as<T, float> || std::same_as<T, double> ||
    std::same_as<T, std::int64_t> || std::same_as<T, std::byte>;

template <CollectiveElement T>
constexpr ElementType element_type_of() {
  if constexpr (std::same_as<T, float>)
    return ElementType::kF32;
  else if constexpr (std::same_as<T, double>)
    return ElementType::kF64;
  else if constexpr (std::same_as<T, std::int64_t>)
    return ElementType::kI64;
  else
    return ElementType::kByte;
}

/// A typed view to read from; converts from any contiguous range of a CollectiveElement.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  ElementType type = ElementType::kF32;

  ConstBuffer() = default;
  template <std::ranges::contiguous_range Range>
  requires CollectiveElement<std::ranges::range_value_t<Range>> ConstBuffer(
      const Range& range)  // NOLINT: implicit on purpose
      : data(std::ranges::data(range)),
        count(std::ranges::size(range)),
        type(element_type_of<std::ranges::range_value_t<Range>>()) {}
  std::size_t bytes() const { return count * element_bytes(type); }
};

/// A typed view to write to; `all_reduce(gradients, …)` takes a vector or a span alike.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  ElementType type = ElementType::kF32;

  Buffer() = default;
  template <std::ranges::contiguous_range Range>
  requires CollectiveElement<std::ranges::range_value_t<Range>> &&
      (!std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>)
          Buffer(Range&& range)  // NOLINT: implicit on purpose
      : data(std::ranges::data(range)),
        count(std::ranges::size(range)),
        type(element_type_of<std::ranges::range_value_t<Range>>()) {}
  std::size_t bytes() const { return count * element_bytes(type); }
  ConstBuffer as_const() const;
};

class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;  ///< in [0, size)
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  ///< for messages, e.g. `policy` or `policy/dp`
  virtual std::int64_t epoch() const = 0;

  // Errors of every operation below: kDeadline naming the ranks that did not come, kRankDead or
  // kAborted naming the rank and the cause, kConflict naming two ranks that called differently,
  // kInvalidArgument when one rank's own arguments do not fit together (told to all ranks).

  /// data [n] on every rank → elementwise reduction over ranks, in place.
  /// NaN wins in min and max; int64 sums and products wrap.
  virtual result<void> all_reduce(Buffer data, ReduceOp op, Deadline deadline) = 0;
  /// part [n] → whole [R·n] in rank order. `part` may be its own place inside `whole`.
  virtual result<void> all_gather(ConstBuffer part, Buffer whole, Deadline deadline) = 0;
  /// Parts of any length, one vector per rank, in rank order.
  virtual result<std::vector<std::vector<std::byte>>> all_gather_bytes(
      std::span<const std::byte> part, Deadline deadline) = 0;
  /// As all_gather_bytes, but only `root` receives; others get an empty vector.
  virtual result<std::vector<std::vector<std::byte>>> gather_bytes(std::span<const std::byte> part,
                                                                   int root, Deadline deadline) = 0;
  /// whole [R·n] on every rank → part [n] = the reduction of slice `rank` over ranks.
  virtual result<void> reduce_scatter(ConstBuffer whole, Buffer part, ReduceOp op,
                                      Deadline deadline) = 0;
  /// data [n] of `root` → data [n] of every rank.
  virtual result<void> broadcast(Buffer data, int root, Deadline deadline) = 0;
  virtual result<void> barrier(Deadline deadline) = 0;

  /// Buffered: returns once the bytes are copied, or waits for room in the receiver's mailbox.
  /// Messages of one (sender, receiver, tag) arrive in order. A deadline here is local: it does
  /// not break the group.
  virtual result<void> send(ConstBuffer data, int peer, int tag, Deadline deadline) = 0;
  /// Waits for the next message of `peer` with `tag`; type and count must match it (kConflict).
  virtual result<void> recv(Buffer data, int peer, int tag, Deadline deadline) = 0;

  /// Collective. Ranks of one colour form a group, ordered by (key, rank). A negative colour
  /// joins none and gets nullptr. The new group fails when this one does.
  virtual result<std::unique_ptr<Collective>> split(int colour, int key, Deadline deadline) = 0;

  /// Fails the group: waiting and later operations of every rank end with kAborted, this rank's
  /// name and `cause`. The first failure stays; later ones are ignored.
  virtual void abort(Error cause) = 0;
  /// The failure that operations report now, if any.
  virtual std::optional<Error> failure() const = 0;
  /// Collective over all ranks: leaves the failure behind and starts `new_epoch`, which must be
  /// the same on all ranks and above the present one. Drops unread messages. kRankDead when a
  /// rank is gone and was not replaced.
  virtual result<void> rebuild(std::int64_t new_epoch, Deadline deadline) = 0;

  /// Typed form of all_gather_bytes. T: float, double, int64_t or std::byte.
  template <CollectiveElement T>
  result<std::vector<std::vector<T>>> all_gather_variable(std::span<const T> part,
                                                          Deadline deadline);
};

/// The sum (or minimum, …) of one number over all ranks.
template <CollectiveElement T>
result<T> all_reduce_value(Collective& group, T value, ReduceOp op, Deadline deadline) {
  auto done = group.all_reduce(std::span<T>(&value, 1), op, deadline);
  if (!done) return fail(std::move(done).error());
  return value;
}

struct LocalGroupOptions {
  std::string name = "group";
  std::size_t mailbox_bytes = std::size_t{64}
                              << 20;  ///< unread bytes per receiver before send waits
};

/// A group of `size` ranks that are threads of this process; element i is the handle of rank i.
/// size ≥ 1.
std::vector<std::unique_ptr<Collective>> make_local_group(int size,
                                                          const LocalGroupOptions& options = {});

/// A new handle for a rank of `survivor`'s group whose handle was destroyed; it becomes usable
/// with the next `rebuild`, which it must join. kAlreadyExists when that rank is alive.
result<std::unique_ptr<Collective>> replace_rank(Collective& survivor, int rank);

template <CollectiveElement T>
result<std::vector<std::vector<T>>> Collective::all_gather_variable(std::span<const T> part,
                                                                    Deadline deadline) {
  auto parts = all_gather_bytes(std::as_bytes(part), deadline);
  if (!parts) return fail(std::move(parts).error());
  std::vector<std::vector<T>> typed(parts->size());
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const auto& bytes = (*parts)[i];
    if (bytes.size() % sizeof(T) != 0) {
      return fail(ErrorCode::kConflict,
                  "{}: all_gather_variable: rank {} gave {} bytes, not a multiple of {}", name(), i,
                  bytes.size(), sizeof(T));
    }
    typed[i].resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(typed[i].data(), bytes.data(), bytes.size());
  }
  return typed;
}

}  // namespace troupe::runtime
