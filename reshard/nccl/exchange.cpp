#include "reshard/nccl/exchange.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace troupe::reshard::nccl {
namespace {

constexpr Duration kWirePollFirst = std::chrono::microseconds(10);
constexpr Duration kWirePollMost = std::chrono::milliseconds(1);
/// How often a wait on the wire looks whether it was stopped.
constexpr Duration kLook = std::chrono::milliseconds(10);

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t bytes_of(const std::vector<Message>& messages) {
  std::int64_t bytes = 0;
  for (const Message& one : messages) bytes += one.bytes;
  return bytes;
}

std::int64_t seals_of(const std::vector<Message>& messages) {
  std::int64_t bytes = 0;
  for (const Message& one : messages) bytes += seal_bytes(one);
  return bytes;
}

}  // namespace

result<std::unique_ptr<Exchange>> Exchange::create(std::shared_ptr<const PublicationPlan> plan,
                                                   std::int32_t rank, const Membership& membership,
                                                   const CudaDevice& device,
                                                   Communicator& communicator) {
  TROUPE_TRY_VOID(check_membership(membership));
  std::unique_ptr<Exchange> one(
      new Exchange(std::move(plan), rank, membership, device, communicator));
  TROUPE_TRY(one->rounds_, cut_rounds(*one->plan_, rank, membership.bucket_bytes));
  for (const Round& round : one->rounds_) {
    for (const Message& message : round.sends) one->peers_[message.target] = 0;
    for (const Message& message : round.receives) one->peers_[message.source] = 0;
  }
  for (auto& [peer, nccl] : one->peers_) {
    TROUPE_TRY(nccl, nccl_rank(membership, peer));
  }
  one->find_layers();
  TROUPE_TRY_VOID(one->allocate());
  return one;
}

/// When each layer of this target is whole: a running maximum, since layers are told in order.
void Exchange::find_layers() {
  std::map<std::int32_t, std::int64_t> last;
  for (const std::int32_t index : plan_->receive_order(rank_).ops)
    last.emplace(plan_->tensor_of(plan_->op(index)).layer, -1);
  for (std::size_t i = 0; i < rounds_.size(); ++i)
    for (const Message& message : rounds_[i].receives)
      for (const Cut& cut : message.cuts)
        last[plan_->tensor_of(plan_->op(cut.op)).layer] = static_cast<std::int64_t>(i);
  std::int64_t latest = -1;
  for (const auto& [layer, position] : last) {
    latest = std::max(latest, position);
    layers_.emplace_back(layer, latest);
  }
}

result<void> Exchange::allocate() {
  std::int64_t send = 0, receive = 0, send_seals = 0, receive_seals = 0;
  for (const Round& round : rounds_) {
    send = std::max(send, bytes_of(round.sends));
    receive = std::max(receive, bytes_of(round.receives));
    send_seals = std::max(send_seals, seals_of(round.sends));
    receive_seals = std::max(receive_seals, seals_of(round.receives));
  }
  const auto fill = [this](Bucket& bucket, std::int64_t data, std::int64_t seals) -> result<void> {
    if (data == 0) return {};
    TROUPE_TRY(bucket.data, device_.allocate(data));
    TROUPE_TRY(bucket.seals, device_.allocate(seals));
    TROUPE_TRY(bucket.host_seals, device_.allocate_pinned(seals));
    return {};
  };
  const std::size_t slots = std::min<std::size_t>(rounds_.size(), slots_.size());
  for (Slot& slot : std::span(slots_).first(slots)) {
    TROUPE_TRY_VOID(fill(slot.send, send, send_seals));
    TROUPE_TRY_VOID(fill(slot.receive, receive, receive_seals));
  }
  TROUPE_TRY(stream_, device_.stream());
  TROUPE_TRY(event_, device_.event());
  return {};
}

/// Pinned copies of the buckets, from the first publication on that wants sums.
result<void> Exchange::mirror(bool wanted) {
  if (!wanted) return {};
  for (Slot& slot : slots_) {
    for (Bucket* bucket : {&slot.send, &slot.receive}) {
      if (bucket->data == nullptr || bucket->host_data != nullptr) continue;
      const auto bytes = static_cast<std::int64_t>(bucket->data->bytes().size());
      TROUPE_TRY(bucket->host_data, device_.allocate_pinned(bytes));
    }
  }
  return {};
}

std::int64_t Exchange::staging_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const Bucket* bucket : {&slot.send, &slot.receive})
      for (const CudaBuffer* one : {bucket->data.get(), bucket->seals.get()})
        bytes += one == nullptr ? 0 : one->bytes().size();
  return static_cast<std::int64_t>(bytes);
}

