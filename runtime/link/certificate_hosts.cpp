#include "runtime/link/certificate_hosts.hpp"

#include "runtime/base/file.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace troupe::runtime {
namespace {

constexpr std::uint64_t kCertificateBytesMax = 64 << 10;

struct FreeMemory {
  void operator()(BIO* memory) const noexcept { BIO_free_all(memory); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
};

}  // namespace

result<bool> certificate_covers(const std::string& path, const std::string& host) {
  TROUPE_TRY(const std::string text, read_text_file(path, kCertificateBytesMax));
  const std::unique_ptr<BIO, FreeMemory> memory(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const std::unique_ptr<X509, FreeCertificate> certificate(
      PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr));
  if (!certificate) {
    ERR_clear_error();
    return fail(ErrorCode::kConfig, "{}: not a PEM certificate", path);
  }
  return X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1 ||
         X509_check_host(certificate.get(), host.c_str(), host.size(), 0, nullptr) == 1;
}

}  // namespace troupe::runtime
