// Writes seeds for the fuzzers of the binary formats: `fuzz_seeds FOLDER` fills FOLDER/batch,
// FOLDER/envelope, FOLDER/frame_reader and FOLDER/checkpoint_index. Made, not stored, so that they
// follow the schemas.

#include "actors/pacing/trajectory_codec.hpp"
#include "placement/ledger.hpp"
#include "placement/ledger_frame.hpp"
#include "placement/protocol_codec.hpp"
#include "runtime/base/check.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/durable_file.hpp"
#include "runtime/batch/envelope_codec.hpp"
#include "runtime/checkpoint/index_codec.hpp"
#include "runtime/comm/transport_wire.hpp"
#include "runtime/exchange/exchange_codec.hpp"
#include "runtime/link/handshake.hpp"

#include <filesystem>
#include <limits>

namespace {

using namespace troupe;
using namespace troupe::runtime;

void put(const std::filesystem::path& folder, std::string_view name,
         const result<std::vector<std::byte>>& bytes) {
  TROUPE_CHECK(bytes.has_value(), "{}: {}", name, bytes.error().message);
  std::filesystem::create_directories(folder);
  const result<void> written = write_file(folder / name, *bytes);
  TROUPE_CHECK(written.has_value(), "{}", written.error().message);
}

Batch batch_with(std::string_view name, Column column) {
  Batch batch;
  TROUPE_CHECK(batch.set(std::string(name), std::move(column)).has_value(), "{}", name);
  return batch;
}

void write_batches(const std::filesystem::path& folder) {
  put(folder, "nothing", Batch().to_bytes());
  put(folder, "rows_only", Batch(9).to_bytes());
  put(folder, "dense", batch_with("x", Column::dense<float>({1, 2, 3, 4}, {2})).to_bytes());
  put(folder, "dense_zero", batch_with("x", Column::dense_rows<double>(3, {}, {0, 2})).to_bytes());
  put(folder, "jagged",
      batch_with("j", Column::jagged<std::int32_t>({1, 2, 3}, {0, 2, 1})).to_bytes());
  put(folder, "text", batch_with("t", Column::strings({"", "abc"})).to_bytes());
  put(folder, "json", batch_with("o", Column::json({"{\"a\": [1, null]}", "0"})).to_bytes());
  Batch all = batch_with("x", Column::dense<std::int64_t>({1, 2, 3})).pad_to_multiple(2);
  TROUPE_CHECK(all.set_metadata("step", "[1]").has_value(), "metadata");
  all.metrics().add("loss", 0.5, Reduction::kMean, 3);
  all.metrics().add("length", 17, Reduction::kHistogram);
  all.metrics().add("length", -1e300, Reduction::kHistogram);
  put(folder, "all", all.to_bytes());
}

void write_envelopes(const std::filesystem::path& folder) {
  Envelope envelope;
  envelope.group = "policy";
  envelope.method = "log_probs";
  envelope.payload = payload_in_frame({std::byte{1}, std::byte{2}});
  put(folder, "call", encode_envelope(envelope));
  envelope.kind = MessageKind::kResult;
  envelope.payload = {.place = HeldPayload{"policy", RankId{1}, 7}, .bytes = 64, .checksum = 3};
  put(folder, "result", encode_envelope(envelope));
  envelope.kind = MessageKind::kHeartbeat;
  envelope.payload = {};
  put(folder, "heartbeat", encode_envelope(envelope));
  envelope.kind = MessageKind::kError;
  envelope.error =
      Error{.code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}};
  envelope.error = std::move(*envelope.error).wrap(ErrorCode::kAborted, "rank 3 failed");
  put(folder, "error", encode_envelope(envelope));
  envelope.kind = MessageKind::kAbort;
  put(folder, "abort", encode_envelope(envelope));
}

