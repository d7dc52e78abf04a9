#include "runtime/comm/direct_copy.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

namespace troupe::runtime {
namespace {

/// Vectors of one call; the kernel takes up to 1024.
constexpr std::size_t kVectorsMax = 256;

/// The vectors of one call, from where `progress` stands.
struct Vectors {
  std::array<iovec, kVectorsMax> local;
  std::array<iovec, kVectorsMax> remote;
  std::size_t local_count = 0;
  std::size_t remote_count = 0;
  std::int64_t bytes = 0;
};

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// Pairs stretches of places and targets until `bytes_max` or the vectors are used up; the last
/// vector of each side stays free for the probe.
void gather(std::span<const MemoryPlace> places, std::span<const std::span<std::byte>> targets,
            std::int64_t bytes_max, DirectProgress& at, Vectors& out) {
  while (at.place < places.size() && at.target < targets.size() && out.bytes < bytes_max &&
         out.local_count + 1 < kVectorsMax && out.remote_count + 1 < kVectorsMax) {
    const std::uint64_t there = places[at.place].bytes - at.in_place;
    const std::size_t here = targets[at.target].size() - at.in_target;
    const auto count = std::min({there, static_cast<std::uint64_t>(here),
                                 static_cast<std::uint64_t>(bytes_max - out.bytes)});
    if (count > 0) {
      out.local[out.local_count++] = {targets[at.target].data() + at.in_target, count};
      out.remote[out.remote_count++] = {pointer(places[at.place].address + at.in_place), count};
      out.bytes += static_cast<std::int64_t>(count);
    }
    at.in_place += count;
    at.in_target += count;
    if (at.in_place == places[at.place].bytes) ++at.place, at.in_place = 0;
    if (at.in_target == targets[at.target].size()) ++at.target, at.in_target = 0;
  }
}

}  // namespace

result<std::int64_t> copy_directly(const TransportAddress& owner,
                                   std::span<const MemoryPlace> places,
                                   std::span<const std::span<std::byte>> targets,
                                   std::int64_t bytes_max, DirectProgress& progress) {
  Vectors vectors;
  DirectProgress after = progress;
  gather(places, targets, bytes_max, after, vectors);
  std::array<std::byte, 16> probe{};
  vectors.local[vectors.local_count++] = {probe.data(), probe.size()};
  vectors.remote[vectors.remote_count++] = {pointer(owner.probe_place), probe.size()};
  const ssize_t copied =
      ::process_vm_readv(static_cast<pid_t>(owner.pid), vectors.local.data(), vectors.local_count,
                         vectors.remote.data(), vectors.remote_count, 0);
  const int error = copied < 0 ? errno : 0;
  const auto wanted = vectors.bytes + static_cast<std::int64_t>(probe.size());
  if (error == ESRCH)
    return fail(ErrorCode::kRankDead, "{}: process {} is gone", owner.name, owner.pid);
  if (error == EPERM || error == EACCES || error == ENOSYS)
    return fail(ErrorCode::kUnsupported, "{}: reading memory of process {}: {}", owner.name,
                owner.pid, system_message(error));
  if (error != 0)
    return fail(ErrorCode::kInternal, "{}: reading memory of process {}: {}", owner.name, owner.pid,
                system_message(error));
  if (copied != wanted)
    return fail(ErrorCode::kInternal, "{}: read {} of {} bytes from process {}", owner.name, copied,
                wanted, owner.pid);
  if (probe != owner.probe)
    return fail(ErrorCode::kRankDead, "{}: process {} is another one now", owner.name, owner.pid);
  progress = after;
  return vectors.bytes;
}

void skip_directly(std::span<const MemoryPlace> places,
                   std::span<const std::span<std::byte>> targets, std::int64_t bytes,
                   DirectProgress& progress) {
  while (bytes > 0) {
    Vectors vectors;
    gather(places, targets, bytes, progress, vectors);
    if (vectors.bytes == 0) return;
    bytes -= vectors.bytes;
  }
}

result<void> probe_directly(const TransportAddress& owner) {
  DirectProgress nothing;
  TROUPE_TRY_VOID(copy_directly(owner, {}, {}, 0, nothing).map([](std::int64_t) {}));
  return {};
}

void permit_direct_reads() {
  // Fails where there is no Yama, and then nothing needs permitting.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  std::getline(file, identity);
  // Containers of one kernel are strangers: memory, process ids and the sockets by which lanes of
  // shared memory wake each other belong to namespaces.
  for (const char* space : {"net", "pid", "ipc", "user"}) {
    std::error_code failure;
    const auto link =
        std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", space), failure);
    identity += ' ' + link.string();
  }
  return identity;
}

}  // namespace troupe::runtime
