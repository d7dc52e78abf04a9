#pragma once

// The state of the UCX data plane: peers, pulls as reader, answers as owner. All of it lives on the
// progress thread of a `UcxTransport`.
//
// A peer is one process by epoch; a pull is cut into chunks (pull_plan.hpp), each asked for with
// one request and answered with bytes, with places to copy from, or with an error. UCX may complete
// what we have given up, or never complete it: everything that it may still touch is owned by a
// table here (`landings_`, `answers_`, `sends_`), and callbacks look their object up by number.
// **Threads:** the progress thread only; `counters` may be read by any.
// **Invariants:** a pull ends once; an epoch that was lost stays lost; nothing that UCX holds is
// freed before its callback or the end of the worker.

#include "runtime/comm/copy_pool.hpp"
#include "runtime/comm/direct_copy.hpp"
#include "runtime/comm/pull_plan.hpp"
#include "runtime/comm/transport.hpp"
#include "runtime/comm/transport_wire.hpp"
#include "runtime/comm/worker_ucx.hpp"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// `TransportStatistics` while it is being counted.
struct TransportCounters {
  std::atomic<std::int64_t> pulls{0}, pulls_failed{0}, bytes_pulled{0}, bytes_direct{0};
  std::atomic<std::int64_t> bytes_served{0}, requests{0}, refused{0}, late{0};
  std::atomic<std::int64_t> pulls_open{0}, pins_held{0}, peers{0}, buffers_orphaned{0};
  TransportStatistics read() const;
};

/// The one active message of ours.
inline constexpr unsigned kMessageId = 7;

class UcxEngine {
 public:
  UcxEngine(TransportOptions options, TransportAddress self, UcxWorker& worker,
            TransportCounters& counters);
  ~UcxEngine();
  UcxEngine(const UcxEngine&) = delete;
  UcxEngine& operator=(const UcxEngine&) = delete;

  /// Accepts messages from now on.
  result<void> listen();
  void pull(PullRequest request, Deadline deadline, completer<void> out);
  void lose(const TransportAddress& address, const Error& cause);

  /// Does what is due without waiting; true when there was something to do.
  bool step(TimePoint now);
  /// When `step` wants to be called next although nothing came in.
  TimePoint next_due(TimePoint now) const;
  /// Ends every pull with kAborted and says goodbye to the peers.
  void close(TimePoint until);

 private:
  enum class Direct : std::uint8_t { kUnknown, kYes, kNo };

  /// What endpoint callbacks point at: outlives the endpoint, and tells old ones from new.
  struct EndpointTag {
    UcxEngine* engine = nullptr;
    std::uint64_t epoch = 0;
    std::uint16_t connection = 0;
  };

  struct Peer {
    TransportAddress address;
    ucp_ep_h endpoint = nullptr;
    std::uint16_t connection = 0;        ///< counts our endpoints to it
    std::uint16_t their_connection = 0;  ///< the newest that it has told
    std::uint64_t sequence = 0;
    ReplayWindow window;
    bool knows_us = false;  ///< it has answered on this connection
    Direct direct = Direct::kUnknown;
    bool watched = false;  ///< its process can be probed for being alive
    std::optional<Error> lost;
    std::int32_t chunks_out = 0;  ///< asked for and not answered
    std::int32_t answers_open = 0;
    std::deque<std::uint64_t> pulls;  ///< in order of arrival
  };

  enum class ChunkState : std::uint8_t { kPlanned, kAsked, kLanding, kDone };
  struct Pull {
    std::uint64_t epoch = 0;
    PullRequest request;
    completer<void> out;
    TimePoint deadline{};
    std::vector<ChunkPlan> chunks;
    std::vector<ChunkState> states;
    std::size_t next = 0;  ///< first chunk that was not asked for
    std::size_t done = 0;
    std::int32_t chunks_out = 0;
    std::int64_t bytes_out = 0;  ///< asked for and not here
    bool by_places = false;
    bool lanes_only = false;  ///< places were tried and do not serve
  };

  /// A rendezvous that UCX is writing.
  struct Landing {
    UcxEngine* engine = nullptr;
    std::uint64_t number = 0;
    std::uint64_t epoch = 0;
    std::uint16_t connection = 0;
    std::uint64_t pull = 0;
    std::uint32_t chunk = 0;
    TimePoint expires{};
    std::shared_ptr<const void> keep;
    std::vector<std::byte> staging;
    bool orphaned = false;
  };

  /// A direct copy that is over.
  struct CopyDone {
    std::uint64_t epoch = 0;
    std::uint64_t pull = 0;
    std::uint32_t chunk = 0;
    result<void> outcome;
  };

  /// What the owner keeps until its answer is out (kData) or read (kPlaces).
  struct Answer {
    UcxEngine* engine = nullptr;
    std::uint64_t number = 0;
    std::uint64_t epoch = 0;
    std::uint64_t pull = 0;
    std::uint32_t chunk = 0;
    TimePoint expires{};
    std::vector<std::shared_ptr<const void>> keeps;
    std::vector<std::byte> packed;
    MessageBytes head{};
    bool places = false;
    bool orphaned = false;
  };

  /// A control message whose bytes UCX may still read.
  struct Send {
    UcxEngine* engine = nullptr;
    std::uint64_t number = 0;
    MessageBytes head{};
    std::vector<std::byte> payload;
  };

