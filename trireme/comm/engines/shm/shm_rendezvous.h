// SPDX-License-Identifier: Apache-2.0
// Rendezvous: what the ranks of a group exchange before they share memory, and how they come to
// share it.
#pragma once

#include <trireme/comm/engines/shm/member.h>
#include <trireme/comm/engines/shm/segment.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace trireme::shm {

/// Lets ranks that do not share memory yet exchange short texts. In Trireme this is a c10d::Store.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  /// Sets the value of a key.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns the value of a key. Blocks until it is there; throws after a deadline of its own.
  virtual std::string get(const std::string& key) = 0;
  /// Returns at once whether the key has a value.
  virtual bool has(const std::string& key) = 0;
};

/// One rank's part of a rendezvous: a series of questions that every rank answers. A rank that does
/// not answer in time is named on all other ranks. That includes ranks which wait for a rank that
/// itself waits for it. Not thread-safe.
class Rendezvous {
 public:
  /// Keeps references to `store` and `options`.
  Rendezvous(RendezvousStore& store, int rank, int size, const Options& options)
      : store_(store), rank_(rank), size_(size), options_(options) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Publishes this rank's answer to a question.
  void answer(const std::string& question, const std::string& text);
  /// Returns the answers of all ranks, by rank. Throws CommError with the ranks that gave none.
  std::vector<std::string> gather_answers(const std::string& question);
  /// Publishes this rank's answer and returns those of all ranks.
  std::vector<std::string> exchange_answers(const std::string& question, const std::string& text) {
    answer(question, text);
    return gather_answers(question);
  }

  /// Publishes a text for all ranks. For rank 0.
  void announce(const std::string& key, const std::string& text);
  /// Returns the text that rank 0 announces. Throws like `gather_answers`.
  std::string announced(const std::string& key);

 private:
  std::string get(const std::string& key, int from);
  std::vector<int> behind(int from);

  RendezvousStore& store_;
  int rank_;
  int size_;
  const Options& options_;
  std::vector<std::string> questions_;  // that this rank has answered
};

/// Returns whether there are more ranks than cores that they may use, all together. Collective.
bool have_more_ranks_than_cores(Rendezvous& call);

/// Returns memory of `bytes` bytes that rank 0 has made and all ranks have mapped. It is opened by
/// name if the descriptors of another process cannot be opened. Collective. Throws ConfigError on
/// all ranks, with the reasons.
Segment share_memory(Rendezvous& call, std::size_t bytes);

/// Opens memory that another rank of the group has made. Throws ConfigError if it has another size.
Segment open_memory(const std::string& address, std::size_t bytes);

}  // namespace trireme::shm
