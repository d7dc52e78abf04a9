#pragma once

// Who holds how much of one device's memory, and what must move so that a phase fits.
//
// Colocated roles register what they keep on a device (weights, optimiser, KV cache …). A phase
// declares which of these must be resident and how much scratch it needs; `plan` says which
// entries to load, offload or drop, or refuses the phase with the table of who holds what.
// `MemoryLedger` is the pure core; `DeviceMemory` (device_memory.hpp) runs the moves through
// callbacks.
// **Threads:** belongs to one owner; DeviceMemory locks around it.
// **Invariants:** resident bytes + scratch of the present phase ≤ capacity, always; plans are
// pure functions of the history of calls; a refused call changes nothing.
// **Cost:** linear in the number of entries.

#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

enum class Residency {
  kResident,   ///< on the device
  kOffloaded,  ///< contents kept in host memory
  kDropped,    ///< contents gone; loading makes it anew
};

/// What may be done to an entry that the present phase does not need.
enum class Eviction {
  kNever,    ///< stays on the device
  kOffload,  ///< moved to the host
  kDrop,     ///< thrown away, e.g. a KV cache
};

struct MemoryKey {
  std::string owner;  ///< worker group or rank, e.g. `policy`
  std::string what;   ///< e.g. `weights`, `optimizer`, `kv cache`
  auto operator<=>(const MemoryKey&) const = default;
  std::string to_string() const { return owner + "/" + what; }
};

struct MemoryEntry {
  MemoryKey key;
  Bytes bytes;
  Eviction eviction = Eviction::kNever;
  Residency residency = Residency::kResident;
  std::int64_t last_needed = 0;  ///< phase counter when a phase last asked for it
};

struct Phase {
  std::string name;
  std::vector<MemoryKey> resident = {};  ///< what must be on the device
  Bytes scratch = {};                    ///< activations and other temporary memory
};

enum class MoveKind { kLoad, kOffload, kDrop };

struct MemoryMove {
  MoveKind kind;
  MemoryKey key;
  Bytes bytes;
  bool operator==(const MemoryMove&) const = default;
};

class MemoryLedger {
 public:
  MemoryLedger(DeviceId device, Bytes capacity);

  /// Registers an entry. A resident one must fit beside what is resident now
  /// (kResourceExhausted with the table); kAlreadyExists for a known key; kInvalidArgument for
  /// negative bytes.
  result<void> add(MemoryEntry entry);
  result<void> remove(const MemoryKey& key);               ///< kNotFound
  result<void> resize(const MemoryKey& key, Bytes bytes);  ///< kNotFound, kResourceExhausted

  /// The moves that make `phase` fit, evictions first, then loads. Evicts no more than it must:
  /// droppable entries first, then those whose last phase is longest ago, then in the order they
  /// were added. kResourceExhausted with the table when it cannot fit, kNotFound for an unknown
  /// key, kConflict while another phase is in progress.
  result<std::vector<MemoryMove>> plan(const Phase& phase) const;
  /// Notes that a move of a plan was done. kResourceExhausted when a load does not fit.
  result<void> apply(const MemoryMove& move);
  /// Starts the phase: all it needs must be resident and its scratch must fit.
  result<void> enter(const Phase& phase);
  void leave();  ///< ends the present phase and gives back its scratch

  /// How many bytes an entry of `phase` could still grow by, or 0: capacity − what the phase
  /// needs − what never leaves. This is how a KV cache learns its size.
  result<Bytes> room_in(const Phase& phase) const;

  DeviceId device() const { return device_; }
  Bytes capacity() const { return capacity_; }
  Bytes used() const;  ///< resident entries + scratch of the present phase
  const std::optional<Phase>& phase() const { return phase_; }
  const MemoryEntry* find(const MemoryKey& key) const;
  const std::vector<MemoryEntry>& entries() const { return entries_; }  ///< in order of adding
  /// Who holds what, largest first, as lines of text.
  std::string table() const;

 private:
  DeviceId device_;
  Bytes capacity_;
  std::vector<MemoryEntry> entries_;
  std::optional<Phase> phase_;
  std::int64_t phase_count_ = 0;
};

}  // namespace troupe::runtime
