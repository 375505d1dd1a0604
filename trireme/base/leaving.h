// SPDX-License-Identifier: Apache-2.0
// What launchers and ranks agree on about leaving in time: a rank that is asked to end finishes its
// step, saves a checkpoint and exits with a code that says that the run can be resumed.
#pragma once

#include <chrono>

namespace trireme {

/// The exit code of a rank that was asked to leave and has saved: EX_TEMPFAIL of sysexits.h. The
/// same command resumes the run.
inline constexpr int kLeaveExitCode = 75;

/// The time in seconds that ranks have to leave, unless TRIREME_GRACE or `--grace` says otherwise.
inline constexpr std::chrono::seconds kDefaultLeaveGrace{30};

/// The time that a launcher gives ranks beyond their grace, so that they can say that it was too
/// short.
inline constexpr std::chrono::seconds kBeyondLeaveGrace{2};

/// What a launcher means by a SIGTERM: the value that it sends with the signal
/// (siginfo_t::si_value). A program that does not know of it sees an ordinary SIGTERM.
enum class Ending : int {
  kNow = 0x74720001,     ///< another rank has failed, for which a rank that leaves would wait
  kInTime = 0x74720002,  ///< the launcher was asked to leave; not counted as a second SIGTERM
};

}  // namespace trireme
