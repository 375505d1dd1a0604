// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/launcher_environment.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/process_tree.h>
#include <trireme/launch/role.h>
#include <trireme/launch/slurm_lists.h>

#include <algorithm>
#include <array>
#include <climits>
#include <string_view>

namespace trireme::launch {
namespace {

// The names of the four variables that one launcher sets.
struct Names {
  std::string_view launcher;
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_world_size;
};

constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpich{"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
// PALS of HPE: the same names as MPICH, except for the local pair.
constexpr Names kPals{"pals", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"};
constexpr Names kMvapich{"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                         "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kJsrun{"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                       "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"};
constexpr Names kHorovodrun{"horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
                            "HOROVOD_LOCAL_SIZE"};
// The world that `trireme predict` gives to the program whose step it predicts.
constexpr Names kPrediction{"prediction", "TRIREME_PREDICT_RANK", "TRIREME_PREDICT_RANKS",
                            "TRIREME_PREDICT_LOCAL_RANK", "TRIREME_PREDICT_LOCAL_RANKS"};
// The launchers whose variables no other launcher sets, in the order in which they are tried.
constexpr std::array kWithOwnNames{kOpenMpi, kMvapich, kJsrun, kHorovodrun};

// A launcher that tells a process that it is one of several, but not all that is needed to find the
// others.
struct Unsupported {
  std::string_view name;
  std::string_view variable;  // set in each task; absent in a batch script,
  std::string_view alone{};   // or set to this value there
  std::string_view size{};    // the variable with the number of tasks, if there is one
};

// Grid Engine is missing on purpose: processes started by `qrsh -inherit` have the same variables
// as the job script.
constexpr std::array kUnsupported{
    Unsupported{.name = "Flux", .variable = "FLUX_TASK_RANK", .size = "FLUX_JOB_SIZE"},
    Unsupported{.name = "PMIx", .variable = "PMIX_RANK"},
    Unsupported{.name = "PALS", .variable = "PALS_RANKID"},
    Unsupported{.name = "ALPS", .variable = "ALPS_APP_PE"},
    Unsupported{.name = "LSF", .variable = "LSF_PM_TASKID", .size = "LSB_DJOB_NUMPROC"},
    Unsupported{.name = "PBS", .variable = "PBS_TASKNUM", .alone = "1"},
    Unsupported{.name = "PBS", .variable = "PBS_NODENUM", .alone = "0"},
    Unsupported{.name = "PBS", .variable = "PBS_VNODENUM", .alone = "0"},
};

// An upper bound on ranks, because values of variables become the lengths of lists.
constexpr std::int64_t kMostRanks = 1 << 20;

// The programs that start ranks; one process per host and run. The kernel keeps 15 characters of a
// program's name.
constexpr std::array<std::string_view, 9> kLauncherPrograms{
    "mpirun",  "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun",
    "prterun", "prted",   "orted",         "slurmstepd"};

// Returns true if both variables of a pair are set. Throws ConfigError if only one is.
bool has_pair(const Environment& environment, std::string_view first, std::string_view second) {
  const bool has_first = environment.has(first);
  if (has_first == environment.has(second)) return has_first;
  const std::string_view set = has_first ? first : second;
  const std::string_view missing = has_first ? second : first;
  throw ConfigError(join_message("environment variable ", set, " is '", *environment.find(set),
                                 "' but ", missing, " is not set, expected both or neither"),
                    join_message("set ", missing, " too, or unset ", set, " to run alone"));
}

int read_size(const Environment& environment, std::string_view name) {
  return static_cast<int>(environment.find_integer(name, 1, kMostRanks).value());
}

int read_index(const Environment& environment, std::string_view name) {
  return static_cast<int>(environment.find_integer(name, 0, kMostRanks - 1).value());
}

void check_below(const Environment& environment, std::string_view index, std::string_view size) {
  if (read_index(environment, index) < read_size(environment, size)) return;
  throw ConfigError(
      join_message("environment variable ", index, " is '", *environment.find(index),
                   "', expected less than ", size, ", which is '", *environment.find(size), "'"),
      "ranks count from 0; start the ranks by one launcher, which sets both");
}

void check_at_most(std::string_view small_name, int small, std::string_view large_name, int large) {
  if (small <= large) return;
  throw ConfigError(join_message("environment variable ", small_name, " is '", small,
                                 "', expected at most ", large_name, ", which is '", large, "'"),
                    "start the ranks by one launcher, which sets both");
}

// Reads the four numbers under one launcher's names. Without the local pair, all ranks are assumed
// to share this host.
Identity read_numbers(const Environment& environment, const Names& names) {
  Identity identity;
  identity.launcher = names.launcher;
  check_below(environment, names.rank, names.world_size);
  identity.rank = read_index(environment, names.rank);
  identity.world_size = read_size(environment, names.world_size);
  if (has_pair(environment, names.local_rank, names.local_world_size)) {
    check_below(environment, names.local_rank, names.local_world_size);
    identity.local_rank = read_index(environment, names.local_rank);
    identity.local_world_size = read_size(environment, names.local_world_size);
    check_at_most(names.local_world_size, identity.local_world_size, names.world_size,
                  identity.world_size);
  } else {
    identity.local_rank = identity.rank;
    identity.local_world_size = identity.world_size;
  }
  return identity;
}

void read_master(const Environment& environment, Identity& identity) {
  if (!has_pair(environment, "MASTER_ADDR", "MASTER_PORT")) return;
  identity.master_address = environment.find("MASTER_ADDR");
  identity.master_port =
      static_cast<int>(environment.find_integer("MASTER_PORT", 1, 65535).value());
}

// Checks variables in torchrun's style that no known launcher claims against those of MPI. A
// leftover `export RANK=0` would otherwise make every process of an mpirun rank 0.
void check_agrees_with_mpi(const Environment& environment, const Identity& identity) {
  for (const Names& names : {kOpenMpi, kMvapich, kJsrun, kHorovodrun, kMpich}) {
    if (!environment.has(names.rank) || !environment.has(names.world_size)) continue;
    if (read_index(environment, names.rank) == identity.rank &&
        read_size(environment, names.world_size) == identity.world_size) {
      continue;
    }
    throw ConfigError(
        join_message("environment variables RANK and WORLD_SIZE are ", identity.rank, " and ",
                     identity.world_size, " but ", names.rank, " and ", names.world_size, " are ",
                     *environment.find(names.rank), " and ", *environment.find(names.world_size),
                     ", expected the same"),
        join_message("unset RANK and WORLD_SIZE; ", names.launcher, " says it all"));
  }
}

// Returns true in a job step that srun started. Batch scripts and interactive shells are steps too,
// with reserved numbers at the top of the range.
bool in_slurm_step(const Environment& environment) {
  constexpr std::int64_t kFirstReservedStep = 0xfffffff0;
  const auto step = environment.find_integer("SLURM_STEP_ID", 0, UINT_MAX);
  return step && *step < kFirstReservedStep && environment.has("SLURM_PROCID");
}

// Returns the name of the variable that holds the number of tasks in a step. Newer versions of
// Slurm set another one.
std::string_view slurm_size_name(const Environment& environment) {
  return environment.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

// A leftover `export RANK=0 WORLD_SIZE=1` would make each task of a step a world of one.
void check_agrees_with_slurm(const Environment& environment, const Identity& identity) {
  if (identity.world_size > 1 || !in_slurm_step(environment)) return;
  const std::string_view size_name = slurm_size_name(environment);
  if (!environment.has(size_name) || read_size(environment, size_name) == 1) return;
  throw ConfigError(
      join_message("environment variables RANK and WORLD_SIZE are 0 and 1 but srun has started "
                   "this process as SLURM_PROCID ",
                   *environment.find("SLURM_PROCID"), " of ", size_name, " ",
                   *environment.find(size_name), ": each of them would train alone"),
      "unset RANK and WORLD_SIZE; srun's variables say it all. To run each task alone start it by "
      "`env -u SLURM_STEP_ID RANK=0 WORLD_SIZE=1 program`");
}

Identity read_torchrun(const Environment& environment) {
  Identity identity = read_numbers(environment, kTorchrun);
  if (environment.has("TRIREME_RUN_ID")) {
    identity.launcher = "trireme";
  } else if (!environment.has("TORCHELASTIC_RUN_ID")) {
    check_agrees_with_mpi(environment, identity);
    check_agrees_with_slurm(environment, identity);
  }
  identity.launcher_hosts_store = environment.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return identity;
}

// Returns a port that all ranks of a step compute alike and two steps rarely share, also not with
// what an earlier run of a requeued job has left. It is below the range that kernels give to
// clients.
int slurm_port(const Environment& environment) {
  constexpr std::int64_t kFirstPort = 12000;
  constexpr std::int64_t kPorts = 20000;
  const std::int64_t job = environment.find_integer("SLURM_JOB_ID", 0, INT64_MAX / 64).value_or(0);
  const std::int64_t step = environment.find_integer("SLURM_STEP_ID", 0, UINT_MAX).value_or(0);
  const std::int64_t restart =
      environment.find_integer("SLURM_RESTART_COUNT", 0, INT_MAX).value_or(0);
  return static_cast<int>(kFirstPort + (job * 31 + step + restart * 7919) % kPorts);
}

int slurm_tasks_here(const Environment& environment, int world_size) {
  constexpr std::string_view kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const auto list = environment.find(kTasks);
  if (!list) return world_size;
  const auto tasks = expand_tasks_per_node(*list, kTasks);
  const auto node =
      environment.find_integer("SLURM_NODEID", 0, static_cast<std::int64_t>(tasks.size()) - 1);
  return tasks[static_cast<std::size_t>(node.value_or(0))];
}

Identity read_slurm(const Environment& environment) {
  const std::string_view size_name = slurm_size_name(environment);
  Identity identity;
  identity.launcher = "slurm";
  has_pair(environment, "SLURM_PROCID", size_name);
  check_below(environment, "SLURM_PROCID", size_name);
  identity.rank = read_index(environment, "SLURM_PROCID");
  identity.world_size = read_size(environment, size_name);
  identity.local_world_size = slurm_tasks_here(environment, identity.world_size);
  check_at_most("SLURM_STEP_TASKS_PER_NODE", identity.local_world_size, size_name,
                identity.world_size);
  identity.local_rank =
      static_cast<int>(environment.find_integer("SLURM_LOCALID", 0, identity.local_world_size - 1)
                           .value_or(identity.rank));
  const auto nodes = environment.find("SLURM_STEP_NODELIST");
  if (nodes && identity.local_world_size < identity.world_size) {
    identity.master_address = expand_node_list(*nodes, "SLURM_STEP_NODELIST").front();
    identity.master_port = slurm_port(environment);
  }
  return identity;
}

// Returns a name for the run: the launcher's name for the job, if any, and the process that started
// the ranks of this host. Job names are reused after a while, but a process id together with its
// start time is not.
std::optional<std::string> read_job(const Environment& environment, const Identity& identity,
                                    const std::filesystem::path& proc_root) {
  std::string job;
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const bool of_slurm = std::string_view(name).starts_with("SLURM");
    if (of_slurm != (identity.launcher == "slurm")) continue;
    if (const auto value = environment.find(name)) job += "-" + *value;
  }
  const auto above = ancestors(proc_root);
  const auto starter = std::ranges::find_if(above, [](const Process& process) {
    return std::ranges::find(kLauncherPrograms, process.name) != kLauncherPrograms.end();
  });
  if (starter != above.end()) job += join_message("-", starter->id, "-", starter->start_time);
  if (job.empty()) return std::nullopt;
  job.insert(0, identity.launcher);
  std::ranges::replace_if(
      job, [](char c) { return c != '-' && c != '_' && c != '.' && !is_ascii_alphanumeric(c); },
      '_');
  return job;
}

// Returns true if Hydra started this process. Both Hydra and srun with its PMI plug-ins set
// PMI_RANK, but only Hydra sets the local rank.
bool under_hydra(const Environment& environment) {
  return has_pair(environment, "PMI_RANK", "PMI_SIZE") &&
         (environment.has("MPI_LOCALRANKID") || !in_slurm_step(environment));
}

const Names* find_own_names(const Environment& environment) {
  const auto* const found = std::ranges::find_if(kWithOwnNames, [&](const Names& names) {
    return has_pair(environment, names.rank, names.world_size);
  });
  return found == kWithOwnNames.end() ? nullptr : found;
}

// Throws ConfigError if variables give this process a role, or a part of one, that it has not
// taken. It would otherwise train alone.
void refuse_role(const Environment& environment) {
  if (has_rank_of_trireme(environment)) return;
  if (const auto role = read_role(environment)) {
    throw ConfigError(join_message("environment variable ", role->variable,
                                   " gives this process a role in a run with a scheduler, and only "
                                   "trireme::init() takes it"),
                      "call trireme::init() first in main");
  }
  refuse_incomplete_role(environment);
}

// Throws ConfigError if this process is one of several, because it would otherwise train alone.
void check_alone(const Environment& environment) {
  refuse_role(environment);
  for (const Unsupported& launcher : kUnsupported) {
    const auto value = environment.find(launcher.variable);
    if (!value || *value == launcher.alone) continue;
    const auto size = launcher.size.empty() ? std::nullopt : environment.find(launcher.size);
    if (size == "1") continue;
    throw ConfigError(
        join_message("environment variable ", launcher.variable, " is '", *value,
                     "': ", launcher.name, " has started this process as one of ",
                     size ? *size : "several",
                     ", and its variables do not say where the others "
                     "are"),
        "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each "
        "of them, or start the ranks by trireme run, one of it on each host. To run alone set "
        "RANK=0 and WORLD_SIZE=1");
  }
}

}  // namespace

// The order matters: variables in torchrun's style come first, because a user or `trireme run` may
// set them within an MPI or Slurm job. Slurm comes last, because other launchers run within its
// steps.
Identity read_identity(const Environment& environment, const std::filesystem::path& proc_root) {
  Identity identity;
  if (environment.has("TRIREME_PREDICT")) return read_numbers(environment, kPrediction);
  static_cast<void>(read_role(environment));  // refuses a role beside RANK and WORLD_SIZE
  if (has_pair(environment, "RANK", "WORLD_SIZE")) {
    identity = read_torchrun(environment);
  } else if (const auto* const names = find_own_names(environment)) {
    identity = read_numbers(environment, *names);
  } else if (under_hydra(environment)) {
    identity = read_numbers(environment, environment.has("PALS_RANKID") ? kPals : kMpich);
  } else if (in_slurm_step(environment)) {
    identity = read_slurm(environment);
  } else {
    check_alone(environment);
    return identity;
  }
  check_world_size(environment, identity.world_size, identity.launcher);
  if (identity.world_size == 1) refuse_role(environment);
  read_master(environment, identity);
  if (identity.launcher_hosts_store && !identity.master_address) {
    throw ConfigError(
        "environment variable TORCHELASTIC_USE_AGENT_STORE is 'True' but MASTER_ADDR and "
        "MASTER_PORT are not set, "
        "expected the address of the launcher's store",
        "start the ranks by trireme run or torchrun, which set all three, or unset "
        "TORCHELASTIC_USE_AGENT_STORE");
  }
  identity.job = environment.find("TRIREME_RUN_ID");
  if (!identity.job || identity.launcher != "trireme")
    identity.job = read_job(environment, identity, proc_root);
  identity.secret = environment.find("TRIREME_SECRET").value_or("");
  return identity;
}

}  // namespace trireme::launch
