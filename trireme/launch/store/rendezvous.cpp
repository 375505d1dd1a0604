// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/rendezvous.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/interruption.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>
#include <trireme/launch/machine_identity.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/store/sealed_store.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace trireme::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The longest single wait for missing ranks. After each wait, the ranks that have ended meanwhile
// are looked up.
constexpr milliseconds kLookAround{200};

std::string attendance_key(int rank, int round) {
  return join_message("peer_info/", round, "/", rank);
}

// Encodes one field per line; host names and versions contain no line breaks.
std::string encode(const PeerInfo& entry) {
  return join_message(entry.world_size, '\n', entry.process_id, '\n', entry.host, '\n',
                      entry.machine, '\n', entry.process_space, '\n', entry.torch_version, '\n',
                      entry.device);
}

PeerInfo decode(const std::string& text) {
  TextReader lines(text);
  PeerInfo entry;
  lines >> entry.world_size >> entry.process_id >> std::ws;
  std::getline(lines, entry.host);
  std::getline(lines, entry.machine);
  std::getline(lines, entry.process_space);
  std::getline(lines, entry.torch_version);
  std::getline(lines, entry.device);
  return entry;
}

// The counter finds a second process with the same rank, before either one waits.
void claim_rank(c10d::Store& store, const Identity& identity, const PeerInfo& own, int round) {
  if (store.add(join_message("claim/", round, "/", identity.rank), 1) > 1) {
    throw ConfigError(
        join_message("process ", own.process_id, " on ", own.host, " claims rank ", identity.rank,
                     ", which another process has already"),
        "give each process its own RANK; after a failed run use a fresh MASTER_PORT, or start "
        "mpirun again");
  }
  store.set(attendance_key(identity.rank, round), encode(own));
}

void check_nobody_left(c10d::Store& store, const std::vector<int>& missing, int round,
                       const Expectation& expectation) {
  for (const int rank : missing) {
    // A rank that arrived and ended after that reports the reason itself.
    if (!store.check({exit_key(rank)}) || store.check({attendance_key(rank, round)})) continue;
    throw CommError(join_message("rank ", rank, " ", store.get_to_str(exit_key(rank)),
                                 " without calling ", expectation.call, round > 0 ? " again" : ""),
                    "its log says why; every process of a run must call it");
  }
  if (expectation.look_at_missing && !missing.empty()) expectation.look_at_missing(missing);
}

[[noreturn]] void report_missing(const Identity& identity, const std::vector<int>& missing,
                                 milliseconds timeout, const Expectation& expectation) {
  std::vector<int> came;
  for (int rank = 0; rank < identity.world_size; ++rank) {
    if (std::find(missing.begin(), missing.end(), rank) == missing.end()) came.push_back(rank);
  }
  throw CommError(join_message("waited ", static_cast<double>(timeout.count()) / 1000,
                               " s for all ", identity.world_size, " ranks; came: ",
                               describe_ranks(came), "; missing: ", describe_ranks(missing)),
                  join_message("look at the logs of the missing ranks: they have not started, "
                               "hang, or never call ",
                               expectation.call,
                               "; TRIREME_TIMEOUT or `trireme run --timeout` sets the deadline in "
                               "seconds"));
}

void check_agreement(int rank, const PeerInfo& entry, const Identity& identity,
                     const PeerInfo& own) {
  const auto who =
      join_message("rank ", rank, " (process ", entry.process_id, " on ", entry.host, ")");
  if (entry.world_size != own.world_size) {
    throw ConfigError(join_message(who, " counts ", entry.world_size, " ranks, rank ",
                                   identity.rank, " counts ", own.world_size),
                      "start all processes with the same WORLD_SIZE");
  }
  if (entry.torch_version != own.torch_version) {
    throw ConfigError(join_message(who, " runs LibTorch ", entry.torch_version, ", rank ",
                                   identity.rank, " runs ", own.torch_version),
                      "build and run all ranks with one LibTorch");
  }
}

// Waits for the entries of all ranks and checks each one as it arrives, so that a disagreement is
// not mistaken for an absent rank.
std::vector<PeerInfo> await_all(c10d::Store& store, const Identity& identity, const PeerInfo& own,
                                milliseconds timeout, int round, const Expectation& expectation) {
  const auto deadline = Clock::now() + timeout;
  std::vector<PeerInfo> entries(static_cast<std::size_t>(identity.world_size));
  std::vector<int> missing(entries.size());
  std::iota(missing.begin(), missing.end(), 0);
  while (!missing.empty()) {
    std::vector<std::string> keys;
    for (const int rank : missing) keys.push_back(attendance_key(rank, round));
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      store.wait(keys, std::clamp(left, milliseconds{1}, kLookAround));
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): each store has its own type
      // Not all ranks are there yet; if the store is gone, the calls below fail as well.
    }
    std::erase_if(missing, [&](int rank) {
      if (!store.check({attendance_key(rank, round)})) return false;
      PeerInfo& entry = entries[static_cast<std::size_t>(rank)];
      const std::string text = store.get_to_str(attendance_key(rank, round));
      if (is_sealed(text)) {
        throw ConfigError(join_message("rank ", rank, " has a secret (TRIREME_SECRET) and rank ",
                                       identity.rank, " has none"),
                          "start all ranks with the same TRIREME_SECRET, or all without one");
      }
      entry = decode(text);
      check_agreement(rank, entry, identity, own);
      return true;
    });
    check_nobody_left(store, missing, round, expectation);
    if (missing.empty()) break;
    if (const std::string reason = interruption_reason(); !reason.empty()) {
      throw CommError(join_message("rank ", identity.rank, " was interrupted while it waited for ",
                                   describe_ranks(missing), ": ", reason),
                      "start the run again");
    }
    if (Clock::now() >= deadline) report_missing(identity, missing, timeout, expectation);
  }
  return entries;
}

// Removes the file of a file store. The last of all ranks normally does that, but after a failed
// rendezvous there is no last rank.
void remove_file_of(c10d::Store& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  if (prefixed == nullptr) return;
  const auto base = prefixed->getUnderlyingNonPrefixStore();
  if (const auto* file = dynamic_cast<const c10d::FileStore*>(base.get())) {
    std::error_code ignored;
    std::filesystem::remove(file->getPath(), ignored);
  }
}

}  // namespace

std::string exit_key(int rank) { return join_message("exit/", rank); }

PeerInfo own_peer_info(const Identity& identity) {
  std::error_code unreadable;
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", unreadable);
  return {.world_size = identity.world_size,
          .process_id = ::getpid(),
          .host = host_name(),
          .machine = machine_identity(),
          .process_space = processes.string(),
          .torch_version = TORCH_VERSION};
}

std::vector<PeerInfo> rendezvous(c10d::Store& store, const Identity& identity, const PeerInfo& own,
                                 milliseconds timeout, int round, const Expectation& expectation) {
  const TorchLogSilencer quiet;
  try {
    claim_rank(store, identity, own, round);
    try {
      return await_all(store, identity, own, timeout, round, expectation);
    } catch (...) {
      remove_file_of(store);
      throw;
    }
  } catch (const c10::Error& failure) {
    throw CommError(join_message("rank ", identity.rank,
                                 " lost the store while the ranks met: ", message_of(failure)),
                    "the process that hosts it (the launcher, or rank 0) ended");
  }
}

}  // namespace trireme::launch
