// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/tls_options.h>

#include <CLI/CLI.hpp>

namespace trireme::apps {

void add_tls_options(CLI::App& command, launch::TlsOptions& options) {
  command
      .add_option("--tls", options.folder,
                  "Folder with certificate.pem, key.pem and ca.pem of this host, with which "
                  "connections to the scheduler are encrypted (default: TRIREME_TLS)")
      ->option_text("FOLDER");
  command
      .add_option("--tls-certificate", options.certificate,
                  "Certificate of this host (default: that in --tls, or TRIREME_TLS_CERTIFICATE)")
      ->option_text("FILE");
  command
      .add_option("--tls-key", options.key,
                  "Key of the certificate (default: that in --tls, or TRIREME_TLS_KEY)")
      ->option_text("FILE");
  command
      .add_option("--tls-ca", options.authority,
                  "Certificate of the authority to trust (default: that in --tls, or "
                  "TRIREME_TLS_CA)")
      ->option_text("FILE");
}

}  // namespace trireme::apps
