#include "runtime/link/certificate.hpp"

#include "runtime/base/check.hpp"
#include "runtime/link/private_file.hpp"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace troupe::runtime {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const noexcept {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using GeneralNames = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;

constexpr std::string_view kAuthorityName = "authority";
constexpr long kDaySeconds = 24L * 60 * 60;
constexpr int kDaysMax = 36500;
/// Clocks of hosts differ a little.
constexpr long kSkewSeconds = 300;

tl::unexpected<Error> openssl_failed(const std::string& place) {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return fail(ErrorCode::kInternal, "certificate {}: OpenSSL: {}", place,
              reason == nullptr ? "no reason given" : reason);
}

std::string text_of(BIO* memory) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(memory, &bytes);
  return {bytes, static_cast<std::size_t>(std::max(size, 0L))};
}

result<std::string> pem_of(const Key& key) {
  const Memory memory(BIO_new(BIO_s_mem()));
  if (!memory ||
      PEM_write_bio_PrivateKey(memory.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return openssl_failed("key");
  return text_of(memory.get());
}

result<std::string> pem_of(const Certificate& certificate) {
  const Memory memory(BIO_new(BIO_s_mem()));
  if (!memory || PEM_write_bio_X509(memory.get(), certificate.get()) != 1)
    return openssl_failed("text");
  return text_of(memory.get());
}

result<Key> new_key() {
  Key key(EVP_EC_gen("P-256"));
  if (!key) return openssl_failed("key");
  return key;
}

bool add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

/// Hosts by the library's types rather than as configuration text, which has a syntax of its own.
result<void> add_hosts(X509* certificate, const std::vector<std::string>& hosts) {
  if (hosts.empty()) return {};
  const GeneralNames names(sk_GENERAL_NAME_new_null());
  for (const std::string& host : hosts) {
    GENERAL_NAME* const name = GENERAL_NAME_new();
    if (names == nullptr || name == nullptr || sk_GENERAL_NAME_push(names.get(), name) == 0)
      return openssl_failed(host);
    if (ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str())) {
      GENERAL_NAME_set0_value(name, GEN_IPADD, address);
      continue;
    }
    const std::string_view labels = std::string_view(host).substr(host.starts_with("*.") ? 2 : 0);
    const bool plain =
        !labels.empty() && std::all_of(labels.begin(), labels.end(), [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
        });
    if (!plain)
      return fail(ErrorCode::kInvalidArgument,
                  "certificate: host '{}' is neither an address nor a DNS name", host);
    ASN1_IA5STRING* const text = ASN1_IA5STRING_new();
    if (text == nullptr || ASN1_STRING_set(text, host.data(), static_cast<int>(host.size())) != 1)
      return openssl_failed(host);
    GENERAL_NAME_set0_value(name, GEN_DNS, text);
  }
  ERR_clear_error();  // of names that are no addresses
  if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) != 1)
    return openssl_failed("hosts");
  return {};
}

/// A certificate with number, times, subject and key, still without extensions and signature.
result<Certificate> blank_certificate(const std::string& name, const Key& key, int days) {
  Certificate made(X509_new());
  const Number number(BN_new());
  if (!made || !number || BN_rand(number.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) == nullptr)
    return openssl_failed(name);
  const long begin = days < 0 ? (days - 1L) * kDaySeconds : -kSkewSeconds;
  X509_NAME* const subject = X509_get_subject_name(made.get());
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  const bool filled =
      X509_set_version(made.get(), X509_VERSION_3) == 1 &&
      X509_gmtime_adj(X509_getm_notBefore(made.get()), begin) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(made.get()), days * kDaySeconds) != nullptr &&
      X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("troupe"), -1, -1,
                                 0) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, text, -1, -1, 0) == 1 &&
      X509_set_pubkey(made.get(), key.get()) == 1;
  if (!filled) return openssl_failed(name);
  return made;
}

result<Memory> open_pem(const std::string& path) {
  Memory memory(BIO_new_file(path.c_str(), "r"));
  ERR_clear_error();
  if (!memory) return fail(ErrorCode::kNotFound, "{}: cannot be read", path);
  return memory;
}