/// A whole session without token as a stream, and as scripts for either side; see the fuzzer.
void write_links(const std::filesystem::path& folder) {
  const auto options = [](PeerRole role, const char* name) {
    HandshakeOptions made;
    made.self = {role, name};
    return made;
  };
  Handshake dialler(LinkSide::kDialler, options(PeerRole::kNode, "gpu-1"));
  Handshake acceptor(LinkSide::kAcceptor, options(PeerRole::kHead, "main"));
  const HandshakeMessage hello = dialler.hello();
  const auto challenge = acceptor.step(hello.kind, hello.payload);
  const auto proof = dialler.step(challenge->send->kind, challenge->send->payload);
  Envelope call;
  call.method = "echo";
  const HandshakeMessage envelope{FrameKind::kEnvelope, encode_envelope(call).value()};
  const Error no{.code = ErrorCode::kConflict, .message = "no", .origin = {}, .causes = {}};
  const auto stream = [&](std::vector<HandshakeMessage> messages) {
    FrameWriter writer;
    std::vector<char> bytes{0};
    for (const auto& one : messages) writer.append(one.kind, one.payload, bytes);
    const auto raw = std::as_bytes(std::span(bytes));
    return std::vector<std::byte>(raw.begin(), raw.end());
  };
  const auto script = [&](int side, std::vector<HandshakeMessage> messages) {
    std::vector<std::byte> bytes{static_cast<std::byte>(side)};
    for (const auto& one : messages) {
      bytes.push_back(static_cast<std::byte>(one.kind));
      bytes.push_back(static_cast<std::byte>(one.payload.size() & 255U));
      bytes.push_back(static_cast<std::byte>(one.payload.size() >> 8U));
      bytes.insert(bytes.end(), one.payload.begin(), one.payload.end());
    }
    return bytes;
  };
  put(folder, "stream", stream({hello, *proof->send, envelope, envelope}));
  put(folder, "acceptor", script(1, {hello, *proof->send, envelope, envelope}));
  put(folder, "dialler", script(2, {*challenge->send, acceptor.welcome(), envelope}));
  put(folder, "refused", script(2, {Handshake::refusal(no)}));
}

void write_indexes(const std::filesystem::path& folder) {
  CheckpointIndex index;
  put(folder, "nothing", encode_index(index));
  index.step = 3;
  index.files = {{"data_00000.bin", 256}};
  index.tensors["w"] = {DType::kF32, {2, 3}, {.file = 0, .offset = 0, .bytes = 24, .checksum = 1}};
  index.tensors["s"] = {DType::kI64, {}, {.file = 0, .offset = 64, .bytes = 8, .checksum = 2}};
  index.blobs["rng"] = {.file = 0, .offset = 128, .bytes = 16, .checksum = 3};
  index.states["cursor"] = "{\"row\": 5}";
  put(folder, "all", encode_index(index));
}

void write_exchanges(const std::filesystem::path& folder) {
  ExchangeBatch batch;
  batch.inlined = batch_with("x", Column::dense<float>({1, 2, 3}));
  put(folder, "inlined", encode_exchange(batch));
  batch.owners = {{{"policy", RankId{1}}, 7}};
  const auto offsets =
      std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 2, 2, 9});
  const auto runs = std::make_shared<const std::vector<ExchangeRun>>(
      std::vector<ExchangeRun>{{0, 1, 2}, {0, 0, 1}});
  ExchangePiece piece{.owner = 0,
                      .column = ColumnId{3},
                      .first_row = 5,
                      .rows = 3,
                      .offsets = offsets,
                      .granted = true};
  batch.columns.push_back({"j", {ColumnKind::kJagged, DType::kI32, {}}, {piece}, runs});
  piece.offsets = nullptr;
  batch.columns.push_back({"d", {ColumnKind::kDense, DType::kF32, {2}}, {piece}, runs});
  put(folder, "referred", encode_exchange(batch));
  put(folder, "held", encode_exchange(ExchangeHeld{batch.owners[0], ColumnId{4}, 100, 1, false}));
  put(folder, "notice", encode_lease_notice({.epoch = 7, .releases = {{ColumnId{1}, 2}}}));
}

void write_messages(const std::filesystem::path& folder) {
  TransportAddress address;
  address.name = "policy rank 1";
  address.epoch = 9;
  put(folder, "address", encode_address(address));
  const Request request{.reader = {}, .parts = {{.column = 1, .rows = 2, .bytes = 8, .take = 8}}};
  put(folder, "request", encode_request(request));
  const MemoryPlace places[] = {{4096, 4000}, {64, 96}};
  put(folder, "places", encode_places(places));
  put(folder, "failure",
      encode_failure(
          Error{.code = ErrorCode::kNotFound, .message = "column 1", .origin = {}, .causes = {}}));
}

/// The first byte tells fuzz_placement which decoder.
void put_placement(const std::filesystem::path& folder, std::string_view name, int decoder,
                   std::vector<std::byte> bytes) {
  bytes.insert(bytes.begin(), static_cast<std::byte>(decoder));
  put(folder, name, bytes);
}

