// SPDX-License-Identifier: Apache-2.0
// Messenger: carries out the sends and receives of a schedule. Each tensor is one message, sent
// from its own memory and received into the memory where the stage reads it, without packing.
// Receives are started some time before their turn.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/pipeline/executor_options.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/pipeline_program.h>
#include <trireme/schedule/walk.h>

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::pipeline {

/// Returns the rules by which the group carries messages of tensors on `device`. NCCL matches sends
/// and receives in order, and a send waits for its receive (rendezvous). Other engines match by tag
/// and carry any number at once. If `options.outstanding` is set, messages match in order, because
/// a send over the limit waits for the oldest one.
schedule::Messages messages_of(const comm::Group& group, at::Device device,
                               const MessageOptions& options);

/// Sends and receives the boundary tensors of one rank. Not thread-safe.
class Messenger {
 public:
  /// @param program must outlive this object.
  /// @param first_tag the first message tag to use. Smaller tags belong to another user of the
  /// group.
  Messenger(const Program& program, const comm::Group& group, at::Device device,
            const MessageOptions& options, int first_tag);

  /// Returns the boundary tensors that a send or receive carries, as indices into
  /// Program::boundary_tensors, in the order of its tensors.
  const std::vector<std::size_t>& boundary_tensors_of(const schedule::Action& message) const;

  /// Begins a step and starts its first receives. Does not block.
  void begin();
  /// Starts the sends of an action. The tensors must not change until they have arrived. Blocks
  /// only if there is a limit on outstanding sends.
  void send(const schedule::Action& action, std::span<const at::Tensor> tensors);
  /// Waits for the tensors of `action`, which must be this rank's next receive. Throws CommError.
  std::vector<at::Tensor> receive(const schedule::Action& action);
  /// Releases tensors whose sends have completed. Does not block.
  void drop_sent();
  /// Waits until all sends have completed.
  void finish();

  /// Returns the number of buffers made so far.
  std::size_t num_buffers() const noexcept { return buffers_.size(); }

 private:
  using Stages = std::pair<int, int>;  // sender, receiver
  struct Channel {
    std::vector<std::size_t> boundary_tensors;
    int tag = 0;  // of its first boundary tensor in micro-batch 0
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
  std::map<int, std::deque<Sending>> sending_;  // by receiving rank, the oldest first
};

}  // namespace trireme::pipeline
