// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/shm_rendezvous.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string_view>

namespace trireme::shm {

void Rendezvous::answer(const std::string& question, const std::string& text) {
  store_.set(join_message(question, "/", rank_), text);
  questions_.push_back(question);
}

std::vector<std::string> Rendezvous::gather_answers(const std::string& question) {
  std::vector<std::string> answers;
  for (int rank = 0; rank < size_; ++rank) {
    answers.push_back(get(join_message(question, "/", rank), rank));
  }
  return answers;
}

void Rendezvous::announce(const std::string& key, const std::string& text) {
  store_.set(key, text);
}

std::string Rendezvous::announced(const std::string& key) { return get(key, 0); }

std::string Rendezvous::get(const std::string& key, int from) {
  try {
    return store_.get(key);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    std::vector<int> missing;
    try {
      if (store_.has(key)) return store_.get(key);  // it came meanwhile
      missing = behind(from);
    } catch (const std::exception&) {
      throw CommError(join_message("rank ", rank_, " of ", size_, " lost the store while group '",
                                   options_.name, "' met: ", failure.what()),
                      "the process that hosts it (the launcher, or rank 0) ended");
    }
    std::string states;
    for (const int rank : missing) {
      const std::string state = options_.look_at ? options_.look_at(rank) : "";
      if (!state.empty()) {
        states += join_message("; ", format_ranks({&rank, 1}, options_.world_ranks), " ", state);
      }
    }
    throw CommError(
        join_message(
            format_ranks(missing, options_.world_ranks), " did not come within the timeout of ",
            std::chrono::duration<double>(options_.timeout).count(),
            " s to the rendezvous of group '", options_.name, "', which shares memory", states),
        "look at its log; a process that is stopped goes on by kill -CONT, and a rank that comes "
        "late needs a longer deadline (TRIREME_TIMEOUT, in seconds)",
        {.rank = rank_, .peer = missing.front(), .operation = "connect"});
  }
}

// Returns the ranks that have not answered the first question with a missing answer, because all
// others wait for them. If all questions are answered, it is `from` that is late.
std::vector<int> Rendezvous::behind(int from) {
  std::vector<int> ranks;
  for (const std::string& question : questions_) {
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_.has(join_message(question, "/", rank))) ranks.push_back(rank);
    }
    if (!ranks.empty()) return ranks;
  }
  return {from};
}

// Counts the cores of all ranks together. Each rank may be bound to cores of its own, and all may
// share a quota.
bool have_more_ranks_than_cores(Rendezvous& call) {
  const std::vector<int> own = allowed_cores();
  const int quota = available_cores();
  TextWriter text;
  text << (quota < static_cast<int>(own.size()) ? quota : INT32_MAX);
  for (const int core : own) text << ' ' << core;
  std::set<int> all;
  int smallest_quota = INT32_MAX;
  for (const std::string& answer : call.exchange_answers("cores", text.str())) {
    TextReader theirs(answer);
    int value = 0;
    theirs >> value;
    smallest_quota = std::min(smallest_quota, value);
    while (theirs >> value) all.insert(value);
  }
  return call.size() > std::min(smallest_quota, static_cast<int>(all.size()));
}

Segment open_memory(const std::string& address, std::size_t bytes) {
  Segment segment = Segment::open(address);
  if (segment.size() == bytes) return segment;
  throw ConfigError(join_message("shared memory ", segment.path(), " has ", segment.size(),
                                 " bytes, expected ", bytes),
                    "run the same version of Trireme on all ranks");
}

// Rank 0 makes the memory and the others open it through its descriptor. If that is not possible,
// tries again with a name.
Segment share_memory(Rendezvous& call, std::size_t bytes) {
  constexpr std::string_view kRefused = "refused: ";
  std::string reasons;
  for (const Segment::Kind kind : {Segment::Kind::kAnonymous, Segment::Kind::kNamed}) {
    const std::string question = kind == Segment::Kind::kAnonymous ? "memory" : "file";
    Segment segment;
    std::string answer = "ok";
    try {
      if (call.rank() == 0) {
        segment = Segment::create(kind, bytes);
        call.announce(question, segment.address());
      } else if (const std::string address = call.announced(question);
                 address.starts_with(kRefused)) {
        answer = address;
      } else {
        segment = open_memory(address, bytes);
      }
    } catch (const ConfigError& error) {
      answer = join_message(kRefused, error.what());
      if (call.rank() == 0) call.announce(question, answer);
    }
    call.answer(question, answer);
    // Rank 0 collects all answers and announces the result.
    if (call.rank() == 0) {
      for (const std::string& theirs : call.gather_answers(question)) {
        if (answer == "ok" && theirs != "ok") answer = theirs;
      }
      call.announce(question + "/all", answer);
      segment.unlink();
    } else {
      answer = call.announced(question + "/all");
    }
    if (answer == "ok") return segment;
    reasons += join_message(reasons.empty() ? "" : "; then by name: ",
                            answer.substr(std::min(answer.size(), kRefused.size())));
  }
  throw ConfigError(join_message("the ranks cannot share memory: ", reasons),
                    "choose TRIREME_ENGINE=gloo, or fix what is said above");
}

}  // namespace trireme::shm
