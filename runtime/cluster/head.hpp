#pragma once

// `HeadServer`: the process that everybody finds: directory of nodes, jobs and ranks, and the place
// where services of the layers above (placement) are plugged in.
//
// Ownership: owned by `main`; destroyed before the LinkHub and the ActorSystem.
// **Threads:** any; requests arrive on the link's I/O thread. Listeners are called one at a time,
// in order, without the head's lock, and must not block.
// **Invariants:** those of DirectoryCore; the directory is rebuilt from re-registrations after a
// restart; nothing in it is needed for running jobs to go on.

#include "runtime/cluster/directory.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/link/service_table.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// Told what the directory decides. Default: not interested.
class DirectoryListener {
 public:
  virtual ~DirectoryListener() = default;
  /// `node` has its inventory. `returned`: the same instance as before, its reservations live.
  virtual void on_node_up(const NodeRegister& /*node*/, const Ref<Channel>& /*channel*/,
                          bool /*returned*/) {}
  virtual void on_node_down(const std::string& /*name*/, std::uint64_t /*epoch*/,
                            const Error& /*cause*/) {}
  virtual void on_node_draining(const std::string& /*name*/) {}
  virtual void on_job_up(const JobAnnouncement& /*job*/, const Ref<Channel>& /*channel*/,
                         bool /*returned*/) {}
  /// Its controller is gone: what the job reserved is to be released.
  virtual void on_job_down(const std::string& /*job*/, const Error& /*cause*/) {}
};

struct HeadOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;          ///< 0 picks one
  std::string cluster = "troupe";  ///< name, for messages
  std::uint64_t epoch = 0;         ///< instance of this head; 0 takes the wall clock
  DirectoryOptions directory;
};

class HeadServer {
 public:
  /// Makes the head; it listens to nobody before `start`. `system` outlives it.
  HeadServer(ActorSystem& system, HeadOptions options);
  ~HeadServer();
  HeadServer(const HeadServer&) = delete;
  HeadServer& operator=(const HeadServer&) = delete;

  /// Before `start`: a service under a prefix, e.g. `placement.`, for every peer. kAlreadyExists.
  result<void> add_service(std::string prefix, std::shared_ptr<ChannelService> service);
  /// Before `start`: who is told of nodes and jobs; must outlive the head.
  void add_listener(DirectoryListener& listener);

  /// `hub` outlives the head.
  result<ListenAddress> start(LinkHub& hub);
  /// What serves any channel of the head.
  std::shared_ptr<ChannelService> service() const { return table_; }
  /// Ends `wait_stop`. So does `head.stop` with `all`, once nodes and jobs have left, or in 10 s.
  void request_stop(const std::string& reason);
  /// Blocks until somebody asks the head to stop, or `poll` says so (looked at every 100 ms).
  std::string wait_stop(const std::function<bool()>& poll);

  HeadStatus status() const;
  /// Channel of a node that is up; null otherwise.
  Ref<Channel> node_channel(const std::string& name) const;

 private:
  struct State;
  class Service;
  std::shared_ptr<State> state_;
  std::shared_ptr<ServiceTable> table_;
};

}  // namespace troupe::runtime
