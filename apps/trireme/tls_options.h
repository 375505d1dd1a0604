// SPDX-License-Identifier: Apache-2.0
// Options that `trireme scheduler`, `trireme worker` and `trireme certificates check` share: those
// that name the files for TLS.
#pragma once

#include <trireme/launch/tls/tls_files.h>

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds --tls, --tls-certificate, --tls-key and --tls-ca to a command. `options` must outlive it.
void add_tls_options(CLI::App& command, launch::TlsOptions& options);

}  // namespace trireme::apps
