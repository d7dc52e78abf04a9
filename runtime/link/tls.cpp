#include "runtime/link/tls.hpp"

#include "runtime/base/check.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

constexpr std::string_view kBindingLabel = "EXPORTER-troupe-link";
constexpr std::size_t kBindingBytes = 32;

/// The first reason in OpenSSL's queue, which is emptied.
std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

/// A private key that others can read is no secret.
result<void> check_key_mode(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0)
    return fail(ErrorCode::kConfig, "tls: {}: cannot be read", path);
  constexpr unsigned kOthers = 077;
  if ((facts.st_mode & kOthers) != 0)
    return fail(ErrorCode::kConfig, "tls: {}: mode {:o} lets others read it, wanted 600", path,
                facts.st_mode & 0777U);
  return {};
}

}  // namespace

void TlsStream::Free::operator()(ssl_st* session) const noexcept { SSL_free(session); }
void TlsContext::Free::operator()(ssl_ctx_st* context) const noexcept { SSL_CTX_free(context); }

result<std::unique_ptr<TlsContext>> TlsContext::open(const TlsFiles& files) {
  if (files.authority.empty() || files.certificate.empty() || files.key.empty())
    return fail(ErrorCode::kConfig,
                "tls: authority '{}', certificate '{}', key '{}': wanted all three",
                files.authority, files.certificate, files.key);
  TROUPE_TRY_VOID(check_key_mode(files.key));
  std::unique_ptr<TlsContext> made(new TlsContext);
  made->context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = made->context_.get();
  TROUPE_CHECK(context != nullptr, "tls: OpenSSL gives no context: {}", openssl_reason());
  ERR_clear_error();
  if (SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1)
    return fail(ErrorCode::kConfig, "tls: {}: {}", files.authority, openssl_reason());
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return fail(ErrorCode::kConfig, "tls: {}: {}", files.certificate, openssl_reason());
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1)
    return fail(ErrorCode::kConfig, "tls: {}: {}", files.key, openssl_reason());
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session would not look at certificates again.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  return made;
}

TlsStream TlsContext::stream(LinkSide side, const std::string& host) const {
  SSL* const session = SSL_new(context_.get());
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  TROUPE_CHECK(session != nullptr && in != nullptr && out != nullptr,
               "tls: OpenSSL gives no session: {}", openssl_reason());
  SSL_set_bio(session, in, out);
  if (side == LinkSide::kAcceptor) {
    SSL_set_accept_state(session);
  } else {
    SSL_set_connect_state(session);
    X509_VERIFY_PARAM* const wanted = SSL_get0_param(session);
    X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) != 1)
      X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size());
    ERR_clear_error();
  }
  return TlsStream(session);
}

result<void> TlsStream::failed(int outcome, const char* doing) const {
  const int kind = SSL_get_error(session_.get(), outcome);
  if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return {};
  if (kind == SSL_ERROR_ZERO_RETURN)
    return fail(ErrorCode::kRankDead, "tls: the peer ended the session");
  const long verdict = SSL_get_verify_result(session_.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return fail(ErrorCode::kConflict, "tls: the peer's certificate is refused: {}",
                X509_verify_cert_error_string(verdict));
  }
  // An alert of the peer: most often it does not like our certificate.
  const int reason = ERR_GET_REASON(ERR_peek_error());
  if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
    ERR_clear_error();
    return fail(ErrorCode::kConflict, "tls: the peer refuses this end: {}",
                SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
  }
  return fail(ErrorCode::kConflict, "tls: {}: {}", doing, openssl_reason());
}

result<void> TlsStream::shake() {
  if (established_) return {};
  ERR_clear_error();
  const int outcome = SSL_do_handshake(session_.get());
  if (outcome != 1) return failed(outcome, "handshake");
  established_ = true;
  return {};
}

result<void> TlsStream::received(std::span<const std::byte> bytes, std::vector<std::byte>& plain) {
  BIO* const in = SSL_get_rbio(session_.get());
  const int taken = BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
  if (taken != static_cast<int>(bytes.size()))
    return fail(ErrorCode::kResourceExhausted, "tls: took {} of {} bytes", taken, bytes.size());
  TROUPE_TRY_VOID(shake());
  if (!established_) return {};
  constexpr std::size_t kPiece = std::size_t{16} << 10;  // a TLS record
  while (true) {
    const std::size_t before = plain.size();
    plain.resize(before + kPiece);
    ERR_clear_error();
    const int got = SSL_read(session_.get(), plain.data() + before, static_cast<int>(kPiece));
    plain.resize(before + static_cast<std::size_t>(std::max(got, 0)));
    if (got <= 0) return failed(got, "reading");
  }
}

result<void> TlsStream::send(std::span<const char> plain, std::vector<char>& target) {
  if (!plain.empty()) {
    ERR_clear_error();
    // Memory takes everything at once.
    const int put = SSL_write(session_.get(), plain.data(), static_cast<int>(plain.size()));
    if (put != static_cast<int>(plain.size())) {
      TROUPE_TRY_VOID(failed(put, "writing"));
      return fail(ErrorCode::kConflict, "tls: {} bytes were not taken", plain.size());
    }
  }
  drain(target);
  return {};
}

void TlsStream::drain(std::vector<char>& target) {
  BIO* const out = SSL_get_wbio(session_.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  if (size <= 0) return;
  target.insert(target.end(), bytes, bytes + size);
  (void)BIO_reset(out);
}

void TlsStream::finish() {
  if (established_) (void)SSL_shutdown(session_.get());
  ERR_clear_error();
}

std::vector<std::byte> TlsStream::binding() const {
  std::vector<std::byte> material(kBindingBytes);
  const int made = SSL_export_keying_material(
      session_.get(), reinterpret_cast<unsigned char*>(material.data()), material.size(),
      kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0);
  TROUPE_CHECK(made == 1, "tls: no keying material: {}", openssl_reason());
  return material;
}

}  // namespace troupe::runtime
