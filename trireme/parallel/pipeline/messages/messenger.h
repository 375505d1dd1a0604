// SPDX-License-Identifier: Apache-2.0
// The messages of a step: what each send and receive of a schedule carries, and when it is under
// way. Each tensor is a message of its own, sent from where it lies and received where it is used.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>
#include <trireme/schedule/walk.h>

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::pipeline {

struct MessageOptions {
  /// Most sends to one rank that it has not received, before the next one waits; nothing: what the
  /// group's engine does.
  std::optional<int> outstanding{};
  /// How many receives are started before their turn. Each may need a buffer more.
  int receives_ahead = 2;
};

/// How the engine of a group carries messages: any number at once, by tag; NCCL by rendezvous, in
/// order. A limit on those outstanding counts on order, because the oldest is waited for.
schedule::Messages messages_of(const comm::Group& group, const MessageOptions& options);

/// Not thread-safe.
class Messenger {
 public:
  /// @param first_tag tags below it are another's; not `program`, which must outlive this.
  Messenger(const Program& program, const comm::Group& group, at::Device device,
            const MessageOptions& options, int first_tag);

  /// The boundary tensors, by their places in the program, that an action carries; in the order of
  /// its tensors.
  const std::vector<std::size_t>& boundary_tensors_of(const schedule::Action& message) const;

  /// Begins a step: starts its first receives.
  void begin();
  /// Starts sends; tensors must not change until they have arrived.
  void send(const schedule::Action& action, std::span<const at::Tensor> tensors);
  /// Waits for the tensors of this rank's next receive, which is `action`. Throws CommError.
  std::vector<at::Tensor> receive(const schedule::Action& action);
  /// Lets go of what has been sent.
  void drop_sent();
  /// Waits until everything has been sent.
  void finish();

  std::size_t num_buffers() const noexcept { return buffers_.size(); }

 private:
  using Stages = std::pair<int, int>;  // sender, receiver
  struct Channel {
    std::vector<std::size_t> boundary_tensors;
    int tag = 0;  // of the first crossing and micro-batch
  };
  struct Incoming {
    schedule::Action action;
    std::vector<at::Tensor> tensors{};
    std::vector<comm::Work> works{};
  };
  struct Sending {
    schedule::Action action;
    std::vector<Outgoing> tensors{};
    std::vector<comm::Work> works{};

    bool has_arrived() const;
    void wait();
  };

  int tag_of(const Channel& channel, std::size_t place, int micro_batch) const;
  void start(Incoming& incoming);
  void start_until(std::size_t count);
  void forget_send(const schedule::Action& action);

  const Program& program_;
  comm::Group group_;
  Buffers buffers_;
  std::optional<int> outstanding_;
  std::size_t receives_ahead_;
  std::map<Stages, Channel> channels_;
  std::vector<Incoming> incoming_;  // in the order of this rank's list
  std::size_t num_started_ = 0;
  std::size_t num_received_ = 0;
  std::map<int, std::deque<Sending>> sending_;  // by rank, the oldest first
};

}  // namespace trireme::pipeline