result<ReceiveStatistics> Exchange::run(const ExchangeJob& job) {
  job_ = &job;
  statistics_ = {};
  counts_.clear();
  wrong_.reset();
  next_layer_ = 0;
  result<ReceiveStatistics> outcome = walk();
  if (!outcome) {
    communicator_.abort(outcome.error());
    // Copies of ours may still be under way: the caller's buffers are not free before.
    const result<void> quiet = settle();
    if (!quiet)
      outcome = fail(std::move(outcome).error().wrap(ErrorCode::kInternal, quiet.error().message));
  }
  job_ = nullptr;
  if (outcome && wrong_) return fail(*wrong_);
  return outcome;
}

result<ReceiveStatistics> Exchange::walk() {
  TROUPE_TRY_VOID(mirror(checked()));
  TROUPE_TRY_VOID(copy_local());
  if (!rounds_.empty()) TROUPE_TRY_VOID(pack(0));
  std::size_t unpacked = 0;
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    runtime::pending<void> wire = send(i);
    const bool more = i + 1 < rounds_.size();
    const bool ahead = more && rounds_[i + 1].hands_on < rounds_[i].index;
    // Nothing may leave this walk while the wire reads and writes our memory.
    result<void> beside;
    if (unpacked < i) beside = unpack(unpacked++);
    if (beside && ahead) beside = pack(i + 1);
    if (!beside) communicator_.abort(beside.error());
    result<void> over = finish(wire);
    if (!beside) return fail(std::move(beside).error());
    if (!over) return fail(std::move(over).error());
    if (more && !ahead) {
      TROUPE_TRY_VOID(unpack(unpacked++));
      TROUPE_TRY_VOID(pack(i + 1));
    }
  }
  if (!rounds_.empty()) TROUPE_TRY_VOID(unpack(unpacked));
  TROUPE_TRY_VOID(settle());
  announce(static_cast<std::int64_t>(rounds_.size()));
  if (!wrong_) TROUPE_TRY_VOID(check_tensors());
  statistics_.buckets = static_cast<std::int64_t>(rounds_.size());
  statistics_.staging_bytes = staging_bytes();
  return statistics_;
}

Strided Exchange::place_of(const Cut& cut, bool sends) const {
  const Op& op = plan_->op(cut.op);
  const std::int64_t element = element_bytes(plan_->tensor_of(op).dtype);
  const bool from_source = sends && !op.hands_on();
  const RankLayout& layout =
      from_source ? *plan_->source_layout(rank_) : *plan_->target_layout(rank_);
  const Region region = sends ? source_region(op, layout) : target_region(op, layout);
  const std::int64_t at = region.offset + (cut.box.row_begin - op.row_begin) * region.row_stride +
                          cut.box.col_begin - op.col_begin;
  // Only copied from when it is a source's: the device has no other word for a place.
  std::byte* base = from_source ? const_cast<std::byte*>(job_->sources[size(region.buffer)].data())
                                : job_->targets[size(region.buffer)].data();
  return {base + at * element, region.row_stride * element};
}

bool Exchange::in_one_piece(const Message& message, bool sends) const {
  if (message.cuts.size() != 1) return false;
  const Cut& cut = message.cuts.front();
  const std::int64_t row_bytes = message.bytes / cut.box.rows();
  return cut.box.rows() == 1 || place_of(cut, sends).stride == row_bytes;
}

void Exchange::lay_out(Bucket& bucket, const std::vector<Message>& messages, bool sends) {
  bucket.messages.clear();
  bucket.data_offsets.clear();
  bucket.seal_offsets.clear();
  bucket.staged.clear();
  std::int64_t data = 0, seals = 0;
  for (const Message& message : messages) {
    const bool staged = !in_one_piece(message, sends);
    bucket.staged.push_back(staged);
    bucket.messages.push_back(
        staged ? bucket.data->bytes().subspan(size(data), size(message.bytes))
               : std::span(place_of(message.cuts.front(), sends).data, size(message.bytes)));
    bucket.data_offsets.push_back(data);
    bucket.seal_offsets.push_back(seals);
    data += message.bytes;
    seals += seal_bytes(message);
  }
}

/// Between the weights and a message's dense bytes, in stream order.
result<void> Exchange::move_cuts(const Message& message, std::span<std::byte> dense,
                                 bool pack) const {
  std::byte* at = dense.data();
  for (const Cut& cut : message.cuts) {
    const std::int64_t element = element_bytes(plan_->tensor_of(plan_->op(cut.op)).dtype);
    const std::int64_t row_bytes = cut.box.cols() * element;
    const Strided weights = place_of(cut, pack);
    const Strided packed{at, row_bytes};
    TROUPE_TRY_VOID(device_.copy_rows(pack ? packed : weights, pack ? weights : packed,
                                      cut.box.rows(), row_bytes, *stream_));
    at += cut.box.rows() * row_bytes;
  }
  return {};
}

