// SPDX-License-Identifier: Apache-2.0
// A cluster of Slurm with two nodes on this machine: daemons of its own in two network namespaces,
// all of whose files are in one folder.
#pragma once

#include <tests/processes/named_hosts.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

namespace trireme::test {

/// Waits until `is_so` returns true. Returns false at the deadline.
inline bool await(std::chrono::seconds deadline, const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

/// Starts munged, slurmctld and two slurmd, and ends them. Needs root, and the packages slurmctld,
/// slurmd, slurm-client, munge and iproute2.
class SlurmCluster {
 public:
  SlurmCluster() {
    for (const char* program : {"slurmctld", "slurmd", "munged", "sbatch"}) {
      if (shell(kPath + "command -v " + program).code == 0) continue;
      why_not_ = std::string("the program ") + program + " is not installed";
      return;
    }
    why_not_ = hosts_.why_not();
    if (!why_not_.empty()) return;
    for (const char* name : {"munge", "controller", "work"}) {
      std::filesystem::create_directory(folder_ / name);
    }
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
    std::filesystem::permissions(folder_ / "munge", std::filesystem::perms::owner_all);
    write_file(folder_ / "slurm.conf", configuration());
    const std::string folder = folder_.path().string();
    start(
        0, "munged",
        "munged --foreground --force --key-file=" + folder + "/munge/key --socket=" + folder +
            "/munge/socket --pid-file=" + folder + "/munge/pid --log-file=" + folder +
            "/munge/log --seed-file=" + folder + "/munge/seed",
        "head -c 128 /dev/urandom >" + folder + "/munge/key; chmod 400 " + folder + "/munge/key; ");
    if (!await(std::chrono::seconds(20),
               [&] { return std::filesystem::exists(folder_ / "munge/socket"); })) {
      why_not_ = "munged does not start: " + read_file(folder_ / "munged.out");
      return;
    }
    start(0, "slurmctld", "slurmctld -D -f " + folder + "/slurm.conf");
    for (const std::size_t host : {0U, 1U}) start_node(host);
    const bool is_up = await(std::chrono::seconds(40), [&] {
      return run("sinfo --noheader -o %D-%t").output.find("2-idle") != std::string::npos;
    });
    if (is_up) return;
    why_not_ = "the nodes do not start: " + read_file(folder_ / "slurmctld.out") +
               read_file(folder_ / "slurmd0.out") + read_file(folder_ / "slurmd1.out");
  }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;
  ~SlurmCluster() {
    switch_off(1);
    switch_off(0);
  }

  /// Empty where the cluster is there; else why it is not.
  const std::string& why_not() const noexcept { return why_not_; }
  /// The folder in which jobs work.
  std::filesystem::path work() const { return folder_ / "work"; }

  /// Runs a command on the first node, in the folder of the jobs.
  Finished run(const std::string& command) const {
    return shell("cd " + work().string() + "; " + kPath + "SLURM_CONF=" +
                 (folder_ / "slurm.conf").string() + " timeout 200 " + hosts_.on(0) + command);
  }
  /// Submits a job whose output goes to `<name>.out`. Returns its number.
  std::string submit(const std::string& name, const std::string& options) const {
    const Finished finished =
        run("sbatch --parsable --output=" + name + ".out --job-name=" + name + " " + options);
    return finished.output.substr(0, finished.output.find('\n'));
  }
  /// Returns what a job has printed.
  std::string output(const std::string& name) const { return read_file(work() / (name + ".out")); }
  /// Waits until a job has printed the text.
  bool await_output(const std::string& name, const std::string& text) const {
    return await(std::chrono::seconds(180),
                 [&] { return output(name).find(text) != std::string::npos; });
  }
  /// Waits until no job is left.
  bool await_end() const {
    return await(std::chrono::seconds(120),
                 [&] { return run("squeue --noheader").output.empty(); });
  }
  /// Returns how many processes of a program run on the nodes.
  int count(const std::string& program) const {
    const Finished finished =
        shell(kPath + "for pid in $(ip netns pids " + hosts_.name(0) + "; ip netns pids " +
              hosts_.name(1) + "); do readlink /proc/$pid/exe; done | grep -c '/" + program + "$'");
    return static_cast<int>(std::strtol(finished.output.c_str(), nullptr, 10));
  }

  /// Starts the daemon of a node.
  void start_node(std::size_t host) const {
    start(host, "slurmd" + std::to_string(host),
          "slurmd -D -N " + hosts_.name(host) + " -f " + (folder_ / "slurm.conf").string());
  }
  /// Kills every process of a node at once.
  void switch_off(std::size_t host) const {
    shell(kPath + "kill -KILL $(ip netns pids " + hosts_.name(host) + ")");
  }

 private:
  static inline const std::string kPath = "PATH=$PATH:/usr/sbin:/sbin; ";

  void start(std::size_t host, const std::string& name, const std::string& command,
             const std::string& before = "") const {
    shell(kPath + before + "exec >" + (folder_ / (name + ".out")).string() +
          " 2>&1 </dev/null; setsid " + hosts_.on(host) + command + " &");
  }

  // Without cgroups and systemd, and with more processors than there are.
  std::string configuration() const {
    const std::string folder = folder_.path().string();
    return "ClusterName=trireme\nSlurmctldHost=" + hosts_.name(0) +
           "\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket=" + folder +
           "/munge/socket,cred_expire=5\nSlurmctldPidFile=" + folder +
           "/controller/pid\nSlurmdPidFile=" + folder + "/%n.pid\nStateSaveLocation=" + folder +
           "/controller\nSlurmdSpoolDir=" + folder +
           "/%n.spool\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
           "SwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\n"
           "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n"
           "SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n"
           "SchedulerParameters=sched_interval=2\nMpiDefault=none\nReturnToService=2\n"
           "SlurmdTimeout=6\nKillWait=20\nMessageTimeout=5\nNodeName=" +
           hosts_.name(0) + "," + hosts_.name(1) +
           " CPUs=12 State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE "
           "State=UP\n";
  }

  TemporaryFolder folder_;
  NamedHosts hosts_{folder_.path()};
  std::string why_not_;
};

}  // namespace trireme::test
