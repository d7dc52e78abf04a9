#pragma once

// Copies from the memory of another process on this host, with its consent: process_vm_readv.
//
// One copy, no buffers between, and an owner that dies in the middle is an error at once. It needs
// the rights of ptrace (same user; Yama; a container's seccomp filter), which a probe finds out:
// every owner holds 16 random bytes at a known place, and every read ends by reading them again, so
// that a process that has taken the owner's pid cannot be mistaken for it.
// **Threads:** any.

#include "runtime/base/result.hpp"
#include "runtime/comm/transport_wire.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace troupe::runtime {

/// Where in a list of targets and a list of places a copy has come to.
struct DirectProgress {
  std::size_t place = 0;
  std::uint64_t in_place = 0;
  std::size_t target = 0;
  std::size_t in_target = 0;
};

/// Copies at most `bytes_max` further bytes from `places` of the process behind `owner` into
/// `targets`; returns how many, and moves `progress`. Errors: kUnsupported when the kernel forbids
/// it, kRankDead when the process is gone or another, kInternal else.
result<std::int64_t> copy_directly(const TransportAddress& owner,
                                   std::span<const MemoryPlace> places,
                                   std::span<const std::span<std::byte>> targets,
                                   std::int64_t bytes_max, DirectProgress& progress);

/// Moves `progress` past `bytes` bytes without copying.
void skip_directly(std::span<const MemoryPlace> places,
                   std::span<const std::span<std::byte>> targets, std::int64_t bytes,
                   DirectProgress& progress);

/// Whether memory of `owner` can be read at all: the same errors.
result<void> probe_directly(const TransportAddress& owner);

/// Lets others read our memory where Yama would forbid it.
void permit_direct_reads();

/// The kernel's boot id and the namespaces of this process: the same for those that can share
/// memory. Empty when the kernel does not say.
std::string host_identity();

}  // namespace troupe::runtime