/// What source and target of one rank share never leaves the device.
result<void> Exchange::copy_local() {
  for (const std::int32_t index : plan_->receive_order(rank_).ops) {
    const Op& op = plan_->op(index);
    if (op.source_rank != rank_) continue;
    const std::int64_t element = element_bytes(plan_->tensor_of(op).dtype);
    const Cut cut{index, op.box()};
    TROUPE_TRY_VOID(device_.copy_rows(place_of(cut, false), place_of(cut, true), cut.box.rows(),
                                      cut.box.cols() * element, *stream_));
    statistics_.local_bytes += op.elements() * element;
    counts_[op.tensor].elements += op.elements();
  }
  return {};
}

SealHead Exchange::head_of(const Round& round) const {
  return {.membership = membership_.epoch,
          .epoch = job_->id.epoch,
          .digest = job_->id.digest,
          .round = round.index};
}

result<void> Exchange::pack(std::size_t index) {
  const Round& round = rounds_[index];
  Bucket& bucket = slots_[index % 2].send;
  if (round.sends.empty()) return {};
  lay_out(bucket, round.sends, true);
  for (std::size_t i = 0; i < round.sends.size(); ++i) {
    const std::span<std::byte> dense = bucket.messages[i];
    if (bucket.staged[i]) TROUPE_TRY_VOID(move_cuts(round.sends[i], dense, true));
    if (!checked()) continue;
    std::byte* host = bucket.host_data->bytes().data() + bucket.data_offsets[i];
    TROUPE_TRY_VOID(device_.copy(host, dense.data(), round.sends[i].bytes, *stream_));
  }
  if (checked()) TROUPE_TRY_VOID(settle());
  for (std::size_t i = 0; i < round.sends.size(); ++i) {
    const Message& message = round.sends[i];
    std::span<const std::byte> host;
    if (checked())
      host = bucket.host_data->bytes().subspan(size(bucket.data_offsets[i]), size(message.bytes));
    write_seal(make_seal(*plan_, head_of(round), message, job_->checks, host),
               bucket.host_seals->bytes().subspan(size(bucket.seal_offsets[i]),
                                                  size(seal_bytes(message))));
  }
  TROUPE_TRY_VOID(device_.copy(bucket.seals->bytes().data(), bucket.host_seals->bytes().data(),
                               seals_of(round.sends), *stream_));
  return settle();
}

runtime::pending<void> Exchange::send(std::size_t index) {
  const Round& round = rounds_[index];
  Slot& slot = slots_[index % 2];
  lay_out(slot.receive, round.receives, false);
  std::vector<Transfer> transfers;
  const auto list = [&](Bucket& bucket, const std::vector<Message>& messages, bool sends) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::int32_t peer = peers_.at(sends ? messages[i].target : messages[i].source);
      transfers.push_back({sends, peer, bucket.messages[i]});
      transfers.push_back({sends, peer,
                           bucket.seals->bytes().subspan(size(bucket.seal_offsets[i]),
                                                         size(seal_bytes(messages[i])))});
    }
  };
  list(slot.send, round.sends, true);
  list(slot.receive, round.receives, false);
  const Deadline until = std::min(job_->deadline, Deadline::in(job_->round_within));
  return communicator_.submit(std::move(transfers), round_text(round), until);
}

std::string Exchange::round_text(const Round& round) const {
  std::string text =
      fmt::format("publication of version {}, round {}", job_->id.version.value, round.index);
  const auto list = [&text](const char* what, const std::vector<Message>& messages, bool sends) {
    for (std::size_t i = 0; i < messages.size(); ++i)
      text += fmt::format("{}{}", i == 0 ? what : ", ",
                          sends ? messages[i].target : messages[i].source);
  };
  list(", sends to rank ", round.sends, true);
  list(", receives from rank ", round.receives, false);
  return text;
}

/// Waits for the wire; whatever happens, nothing of it is under way any more afterwards.
result<void> Exchange::finish(runtime::pending<void>& wire) {
  bool told = false;
  while (!wire.ready()) {
    if (auto go_on = stopped(); !go_on && !told) {
      communicator_.abort(std::move(go_on).error());
      told = true;
    }
    runtime::block_on(*wire.shared(), Deadline::in(kLook));
  }
  return wire.wait();
}

result<void> Exchange::stopped() const {
  if (job_->stop != nullptr && job_->stop->load())
    return fail(ErrorCode::kAborted, "rank {}: the publication was aborted", rank_);
  return {};
}

