#pragma once

// What a publication of weights says over the control channel: commands of the coordinator and the
// replies of ranks. Payload never travels here; ranks pull it from each other (weight_port.hpp).
//
//   coordinator → source, target   begin    freeze / prepare a second set
//   source, target → coordinator   ready    with the address of its port
//   coordinator → target           receive  with the addresses of all
//   target → coordinator           verified every byte is here and its checksums agree
//   coordinator → source, target   commit   or abort, with the cause
//   source, target → coordinator   committed / aborted; failed at any step
// **Threads:** value types; all of them travel by wire.hpp.
// **Invariants:** an epoch names one attempt to publish and is never used again; what carries an
// older one than its receiver has seen is fenced off.

#include "reshard/layout.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe::reshard {

/// One attempt to publish.
struct PublicationId {
  std::uint64_t epoch = 0;  ///< grows with each attempt; not 0
  WeightVersion version;    ///< that the targets serve after it
  /// `Plan::digest`, the same on every rank.
  std::uint64_t digest = 0;
  /// Delta: only what changed since this version travels; both ends must have it.
  std::optional<WeightVersion> base;
  bool operator==(const PublicationId&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("epoch", &PublicationId::epoch),
                      runtime::field("version", &PublicationId::version),
                      runtime::field("digest", &PublicationId::digest),
                      runtime::field("base", &PublicationId::base)};
  }
};

/// What is computed of each piece at both ends and compared. Copies inside a process are never
/// checked by crc.
struct Checks {
  bool chunk_crc = false;   ///< crc32c of its bytes too: another kind of sum, for wires not trusted
  bool tensor_sums = true;  ///< its part of the tensor's checksum; see checksum.hpp
  bool operator==(const Checks&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("chunk_crc", &Checks::chunk_crc),
                      runtime::field("tensor_sums", &Checks::tensor_sums)};
  }
};

/// One end of a publication. A rank that is on both sides is two members.
struct Member {
  Side side = Side::kSource;
  std::int32_t rank = 0;
  auto operator<=>(const Member&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("side", &Member::side), runtime::field("rank", &Member::rank)};
  }
};
/// `source rank 3`
std::string member_text(const Member& member);

/// Where the port of a member is reached; empty when it is in this process only.
struct MemberAddress {
  Member member;
  std::vector<std::byte> address;
  bool operator==(const MemberAddress&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("member", &MemberAddress::member),
                      runtime::field("address", &MemberAddress::address)};
  }
};

enum class CommandKind : std::uint8_t { kBegin, kReceive, kCommit, kAbort };
std::string_view command_name(CommandKind kind);

struct Command {
  CommandKind kind = CommandKind::kBegin;
  PublicationId id;
  Checks checks;
  std::vector<MemberAddress> members;         ///< kReceive
  std::optional<Error> cause;                 ///< kAbort
  Duration within = std::chrono::minutes(5);  ///< for this step; the source's lease at kBegin
  bool operator==(const Command&) const = default;
  static constexpr auto fields() {
    return std::tuple{
        runtime::field("kind", &Command::kind),     runtime::field("id", &Command::id),
        runtime::field("checks", &Command::checks), runtime::field("members", &Command::members),
        runtime::field("cause", &Command::cause),   runtime::field("within", &Command::within)};
  }
};

enum class ReplyKind : std::uint8_t { kReady, kVerified, kCommitted, kAborted, kFailed };

/// What one target received.
struct ReceiveStatistics {
  std::int64_t local_bytes = 0;      ///< read where they lie in this process
  std::int64_t viewed_bytes = 0;     ///< of these, kept by the sink without a copy
  std::int64_t pulled_bytes = 0;     ///< payload from other processes
  std::int64_t network_bytes = 0;    ///< of these, from other nodes
  std::int64_t relayed_bytes = 0;    ///< of these, from other targets
  std::int64_t unchanged_bytes = 0;  ///< delta: that did not travel
  std::int64_t in_place_bytes = 0;   ///< pulled straight into the target's buffers
  std::int64_t buckets = 0;
  std::int64_t staging_bytes = 0;  ///< of the buckets, resident
  bool operator==(const ReceiveStatistics&) const = default;
  static constexpr auto fields() {
    using S = ReceiveStatistics;
    return std::tuple{runtime::field("local_bytes", &S::local_bytes),
                      runtime::field("viewed_bytes", &S::viewed_bytes),
                      runtime::field("pulled_bytes", &S::pulled_bytes),
                      runtime::field("network_bytes", &S::network_bytes),
                      runtime::field("relayed_bytes", &S::relayed_bytes),
                      runtime::field("unchanged_bytes", &S::unchanged_bytes),
                      runtime::field("in_place_bytes", &S::in_place_bytes),
                      runtime::field("buckets", &S::buckets),
                      runtime::field("staging_bytes", &S::staging_bytes)};
  }
};

struct Reply {
  std::uint64_t epoch = 0;
  Member from;
  CommandKind to = CommandKind::kBegin;  ///< what it answers
  ReplyKind kind = ReplyKind::kFailed;
  std::vector<std::byte> address;  ///< kReady
  std::optional<Error> error;      ///< kFailed
  /// kFailed to kReceive: whose bytes or answers were missing; its own reply knows more about why.
  std::optional<Member> waited_for{};
  ReceiveStatistics received;  ///< kVerified
  bool operator==(const Reply&) const = default;
  static constexpr auto fields() {
    return std::tuple{runtime::field("epoch", &Reply::epoch),
                      runtime::field("from", &Reply::from),
                      runtime::field("to", &Reply::to),
                      runtime::field("kind", &Reply::kind),
                      runtime::field("address", &Reply::address),
                      runtime::field("error", &Reply::error),
                      runtime::field("waited_for", &Reply::waited_for),
                      runtime::field("received", &Reply::received)};
  }
};

}  // namespace troupe::reshard
