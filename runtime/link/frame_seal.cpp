#include "runtime/link/frame_seal.hpp"

#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstring>

namespace troupe::runtime {
namespace {

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void FrameSeal::Free::operator()(evp_cipher_ctx_st* context) const noexcept {
  EVP_CIPHER_CTX_free(context);
}

FrameSeal::FrameSeal(const SealKey& key) : context_(EVP_CIPHER_CTX_new()) {
  const bool ready = context_ && EVP_EncryptInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr,
                                                    raw(key), nullptr) == 1;
  TROUPE_CHECK(ready, "frame seal: OpenSSL gives no AES-128-GCM");
}

SealBytes FrameSeal::make(std::uint64_t sequence, std::span<const std::byte> prefix,
                          std::span<const std::byte> payload) {
  SealBytes seal{};
  if (!context_) {
    const std::uint32_t sum = crc32c(payload, crc32c(prefix));
    std::memcpy(seal.data(), &sum, sizeof sum);
    return seal;
  }
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data() + 4, &sequence, sizeof sequence);
  int length = 0;
  unsigned char none = 0;
  EVP_CIPHER_CTX* const context = context_.get();
  const bool made = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                    EVP_EncryptUpdate(context, nullptr, &length, raw(prefix),
                                      static_cast<int>(prefix.size())) == 1 &&
                    (payload.empty() || EVP_EncryptUpdate(context, nullptr, &length, raw(payload),
                                                          static_cast<int>(payload.size())) == 1) &&
                    EVP_EncryptFinal_ex(context, &none, &length) == 1 &&
                    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG,
                                        static_cast<int>(kSealBytes), seal.data()) == 1;
  TROUPE_CHECK(made, "frame seal: OpenSSL refused frame {} of {} bytes", sequence, payload.size());
  return seal;
}

bool FrameSeal::check(std::uint64_t sequence, std::span<const std::byte> prefix,
                      std::span<const std::byte> payload, std::span<const std::byte> seal) {
  if (seal.size() != kSealBytes) return false;
  const SealBytes wanted = make(sequence, prefix, payload);
  return CRYPTO_memcmp(wanted.data(), seal.data(), kSealBytes) == 0;
}

}  // namespace troupe::runtime