/// Waits for the copies of this exchange's own stream; the abort of a publication does not end
/// them, and needs not.
result<void> Exchange::settle() {
  TROUPE_TRY_VOID(device_.record(*event_, *stream_));
  const Deadline until = std::max(job_->deadline, Deadline::in(std::chrono::seconds(1)));
  for (Duration pause = kWirePollFirst;; pause = std::min(pause * 2, kWirePollMost)) {
    TROUPE_TRY(const bool done, device_.done(*event_));
    if (done) return {};
    if (until.passed())
      return fail(ErrorCode::kDeadline, "rank {}: copies on gpu {} are not over in time", rank_,
                  device_.bus_id());
    std::this_thread::sleep_for(pause);
  }
}

result<void> Exchange::unpack(std::size_t index) {
  const Round& round = rounds_[index];
  Bucket& bucket = slots_[index % 2].receive;
  if (round.receives.empty()) {
    announce(static_cast<std::int64_t>(index));
    return stopped();
  }
  TROUPE_TRY_VOID(device_.copy(bucket.host_seals->bytes().data(), bucket.seals->bytes().data(),
                               seals_of(round.receives), *stream_));
  for (std::size_t i = 0; i < round.receives.size(); ++i) {
    const std::span<std::byte> dense = bucket.messages[i];
    if (bucket.staged[i]) TROUPE_TRY_VOID(move_cuts(round.receives[i], dense, false));
    if (!checked()) continue;
    std::byte* host = bucket.host_data->bytes().data() + bucket.data_offsets[i];
    TROUPE_TRY_VOID(device_.copy(host, dense.data(), round.receives[i].bytes, *stream_));
  }
  TROUPE_TRY_VOID(settle());
  for (std::size_t i = 0; i < round.receives.size(); ++i) {
    const Message& message = round.receives[i];
    std::span<const std::byte> host;
    if (checked())
      host = bucket.host_data->bytes().subspan(size(bucket.data_offsets[i]), size(message.bytes));
    const Seal found = make_seal(*plan_, head_of(round), message, job_->checks, host);
    const Seal came = read_seal(bucket.host_seals->bytes().subspan(size(bucket.seal_offsets[i]),
                                                                   size(seal_bytes(message))));
    const std::string& tensor = plan_->tensor_of(plan_->op(message.cuts.front().op)).name;
    const std::string place =
        fmt::format("target rank {}: round {}: tensor {} and {} more pieces from rank {}", rank_,
                    round.index, tensor, message.cuts.size() - 1, message.source);
    auto same = compare_seals(came, found, place);
    // A wrong sum needs no abort: the walk goes on for the others' sake, and fails at its end.
    if (!same && same.error().code != ErrorCode::kCorrupt) return same;
    if (!same && !wrong_) wrong_ = std::move(same).error();
    take(message, came, found, bucket.staged[i]);
  }
  announce(static_cast<std::int64_t>(index));
  return stopped();
}

void Exchange::take(const Message& message, const Seal& came, const Seal& found, bool staged) {
  for (std::size_t i = 0; i < message.cuts.size(); ++i) {
    const Op& op = plan_->op(message.cuts[i].op);
    const std::int64_t elements = message.cuts[i].box.elements();
    const std::int64_t bytes = elements * element_bytes(plan_->tensor_of(op).dtype);
    TensorCount& count = counts_[op.tensor];
    count.elements += elements;
    count.claimed += came.sums[i];
    count.found += found.sums[i];
    if (op.crosses_network()) statistics_.network_bytes += bytes;
    if (op.hands_on()) statistics_.relayed_bytes += bytes;
  }
  statistics_.pulled_bytes += message.bytes;
  if (!staged) statistics_.in_place_bytes += message.bytes;
}

result<void> Exchange::check_tensors() const {
  std::map<std::int32_t, std::int64_t> wanted;
  for (const std::int32_t index : plan_->receive_order(rank_).ops)
    wanted[plan_->op(index).tensor] += plan_->op(index).elements();
  for (const auto& [tensor, elements] : wanted) {
    const std::string& name = plan_->plan().tensors[size(tensor)].name;
    const auto place = counts_.find(tensor);
    const TensorCount count = place == counts_.end() ? TensorCount() : place->second;
    if (count.elements != elements)
      return fail(ErrorCode::kCorrupt, "target rank {}: tensor {}: {} elements came, wanted {}",
                  rank_, name, count.elements, elements);
    if (count.claimed != count.found)
      return fail(ErrorCode::kCorrupt,
                  "target rank {}: tensor {}: checksum {:016x}, sent as {:016x}", rank_, name,
                  count.found, count.claimed);
  }
  return {};
}

void Exchange::announce(std::int64_t round_done) {
  for (; next_layer_ < layers_.size() && layers_[next_layer_].second <= round_done; ++next_layer_)
    if (job_->layer_ready) job_->layer_ready(layers_[next_layer_].first);
}

}  // namespace troupe::reshard::nccl
