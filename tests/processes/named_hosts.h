// SPDX-License-Identifier: Apache-2.0
// Two hosts on one, with names of their own: network namespaces, in which commands run with another
// host name and another /etc/hosts. A script stands in for ssh.
#pragma once

#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

namespace trireme::test {

/// The namespaces exist as long as this object. They need root, iproute2 and util-linux.
class NamedHosts {
 public:
  /// What the name of a host leads to on that host itself.
  enum class OwnName {
    kAddress,   ///< the address that others reach it by
    kLoopback,  ///< 127.0.1.1, as Debian's installer writes it
  };

  /// @param folder for the script and what it needs.
  explicit NamedHosts(std::filesystem::path folder, OwnName own = OwnName::kAddress)
      : folder_(std::move(folder)) {
    const std::string number = std::to_string(::getpid());
    names_ = {"tr" + number + "a", "tr" + number + "b"};  // also of interfaces: short
    const Finished made = shell("set -e; PATH=$PATH:/usr/sbin:/sbin\nip netns add " + names_[0] +
                                "\nip netns add " + names_[1] + "\nip link add " + names_[0] +
                                " type veth peer name " + names_[1] + furnish(0) + furnish(1));
    if (made.code != 0) why_not_ = made.output;
    for (std::size_t host : {0U, 1U}) {
      std::string hosts = "127.0.0.1 localhost\n";
      for (std::size_t other : {0U, 1U}) {
        const bool is_loopback = own == OwnName::kLoopback && host == other;
        hosts += (is_loopback ? "127.0.1.1" : address(other)) + " " + names_.at(other) + "\n";
      }
      write_file(folder_ / (names_.at(host) + ".hosts"), hosts);
    }
    // As ssh, it gives the words of the command to a shell. A host may be given by its address.
    write_file(agent(), R"(#!/bin/bash
PATH=$PATH:/usr/sbin:/sbin
while [[ $1 == -* ]]; do shift; done
host=$1; shift
host=${host/#)" + address(0) +
                            "/" + names_[0] + R"(}
host=${host/#)" + address(1) +
                            "/" + names_[1] + R"(}
export TMPDIR=)" + folder_.string() +
                            R"(/$host
mkdir -p "$TMPDIR"
exec nsenter --net="/run/netns/$host" unshare --uts --mount bash -c \
  'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec bash -c "$*"' \
  on "$host" )" + folder_.string() +
                            R"(/$host.hosts "$@"
)");
    std::filesystem::permissions(agent(), std::filesystem::perms::owner_all);
    if (const Finished tried = shell(on(0) + "true"); why_not_.empty() && tried.code != 0) {
      why_not_ = tried.output;
    }
  }
  /// Takes the interfaces with it.
  ~NamedHosts() {
    for (const std::string& name : names_) shell("PATH=$PATH:/usr/sbin; ip netns delete " + name);
  }
  NamedHosts(const NamedHosts&) = delete;
  NamedHosts& operator=(const NamedHosts&) = delete;

  /// Empty where the hosts are there; else what the system said.
  const std::string& why_not() const noexcept { return why_not_; }
  const std::string& name(std::size_t host) const { return names_.at(host); }
  static std::string address(std::size_t host) { return "10.232.0." + std::to_string(host + 1); }
  /// A program that is called as ssh is.
  std::filesystem::path agent() const { return folder_ / "on"; }
  /// Returns the words before a command that runs it on a host.
  std::string on(std::size_t host) const { return agent().string() + " " + names_.at(host) + " "; }

 private:
  std::string furnish(std::size_t host) const {
    const std::string& name = names_.at(host);
    return "\nip link set " + name + " netns " + name + " name eth0\nip -n " + name +
           " address add " + address(host) + "/30 dev eth0\nip -n " + name +
           " link set eth0 up\nip -n " + name + " link set lo up";
  }

  std::filesystem::path folder_;
  std::array<std::string, 2> names_;
  std::string why_not_;
};

}  // namespace trireme::test