  struct Broken {
    std::uint64_t epoch = 0;
    std::uint16_t connection = 0;
    ucs_status_t status = UCS_OK;
  };

  struct Arrival {
    MessageHeader header;
    std::vector<std::byte> payload;
    bool admitted = false;  ///< by the replay window; not yet when the sender was unknown
  };

  struct Pieces {
    std::vector<std::span<const std::byte>> spans;
    std::vector<std::shared_ptr<const void>> keeps;
    std::int64_t bytes = 0;
  };

  struct Waiting {
    std::uint64_t epoch = 0;
    MessageHeader header;
    Pieces pieces;
  };

  // engine_ucx.cpp: peers, messages, time.
  static ucs_status_t on_message(void* self, const void* head, std::size_t head_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_endpoint_error(void* tag, ucp_ep_h endpoint, ucs_status_t status);
  ucs_status_t receive(std::span<const std::byte> head, void* data, std::size_t bytes,
                       bool rendezvous);
  void refuse(const Error& why);
  bool admit(Peer& peer, const MessageHeader& header);
  void dispatch(Arrival arrival);
  result<Peer*> peer_of(const TransportAddress& address);
  Peer* known_peer(std::uint64_t epoch);
  result<void> connect(Peer& peer);
  void disconnect(Peer& peer);
  /// Ends everything with this peer; `fence`: for ever.
  void fail_peer(std::uint64_t epoch, const Error& cause, bool fence);
  void send(Peer& peer, MessageHeader header, std::vector<std::byte> payload);
  static void on_sent(void* request, ucs_status_t status, void* send);
  MessageHeader stamp(Peer& peer, MessageHeader header);
  void expire(TimePoint now);
  void check_processes();
  void look_at_process(Peer& peer);
  void finish_closes();

  // reader_ucx.cpp: pulls.
  void start(std::uint64_t number);
  void plan(Pull& pull, const Peer& peer);
  /// Asks for more chunks as far as the windows allow.
  void pump(Peer& peer);
  /// One request for as many chunks as there is room for; false when there is none.
  bool ask(Peer& peer, std::uint64_t number, Pull& pull);
  bool accept_data(const MessageHeader& header, void* data, std::size_t bytes, bool rendezvous,
                   ucs_status_t& verdict);
  void land(const MessageHeader& header, Pull& pull, void* descriptor, ucs_status_t& verdict);
  static void on_landed(void* request, ucs_status_t status, std::size_t bytes, void* landing);
  void landed(std::uint64_t number, ucs_status_t status);
  void accept_places(Peer& peer, const MessageHeader& header, std::span<const std::byte> payload);
  void accept_error(Peer& peer, const MessageHeader& header, std::span<const std::byte> payload);
  /// The pull and its chunk that this answer is for, or null when it comes too late.
  Pull* asked(const MessageHeader& header);
  void answered(Peer& peer, Pull& pull);
  void chunk_done(std::uint64_t number, std::uint32_t chunk);
  /// Takes what the copying threads have finished.
  bool take_copies();
  void copied(CopyDone copy);
  /// Asks again for everything, by lanes, under a new number.
  void restart_by_lanes(std::uint64_t number);
  void end_pull(std::uint64_t number, result<void> outcome);

  // owner_ucx.cpp: answers.
  void accept_request(Arrival arrival);
  void answer_chunk(Peer& peer, const MessageHeader& header, std::span<const RequestPart> parts);
  result<Pieces> gather(std::span<const RequestPart> parts) const;
  void answer(Peer& peer, const MessageHeader& request, Pieces pieces);
  void answer_data(Peer& peer, const MessageHeader& request, Pieces pieces);
  void answer_places(Peer& peer, const MessageHeader& request, Pieces pieces);
  void answer_error(Peer& peer, const MessageHeader& request, const Error& error);
  static void on_answered(void* request, ucs_status_t status, void* answer);
  void drop_answer(std::uint64_t number);
  void unpin(const MessageHeader& header);
  void serve_waiting();

  TransportOptions options_;
  TransportAddress self_;
  std::vector<std::byte> self_bytes_;
  UcxWorker& worker_;
  TransportCounters& counters_;

  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;  ///< by epoch
  std::vector<std::unique_ptr<EndpointTag>> tags_;
  std::vector<Broken> broken_;  ///< told by callbacks, acted upon outside of them
  std::vector<void*> closes_;   ///< UCX requests
  std::deque<Arrival> arrivals_;
  std::uint64_t last_number_ = 0;
  std::unordered_map<std::uint64_t, Pull> pulls_;
  std::set<std::uint64_t> thirsty_;  ///< epochs whose window has room for waiting pulls
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Landing>> landings_;
  std::mutex copies_mutex_;  ///< guards the following
  std::vector<CopyDone> copies_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Answer>> answers_;
  std::map<std::pair<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>>, std::uint64_t>
      pins_;  ///< (epoch, (pull, chunk)) → answer
  std::deque<Waiting> waiting_;
  std::int64_t packed_bytes_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Send>> sends_;
  std::int32_t chunks_out_ = 0;
  TimePoint next_sweep_{};
  std::unique_ptr<CopyPool> pool_;  ///< made when first needed; its threads end first
};

/// Bounds of the window between a reader and one owner.
inline constexpr std::int32_t kChunksOutMax = 128;    ///< asked for by one reader
inline constexpr std::int32_t kAnswersOpenMax = 256;  ///< of one owner for one reader

}  // namespace troupe::runtime
