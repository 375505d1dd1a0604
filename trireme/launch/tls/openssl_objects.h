// SPDX-License-Identifier: Apache-2.0
// Owners of OpenSSL's objects, and its errors as text. Only the sources of this folder include it.
#pragma once

#include <trireme/base/error.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace trireme::launch {

/// Frees an object by the function that OpenSSL has for its type.
template <auto Free>
struct OpensslDeleter {
  template <typename Object>
  void operator()(Object* object) const {
    Free(object);
  }
};

using BioPointer = std::unique_ptr<BIO, OpensslDeleter<&BIO_free>>;
using CertificatePointer = std::unique_ptr<X509, OpensslDeleter<&X509_free>>;
using ExtensionPointer = std::unique_ptr<X509_EXTENSION, OpensslDeleter<&X509_EXTENSION_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, OpensslDeleter<&EVP_PKEY_free>>;
using NamesPointer = std::unique_ptr<GENERAL_NAMES, OpensslDeleter<&GENERAL_NAMES_free>>;
using NumberPointer = std::unique_ptr<BIGNUM, OpensslDeleter<&BN_free>>;
using SslContextPointer = std::unique_ptr<SSL_CTX, OpensslDeleter<&SSL_CTX_free>>;
using SslPointer = std::unique_ptr<SSL, OpensslDeleter<&SSL_free>>;
using StorePointer = std::unique_ptr<X509_STORE, OpensslDeleter<&X509_STORE_free>>;
using StoreContextPointer = std::unique_ptr<X509_STORE_CTX, OpensslDeleter<&X509_STORE_CTX_free>>;

/// Returns the reason of the last error of OpenSSL in this thread, and forgets all of them.
inline std::string take_openssl_error() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason != nullptr ? reason : join_message("error ", code, " of OpenSSL");
}

/// Throws InternalError unless a call of OpenSSL that fails only without memory has succeeded.
inline void check_openssl(bool has_succeeded, const char* call) {
  if (!has_succeeded)
    throw InternalError(join_message(call, ": ", take_openssl_error()), "report this");
}

}  // namespace trireme::launch
