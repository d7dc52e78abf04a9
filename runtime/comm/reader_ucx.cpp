// Pulls of the UCX engine: asking for chunks and receiving their answers.

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/engine_ucx.hpp"

#include <algorithm>

namespace troupe::runtime {
namespace {

/// Small parts share a chunk and are copied apart here; others get a chunk each.
constexpr std::int64_t kScatterBytesMax = std::int64_t{64} << 10;
constexpr std::int64_t kScatterPartMax = std::int64_t{8} << 10;
/// A request for places may cover more: nothing is buffered for it.
constexpr std::int64_t kPlacesBytesMax = std::int64_t{64} << 20;
/// Copied at once, in some 20 µs, rather than by a thread that has to be woken and to wake us.
constexpr std::int64_t kCopyAtOnceBytes = std::int64_t{256} << 10;

}  // namespace

void UcxEngine::pull(PullRequest request, Deadline deadline, completer<void> out) {
  const std::uint64_t number = ++last_number_;
  Pull& pull = pulls_[number];
  pull.request = std::move(request);
  pull.out = std::move(out);
  pull.deadline = deadline.at;
  counters_.pulls_open.fetch_add(1);
  start(number);
}

void UcxEngine::start(std::uint64_t number) {
  Pull& pull = pulls_.at(number);
  result<TransportAddress> address = decode_address(pull.request.owner);
  if (!address) return end_pull(number, fail(std::move(address).error()));
  if (pull.deadline <= steady_now())
    return end_pull(number,
                    fail(ErrorCode::kDeadline, "{}: the deadline passed before", address->name));
  result<Peer*> peer = peer_of(*address);
  if (!peer) return end_pull(number, fail(std::move(peer).error()));
  pull.epoch = address->epoch;
  deadlines_.emplace(pull.deadline, number);
  (*peer)->pulls.push_back(number);
  plan(pull, **peer);
  if (pull.chunks.empty()) return end_pull(number, {});
  pump(**peer);
}

void UcxEngine::plan(Pull& pull, const Peer& peer) {
  pull.by_places = peer.direct == Direct::kYes && !pull.lanes_only;
  const bool watched = pull.request.watch != nullptr;
  const std::int64_t most =
      pull.by_places ? kPlacesBytesMax
                     : std::min(options_.chunk_bytes, worker_.message_bytes_max(watched));
  pull.chunks = plan_chunks(pull.request.parts,
                            {.chunk_bytes = most,
                             .scatter_bytes_max = pull.by_places ? most : kScatterBytesMax,
                             .scatter_part_max = pull.by_places ? most : kScatterPartMax});
  pull.states.assign(pull.chunks.size(), ChunkState::kPlanned);
  pull.next = 0;
  pull.done = 0;
}

void UcxEngine::pump(Peer& peer) {
  for (std::size_t i = 0; i < peer.pulls.size(); ++i) {
    const std::uint64_t number = peer.pulls[i];
    Pull& pull = pulls_.at(number);
    while (ask(peer, number, pull)) {
    }
  }
}

bool UcxEngine::ask(Peer& peer, std::uint64_t number, Pull& pull) {
  const std::size_t left = pull.chunks.size() - pull.next;
  const std::int64_t window = options_.chunks_in_flight * options_.chunk_bytes;
  const auto room = static_cast<std::size_t>(kChunksOutMax - peer.chunks_out);
  // Waits for half a window rather than asking for one chunk as each comes in.
  const bool worth = left > 0 && room > 0 &&
                     room >= std::min<std::size_t>(left, kChunksOutMax / 2) &&
                     (pull.bytes_out <= window / 2 || pull.by_places);
  if (!worth) return false;
  MessageHeader header{.type = MessageType::kRequest};
  Request request;
  // Until it has answered once, every request can be the first that it sees.
  if (!peer.knows_us) {
    request.reader = self_bytes_;
    header.flags |= kFlagIntroduced;
  }
  if (pull.by_places) header.flags |= kFlagPlaces;
  if (pull.request.watch != nullptr) header.flags |= kFlagWatched;
  std::int64_t bytes = 0;
  for (std::size_t asked = 0; asked < room && pull.next < pull.chunks.size(); ++asked) {
    const ChunkPlan& chunk = pull.chunks[pull.next];
    const bool fits = request.parts.size() + chunk.parts.size() <= kRequestPartsMax &&
                      bytes + chunk.bytes <= kChunkBytesMax &&
                      (pull.by_places || pull.bytes_out + chunk.bytes <= window);
    if (asked > 0 && !fits) break;
    request.parts.insert(request.parts.end(), chunk.parts.begin(), chunk.parts.end());
    pull.states[pull.next++] = ChunkState::kAsked;
    bytes += chunk.bytes;
    pull.bytes_out += chunk.bytes;
    ++pull.chunks_out;
    ++peer.chunks_out;
    ++chunks_out_;
  }
  counters_.requests.fetch_add(1);
  header.connection = peer.connection;
  header.pull = number;
  const Duration time_left = std::max(Duration(0), pull.deadline - steady_now());
  header.remaining_ns = static_cast<std::uint64_t>(time_left.count());
  send(peer, header, encode_request(request));
  return true;
}

UcxEngine::Pull* UcxEngine::asked(const MessageHeader& header) {
  const auto place = pulls_.find(header.pull);
  const bool expected = place != pulls_.end() && place->second.epoch == header.from &&
                        header.chunk < place->second.states.size() &&
                        place->second.states[header.chunk] == ChunkState::kAsked;
  if (expected) return &place->second;
  counters_.late.fetch_add(1);
  return nullptr;
}

void UcxEngine::answered(Peer& peer, Pull& pull) {
  --pull.chunks_out;
  --peer.chunks_out;
  --chunks_out_;
  peer.knows_us = true;
}

bool UcxEngine::accept_data(const MessageHeader& header, void* data, std::size_t bytes,
                            bool rendezvous, ucs_status_t& verdict) {
  Pull* pull = asked(header);
  if (pull == nullptr) return false;
  Peer& peer = *peers_.at(header.from);
  const ChunkPlan& chunk = pull->chunks[header.chunk];
  answered(peer, *pull);
  if (static_cast<std::int64_t>(bytes) != chunk.bytes) {
    end_pull(header.pull, fail(ErrorCode::kCorrupt, "{}: {} bytes of chunk {}, wanted {}",
                               peer.address.name, bytes, header.chunk, chunk.bytes));
    return false;
  }
  if (rendezvous) {
    land(header, *pull, data, verdict);
    return true;
  }
  std::span<const std::byte> rest(static_cast<const std::byte*>(data), bytes);
  if (LandingWatch* watch = pull->request.watch.get()) {
    for (const std::span<std::byte> target : chunk.targets) {
      if (!target.empty()) watch->bring(target.data(), rest.first(target.size()));
      rest = rest.subspan(target.size());
    }
  } else {
    scatter_bytes(rest, chunk.targets);
  }
  chunk_done(header.pull, header.chunk);
  return true;
}

void UcxEngine::land(const MessageHeader& header, Pull& pull, void* descriptor,
                     ucs_status_t& verdict) {
  const ChunkPlan& chunk = pull.chunks[header.chunk];
  auto landing = std::make_unique<Landing>();
  landing->engine = this;
  landing->number = ++last_number_;
  landing->epoch = header.from;
  landing->connection = peers_.at(header.from)->connection;
  landing->pull = header.pull;
  landing->chunk = header.chunk;
  landing->expires = pull.deadline + options_.drain;
  landing->keep = pull.request.keep;
  std::span<std::byte> target;
  if (chunk.targets.size() == 1) {
    target = chunk.targets[0];
  } else {
    landing->staging.resize(static_cast<std::size_t>(chunk.bytes));
    target = landing->staging;
  }
  pull.states[header.chunk] = ChunkState::kLanding;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv_am = &UcxEngine::on_landed;
  param.user_data = landing.get();
  const std::uint64_t number = landing->number;
  landings_.emplace(number, std::move(landing));
  void* request =
      ucp_am_recv_data_nbx(worker_.handle(), descriptor, target.data(), target.size(), &param);
  verdict = UCS_INPROGRESS;
  if (UCS_PTR_IS_ERR(request)) {
    landed(number, UCS_PTR_STATUS(request));
    verdict = UCS_OK;
  }
}

void UcxEngine::on_landed(void* request, ucs_status_t status, std::size_t /*bytes*/,
                          void* landing) {
  const auto* done = static_cast<const Landing*>(landing);
  done->engine->landed(done->number, status);
  ucp_request_free(request);
}

void UcxEngine::landed(std::uint64_t number, ucs_status_t status) {
  const auto place = landings_.find(number);
  if (place == landings_.end()) return;
  const std::unique_ptr<Landing> landing = std::move(place->second);
  landings_.erase(place);
  if (landing->orphaned) counters_.buffers_orphaned.fetch_sub(1);
  const auto pull = pulls_.find(landing->pull);
  if (pull == pulls_.end()) return;  // given up before
  if (status != UCS_OK) {
    // The endpoint's own callback says more; this one may come first.
    broken_.push_back({landing->epoch, landing->connection, status});
    return;
  }
  const ChunkPlan& chunk = pull->second.chunks[landing->chunk];
  if (!landing->staging.empty()) scatter_bytes(landing->staging, chunk.targets);
  if (LandingWatch* watch = pull->second.request.watch.get()) {
    for (const std::span<std::byte> target : chunk.targets) watch->landed(target);
  }
  chunk_done(landing->pull, landing->chunk);
}

void UcxEngine::accept_places(Peer& peer, const MessageHeader& header,
                              std::span<const std::byte> payload) {
  const MessageHeader done{.type = MessageType::kDone, .pull = header.pull, .chunk = header.chunk};
  Pull* pull = asked(header);
  if (pull == nullptr) return send(peer, done, {});
  answered(peer, *pull);
  const ChunkPlan& chunk = pull->chunks[header.chunk];
  result<std::vector<MemoryPlace>> places = decode_places(payload, chunk.bytes);
  if (!places || !pull->by_places) {
    send(peer, done, {});
    return end_pull(header.pull,
                    fail(ErrorCode::kCorrupt, "{}: chunk {}: {}", peer.address.name, header.chunk,
                         places ? "places that were not asked for" : places.error().message));
  }
  pull->states[header.chunk] = ChunkState::kLanding;
  CopyJob job{.owner = peer.address,
              .places = *std::move(places),
              .targets = chunk.targets,
              .bytes = chunk.bytes,
              .keep = pull->request.keep,
              .watch = pull->request.watch,
              .finished = nullptr};
  job.finished = [this, epoch = header.from, number = header.pull,
                  index = header.chunk](result<void> outcome) {
    {
      const std::lock_guard lock(copies_mutex_);
      copies_.push_back({epoch, number, index, std::move(outcome)});
    }
    worker_.wake();
  };
  thirsty_.insert(header.from);
  if (chunk.bytes <= kCopyAtOnceBytes) return CopyPool::copy_now(std::move(job));
  if (pool_ == nullptr) pool_ = std::make_unique<CopyPool>(options_.copy_threads);
  pool_->add(std::move(job));
}

void UcxEngine::accept_error(Peer& peer, const MessageHeader& header,
                             std::span<const std::byte> payload) {
  Pull* pull = asked(header);
  if (pull == nullptr) return;
  answered(peer, *pull);
  Error error = decode_failure(payload);
  if (pull->by_places && error.code == ErrorCode::kUnsupported)
    return restart_by_lanes(header.pull);
  end_pull(header.pull, fail(std::move(error)));
}

bool UcxEngine::take_copies() {
  std::vector<CopyDone> over;
  {
    const std::lock_guard lock(copies_mutex_);
    over.swap(copies_);
  }
  for (CopyDone& copy : over) copied(std::move(copy));
  return !over.empty();
}

void UcxEngine::copied(CopyDone copy) {
  Peer* peer = known_peer(copy.epoch);
  if (peer == nullptr || peer->lost) return;
  send(*peer, {.type = MessageType::kDone, .pull = copy.pull, .chunk = copy.chunk}, {});
  const auto pull = pulls_.find(copy.pull);
  if (pull == pulls_.end()) return;  // it ended meanwhile
  if (copy.outcome) {
    counters_.bytes_direct.fetch_add(pull->second.chunks[copy.chunk].bytes);
    return chunk_done(copy.pull, copy.chunk);
  }
  Error error = std::move(copy.outcome).error();
  if (error.code == ErrorCode::kUnsupported) {
    log::warn("transport of {}: direct copies end, lanes instead: {}", options_.name,
              error.message);
    peer->direct = Direct::kNo;
    restart_by_lanes(copy.pull);
  } else if (error.code == ErrorCode::kRankDead) {
    fail_peer(copy.epoch, error, true);
  } else {
    end_pull(copy.pull, fail(std::move(error)));
  }
}

void UcxEngine::restart_by_lanes(std::uint64_t number) {
  const auto place = pulls_.find(number);
  if (place == pulls_.end()) return;
  Pull pull = std::move(place->second);
  pulls_.erase(place);
  Peer& peer = *peers_.at(pull.epoch);
  peer.chunks_out -= pull.chunks_out;
  chunks_out_ -= pull.chunks_out;
  pull.chunks_out = 0;
  pull.bytes_out = 0;
  deadlines_.erase({pull.deadline, number});
  const std::uint64_t fresh = ++last_number_;
  deadlines_.emplace(pull.deadline, fresh);
  std::replace(peer.pulls.begin(), peer.pulls.end(), number, fresh);
  pull.lanes_only = true;
  plan(pull, peer);
  pulls_.emplace(fresh, std::move(pull));
  pump(peer);
}

void UcxEngine::chunk_done(std::uint64_t number, std::uint32_t chunk) {
  Pull& pull = pulls_.at(number);
  pull.states[chunk] = ChunkState::kDone;
  ++pull.done;
  pull.bytes_out -= pull.chunks[chunk].bytes;
  counters_.bytes_pulled.fetch_add(pull.chunks[chunk].bytes);
  Peer& peer = *peers_.at(pull.epoch);
  if (pull.done == pull.chunks.size()) end_pull(number, {});
  pump(peer);
}

void UcxEngine::end_pull(std::uint64_t number, result<void> outcome) {
  const auto place = pulls_.find(number);
  if (place == pulls_.end()) return;
  Pull pull = std::move(place->second);
  pulls_.erase(place);
  deadlines_.erase({pull.deadline, number});
  if (Peer* peer = known_peer(pull.epoch)) {
    std::erase(peer->pulls, number);
    peer->chunks_out -= pull.chunks_out;
    chunks_out_ -= pull.chunks_out;
    if (!peer->pulls.empty()) thirsty_.insert(pull.epoch);
  }
  counters_.pulls_open.fetch_sub(1);
  (outcome ? counters_.pulls : counters_.pulls_failed).fetch_add(1);
  pull.out.complete(std::move(outcome));
}

}  // namespace troupe::runtime