void write_placements(const std::filesystem::path& folder) {
  using namespace troupe::placement;
  Slot slot{.slot = 1};
  slot.placement.devices = {{0, Amount::whole(1)}, {1, Amount{2500}}};
  slot.placement.cores = {{0, Amount::whole(1)}, {1, Amount::whole(1)}};
  slot.placement.node_name = "gpu-1";
  slot.placement.named["license"] = Amount{1};
  NodePass pass{.term = 1, .session = 1, .number = 1, .hello = 1, .lease = Duration{1000}};
  for (int kind = 0; kind < 5; ++kind) {
    NodeOp op{.kind = static_cast<NodeOpKind>(kind), .group = {7}, .epoch = {9}, .name = "pool"};
    op.slots = {slot};
    op.bundles = {{1, 0}};
    pass.ops.push_back(std::move(op));
  }
  put_placement(folder, "pass_applied", 0, encode_pass(pass));
  put_placement(folder, "pass", 1, encode_pass(pass));
  NodeReply reply{.term = 1, .session = 1, .number = 1};
  reply.refusals = {std::nullopt, Error{ErrorCode::kConflict, "held", {}, {}}};
  reply.has_truth = true;
  reply.truth = {{{7}, 1, 0, {9}, true}};
  put_placement(folder, "reply", 2, encode_reply(reply));
  NodeHello hello;
  hello.spec.name = "gpu-1";
  hello.spec.devices.resize(2);
  hello.spec.labels["zone"] = "a";
  put_placement(folder, "hello", 3, encode_hello(hello));
  CreateGroup create{.number = 1};
  create.request.name = "pool";
  create.request.bundles.resize(3);
  create.request.bundles[1].selectors = {{"zone", SelectorOp::kIn, {"a", "b"}}};
  put_placement(folder, "create", 4, encode_creates(std::span(&create, 1)));
  GroupChange change{.group = {7}, .bundles = {0}, .placements = {slot.placement}};
  put_placement(folder, "changes", 6, encode_changes(std::span(&change, 1)));
  LedgerGroup group{.id = {7}, .owner = {"job", 1}};
  group.request = create.request;
  group.slots[0] = CommittedSlot{.epoch = {9}, .slot = slot};
  const std::vector<LedgerRecord> records{LedgerCounters{.term = 1}, GroupPut{group},
                                          GroupErased{{7}}};
  const auto payload = encode_records(records);
  TROUPE_CHECK(payload, "records");
  put_placement(folder, "records", 10, *payload);
  std::vector<std::byte> file = encode_ledger_header(0);
  const auto frame = encode_ledger_frame(0, *payload);
  TROUPE_CHECK(frame, "frame");
  file.insert(file.end(), frame->begin(), frame->end());
  put_placement(folder, "ledger", 11, std::move(file));
}

void write_trajectories(const std::filesystem::path& folder) {
  using namespace troupe::actors;
  put(folder, "nothing", encode_trajectories({}));
  std::vector<Trajectory> all{
      Trajectory::begin(1, 2, 3, WeightVersion{0}, {4, 5}, {.stop_ids = {9}})};
  put(folder, "begun", encode_trajectories(all));
  Trajectory whole = all[0];
  GeneratedSequence answer;
  answer.prompt_id = 2;
  answer.sample_index = 3;
  answer.tokens = {6, 7, 8};
  answer.log_probs = answer.full_log_probs = {-0.5F, -0.25F, 0.0F};
  answer.versions = {WeightVersion{0}, WeightVersion{1}, WeightVersion{1}};
  answer.reason = StopReason::kAborted;
  TROUPE_CHECK(whole.absorb(answer).has_value(), "absorb");
  const std::vector<std::int32_t> tool{20, 21};
  TROUPE_CHECK(whole.append_environment(tool, {std::byte{1}}).has_value(), "turn");
  whole.sampling.stop_strings = {"stop"};
  answer.reason = StopReason::kStopString;
  answer.text = "a";
  TROUPE_CHECK(whole.absorb(answer).has_value(), "absorb");
  whole.score = 0.5;
  all.push_back(whole);
  put(folder, "finished", encode_trajectories(all));
}

}  // namespace

int main(int argc, char** argv) {
  TROUPE_CHECK(argc == 2, "fuzz_seeds: {} arguments, wanted the folder", argc - 1);
  const std::filesystem::path folder = argv[1];
  write_batches(folder / "batch");
  write_envelopes(folder / "envelope");
  write_links(folder / "frame_reader");
  write_indexes(folder / "checkpoint_index");
  write_exchanges(folder / "exchange");
  write_messages(folder / "transport");
  write_placements(folder / "placement");
  write_trajectories(folder / "trajectory");
  return 0;
}
