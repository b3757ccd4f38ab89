#include "hub/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <new>

#include "base/check.h"

namespace sluice::hub {
namespace {

EVP_MD_CTX* of(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(of(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (!context_) throw std::bad_alloc();
  restart();
}
Sha256::~Sha256() = default;

void Sha256::restart() { CHECK(EVP_DigestInit_ex(of(context_.get()), EVP_sha256(), nullptr) == 1); }

void Sha256::add(std::string_view bytes) {
  CHECK(EVP_DigestUpdate(of(context_.get()), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(of(context_.get()), digest, &size) == 1);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  restart();
  return out;
}

}  // namespace sluice::hub