result<void> check_days(int days) {
  if (days != 0 && days >= -kDaysMax && days <= kDaysMax) return {};
  return fail(ErrorCode::kInvalidArgument, "certificate: valid for {} days, wanted 1..{}", days,
              kDaysMax);
}

result<void> write_both(const std::string& stem, const Certificate& certificate, const Key& key) {
  TROUPE_TRY(const std::string key_text, pem_of(key));
  TROUPE_TRY(const std::string text, pem_of(certificate));
  // A certificate without its key is of no use, so the key comes first.
  for (const auto* suffix : {".key", ".pem"}) {
    std::error_code code;
    if (std::filesystem::exists(stem + suffix, code))
      return fail(ErrorCode::kAlreadyExists, "{}{}: exists, and is not overwritten", stem, suffix);
  }
  TROUPE_TRY_VOID(write_new_file(stem + ".key", key_text, 0600));
  return write_new_file(stem + ".pem", text, 0644);
}

}  // namespace

TlsFiles TlsFiles::in_folder(const std::string& folder, const std::string& name) {
  const std::filesystem::path place(folder);
  return {.authority = (place / "authority.pem").string(),
          .certificate = (place / (name + ".pem")).string(),
          .key = (place / (name + ".key")).string()};
}

result<void> make_authority(const std::string& folder, int days) {
  TROUPE_TRY_VOID(check_days(days));
  TROUPE_TRY_VOID(make_private_folder(folder));
  TROUPE_TRY(const Key key, new_key());
  TROUPE_TRY(const Certificate made, blank_certificate("troupe private authority", key, days));
  X509* const raw = made.get();
  const bool signed_by_itself =
      X509_set_issuer_name(raw, X509_get_subject_name(raw)) == 1 &&
      add_extension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign") &&
      add_extension(raw, raw, NID_subject_key_identifier, "hash") &&
      X509_sign(raw, key.get(), EVP_sha256()) > 0;
  if (!signed_by_itself) return openssl_failed("authority");
  return write_both((std::filesystem::path(folder) / kAuthorityName).string(), made, key);
}

result<TlsFiles> make_certificate(const std::string& folder, const std::string& name,
                                  const std::vector<std::string>& hosts, int days) {
  TROUPE_TRY_VOID(check_days(days));
  constexpr std::size_t kNameMax = 64;  // of a common name
  const bool plain = !name.empty() && name.size() <= kNameMax && name.front() != '.' &&
                     name != kAuthorityName &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
                     });
  if (!plain)
    return fail(ErrorCode::kInvalidArgument,
                "certificate: name '{}', wanted 1..{} letters, digits, '.', '-', '_'", name,
                kNameMax);
  const TlsFiles files = TlsFiles::in_folder(folder, name);
  TROUPE_TRY(const Memory authority_text, open_pem(files.authority));
  const std::string key_path = (std::filesystem::path(folder) / "authority.key").string();
  TROUPE_TRY(const Memory key_text, open_pem(key_path));
  const Certificate authority(PEM_read_bio_X509(authority_text.get(), nullptr, nullptr, nullptr));
  const Key authority_key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  if (!authority || !authority_key ||
      X509_check_private_key(authority.get(), authority_key.get()) != 1) {
    ERR_clear_error();
    return fail(ErrorCode::kConfig, "{}: is not the key of {}", key_path, files.authority);
  }
  TROUPE_TRY(const Key key, new_key());
  TROUPE_TRY(const Certificate made, blank_certificate(name, key, days));
  X509* const raw = made.get();
  TROUPE_TRY_VOID(add_hosts(raw, hosts));
  const bool signed_by_authority =
      X509_set_issuer_name(raw, X509_get_subject_name(authority.get())) == 1 &&
      add_extension(raw, authority.get(), NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(raw, authority.get(), NID_key_usage, "critical,digitalSignature") &&
      add_extension(raw, authority.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
      add_extension(raw, authority.get(), NID_authority_key_identifier, "keyid:always") &&
      X509_sign(raw, authority_key.get(), EVP_sha256()) > 0;
  if (!signed_by_authority) return openssl_failed(name);
  TROUPE_TRY_VOID(write_both((std::filesystem::path(folder) / name).string(), made, key));
  return files;
}

}  // namespace troupe::runtime
