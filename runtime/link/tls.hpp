#pragma once

// TLS under a link: `TlsContext` holds the files of a hub, `TlsStream` is one connection's session.
//
// OpenSSL runs over memory: bytes go in and come out, the socket stays with the broker. CAF's own
// OpenSSL module is not used: 0.17.6 has one set of files for a whole process, reads them again for
// every connection, compares no names and says nothing of why a certificate was refused.
// **Threads:** a context is read-only once open; a stream has one owner.
// **Invariants:** TLS 1.3 only; both ends show a certificate of the same private authority that is
// valid now; a dialler also wants the host that it dialled in it. No session is ever resumed.

#include "runtime/base/result.hpp"
#include "runtime/link/handshake.hpp"
#include "runtime/link/link_options.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

namespace troupe::runtime {

class TlsStream {
 public:
  /// Takes bytes of the socket and appends what they say to `plain`. kConflict when the peer's
  /// certificate, or ours in its eyes, does not do.
  result<void> received(std::span<const std::byte> bytes, std::vector<std::byte>& plain);
  /// Starts the session; nothing to do for an acceptor.
  result<void> start() { return shake(); }
  bool established() const { return established_; }
  /// Seals `plain` and appends it; established streams only.
  result<void> send(std::span<const char> plain, std::vector<char>& target);
  /// Appends what the session itself has to say: its handshake, alerts.
  void drain(std::vector<char>& target);
  /// The end of what this side sends.
  void finish();
  /// Keying material of this session that both ends share and nobody else has.
  std::vector<std::byte> binding() const;

 private:
  friend class TlsContext;
  struct Free {
    void operator()(ssl_st* session) const noexcept;
  };
  explicit TlsStream(ssl_st* session) : session_(session) {}
  result<void> shake();
  result<void> failed(int outcome, const char* doing) const;

  std::unique_ptr<ssl_st, Free> session_;
  bool established_ = false;
};

class TlsContext {
 public:
  /// kConfig names the file that does not load or does not fit the others.
  static result<std::unique_ptr<TlsContext>> open(const TlsFiles& files);
  /// `host`: whom a dialler dialled, a DNS name or an address.
  TlsStream stream(LinkSide side, const std::string& host) const;

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const noexcept;
  };
  TlsContext() = default;
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

}  // namespace troupe::runtime
