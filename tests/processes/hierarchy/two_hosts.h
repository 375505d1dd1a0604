// SPDX-License-Identifier: Apache-2.0
// Two hosts on one: network namespaces joined by a pair of virtual interfaces of limited speed.
#pragma once

#include <gtest/gtest.h>
#include <tests/processes/shell.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace trireme::testing {

using test::Finished;

/// Finds `ip` and `tc` also where only root looks.
inline Finished shell(const std::string& command) {
  return test::shell("PATH=$PATH:/usr/sbin:/sbin; " + command);
}

/// The namespaces exist as long as this object, whose names hold the process id.
class TwoHosts {
 public:
  /// @param megabits_per_second of the link, each way.
  explicit TwoHosts(int megabits_per_second) {
    const std::string number = std::to_string(::getpid());
    for (std::size_t host : {0U, 1U}) {
      names_[host] = "trireme-test-" + number + (host == 0 ? "a" : "b");
    }
    const std::string a = "tr" + number + "a";  // at most 15 characters
    const std::string b = "tr" + number + "b";
    const Finished made = shell("set -e; ip netns add " + names_[0] + "; ip netns add " +
                                names_[1] + "; ip link add " + a + " type veth peer name " + b +
                                "; " + furnish(0, a) + "; " + furnish(1, b));
    if (made.code != 0) why_not_ = made.output;
    if (!why_not_.empty()) return;
    const std::string limit = " tc qdisc add dev eth0 root tbf rate " +
                              std::to_string(megabits_per_second) +
                              "mbit burst 256kb latency 400ms";
    is_limited_ =
        shell("set -e; ip netns exec " + names_[0] + limit + "; ip netns exec " + names_[1] + limit)
            .code == 0;
  }

  /// Takes the interfaces with it.
  ~TwoHosts() {
    for (const std::string& name : names_) shell("ip netns delete " + name);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// Empty where the hosts are there; else what the system said.
  const std::string& why_not() const noexcept { return why_not_; }
  bool is_limited() const noexcept { return is_limited_; }

  /// Returns the words before a command that runs it on a host, whose address is 10.231.0.1 or
  /// 10.231.0.2.
  std::string on(std::size_t host) const { return "ip netns exec " + names_.at(host) + " "; }

  /// Runs the program as ranks 0 and 1 on the first host, 2 and 3 on the second.
  Finished run(const std::string& program) const {
    std::string command = "pids=";
    for (int rank = 0; rank < 4; ++rank) {
      command += "\nip netns exec " + names_[rank < 2 ? 0 : 1] +
                 " env RANK=" + std::to_string(rank) +
                 " WORLD_SIZE=4 LOCAL_RANK=" + std::to_string(rank % 2) +
                 " LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.231.0.1 MASTER_PORT=29500"
                 " TRIREME_INTERFACE=eth0 TRIREME_TIMEOUT=60 " +
                 program + " &\npids=\"$pids $!\"";
    }
    return shell(command + "\ncode=0; for pid in $pids; do wait $pid || code=$?; done; exit $code");
  }

 private:
  std::string furnish(int host, const std::string& interface) const {
    const std::string& name = names_[static_cast<std::size_t>(host)];
    return "ip link set " + interface + " netns " + name + " name eth0; ip -n " + name +
           " address add 10.231.0." + std::to_string(host + 1) + "/30 dev eth0; ip -n " + name +
           " link set eth0 up; ip -n " + name + " link set lo up";
  }

  std::array<std::string, 2> names_;
  std::string why_not_;
  bool is_limited_ = false;
};

inline std::string hierarchy_program() {
  const char* value = std::getenv("HIERARCHY_PROGRAM");  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

}  // namespace trireme::testing
