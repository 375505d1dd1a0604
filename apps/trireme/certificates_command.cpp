// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/certificates_command.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/tls/certificate_authority.h>
#include <trireme/launch/tls/certificate_check.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/tls_options.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

constexpr const char* kCertificatesDescription =
    "Make and examine the certificates with which connections to a scheduler are encrypted";

constexpr const char* kMakeDescription =
    R"(Make a certificate and a key for each host:
  trireme certificates make [options] HOST...

Each HOST is a name or an address, or several of one host with commas between them. All must be
given by which workers reach the scheduler. Each gets a folder of its own, which is copied to that
host and named there by TRIREME_TLS. The authority is made if its folder has none; its key,
ca_key.pem, must not be copied to the hosts.)";

constexpr const char* kMakeFooter =
    R"(Examples:
  trireme certificates make --ca-folder ~/trireme-ca --folder certificates host0,10.0.0.1 host1
  trireme certificates make --ca-folder ~/trireme-ca --folder certificates --replace host1)";

constexpr const char* kCheckDescription =
    R"(Examine the certificate, the key and the authority of a host:
  trireme certificates check [options]

Prints for which hosts the certificate is and how long it lasts, and all reasons for which the files
cannot be used.)";

constexpr const char* kCheckFooter =
    R"(Exit code: 0 if the files can be used, 1 if they cannot, 2 if none were named.

Examples:
  trireme certificates check --tls certificates/host1
  trireme certificates check --host host1 --host 10.0.0.2)";

void make(const launch::CertificateOrder& order) {
  const launch::MadeCertificates made = launch::make_certificates(order);
  std::cout << (made.has_made_authority ? "made the authority " : "used the authority ")
            << made.authority.string() << '\n';
  for (const auto& folder : made.folders) std::cout << "made " << folder.string() << '\n';
  std::cout << "copy each folder to its host, and name it there: export TRIREME_TLS=FOLDER\n";
}

int check(const launch::TlsOptions& options, const std::vector<std::string>& hosts) {
  const auto files = launch::read_tls_files(Environment::of_process(), options);
  if (!files) {
    throw ConfigError("no files were named, expected --tls FOLDER",
                      "TRIREME_TLS names a folder too; trireme certificates make makes one");
  }
  const launch::CertificateReport report = launch::check_certificates(*files, hosts);
  std::cout << report.text;
  for (const std::string& warning : report.warnings) std::cout << "warning: " << warning << '\n';
  for (const std::string& problem : report.problems) std::cout << "error: " << problem << '\n';
  std::cout << (report.problems.empty() ? "the files fit together, and can be used\n"
                                        : "the files cannot be used\n");
  return report.problems.empty() ? 0 : 1;
}

void add_make_command(CLI::App& app) {
  constexpr int kMostDays = 36'500;
  const auto order = std::make_shared<launch::CertificateOrder>();
  CLI::App* const command = app.add_subcommand("make", kMakeDescription);
  command->footer(kMakeFooter);
  command->add_option("hosts", order->hosts, "Hosts: names, addresses, or both with commas between")
      ->required()
      ->option_text("HOST...");
  command
      ->add_option("--ca-folder", order->authority_folder,
                   "Folder of the authority, ca.pem and ca_key.pem; made if it has none")
      ->required()
      ->option_text("FOLDER");
  command->add_option("--folder", order->folder, "Folder for the folders of the hosts (default: .)")
      ->option_text("FOLDER");
  command->add_option("--days", order->days, "Days for which certificates are valid (default: 365)")
      ->check(integer_from(1, kMostDays))
      ->option_text("N");
  command
      ->add_option("--ca-days", order->authority_days,
                   "Days for which a new authority is valid (default: 3650)")
      ->check(integer_from(1, kMostDays))
      ->option_text("N");
  command->add_flag("--replace", order->replaces,
                    "Make new keys and certificates in place of those of these hosts");
  command->callback([order] { make(*order); });
}

void add_check_command(CLI::App& app) {
  const auto options = std::make_shared<launch::TlsOptions>();
  const auto hosts = std::make_shared<std::vector<std::string>>();
  CLI::App* const command = app.add_subcommand("check", kCheckDescription);
  command->footer(kCheckFooter);
  add_tls_options(*command, *options);
  command
      ->add_option("--host", *hosts,
                   "Name or address that the certificate must be for; may be given several times")
      ->option_text("HOST")
      ->allow_extra_args(false);
  command->callback([options, hosts] {
    if (const int code = check(*options, *hosts); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace

void add_certificates_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("certificates", kCertificatesDescription);
  command->require_subcommand(1);
  add_make_command(*command);
  add_check_command(*command);
}

}  // namespace trireme::apps
