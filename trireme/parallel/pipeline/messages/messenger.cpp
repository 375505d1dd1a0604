// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/messages/messenger.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using schedule::Messages;

Messages messages_of(const comm::Group& group, at::Device device, const MessageOptions& options) {
  if (options.outstanding) {
    return {.outstanding = options.outstanding, .matching = Messages::Matching::kInOrder};
  }
  if (group.carrier(device.type()).engine().find("nccl") != std::string::npos) {
    return {.outstanding = 0, .matching = Messages::Matching::kInOrder};
  }
  return {.outstanding = {}, .matching = Messages::Matching::kByTag};
}

Messenger::Messenger(const Program& program, const comm::Group& group, at::Device device,
                     const MessageOptions& options, int first_tag)
    : program_(program), group_(group), buffers_(device) {
  const Messages messages = messages_of(group, device, options);
  outstanding_ = messages.outstanding;
  // With rendezvous in order, a receive that is started early would block the sends behind it.
  receives_ahead_ = outstanding_ == 0 ? 0 : static_cast<std::size_t>(options.receives_ahead);
  const schedule::Schedule& plan = program.schedule;
  // Each ordered pair of ranks counts tags by itself. A channel uses one tag for each of its
  // boundary tensors and micro-batches. All ranks compute the same tags, because they have the same
  // program.
  std::map<std::pair<int, int>, int> next_tags;  // by sending and receiving rank
  for (const schedule::Edge& edge : plan.edges) {
    for (const bool carries_gradients : {false, true}) {
      const Stages stages =
          carries_gradients ? Stages{edge.to, edge.from} : Stages{edge.from, edge.to};
      Channel& channel = channels_[stages];
      for (std::size_t index = 0; index < program.boundary_tensors.size(); ++index) {
        const BoundaryTensor& boundary_tensor = program.boundary_tensors[index];
        if (boundary_tensor.from != edge.from ||
            std::ranges::count(boundary_tensor.to, edge.to) == 0)
          continue;
        if (carries_gradients && !boundary_tensor.has_gradient) continue;
        channel.boundary_tensors.push_back(index);
      }
      const auto ranks = std::pair(plan.rank_of(stages.first), plan.rank_of(stages.second));
      int& next = next_tags.try_emplace(ranks, first_tag).first->second;
      channel.tag = next;
      next += static_cast<int>(channel.boundary_tensors.size()) * plan.micro_batches;
    }
  }
  for (const Action& action : item(plan.ranks, group.rank())) {
    if (action.kind == ActionKind::kReceive) incoming_.push_back({.action = action});
  }
}

const std::vector<std::size_t>& Messenger::boundary_tensors_of(const Action& message) const {
  const bool is_send = message.kind == ActionKind::kSend;
  return channels_
      .at(is_send ? Stages{message.stage, message.peer} : Stages{message.peer, message.stage})
      .boundary_tensors;
}

int Messenger::tag_of(const Channel& channel, std::size_t place, int micro_batch) const {
  return channel.tag + static_cast<int>(place) * program_.schedule.micro_batches + micro_batch;
}

void Messenger::begin() {
  num_started_ = 0;
  num_received_ = 0;
  start_until(receives_ahead_);
}

void Messenger::start(Incoming& incoming) {
  const auto& [kind, stage, micro_batch, peer] = incoming.action;
  const Channel& channel = channels_.at({peer, stage});
  const int rank = program_.schedule.rank_of(peer);
  const auto variant = static_cast<std::size_t>(program_.variant_of(micro_batch));
  incoming.tensors.clear();
  incoming.works.clear();
  for (std::size_t place = 0; place < channel.boundary_tensors.size(); ++place) {
    const BoundaryTensor& boundary_tensor =
        program_.boundary_tensors[channel.boundary_tensors[place]];
    Buffers::Lent lent = buffers_.take(boundary_tensor.shapes[variant], boundary_tensor.dtype);
    incoming.works.push_back(
        comm::receive_async(lent.message, rank, group_, tag_of(channel, place, micro_batch)));
    incoming.tensors.push_back(std::move(lent.tensor));
  }
}

void Messenger::start_until(std::size_t count) {
  for (; num_started_ < std::min(count, incoming_.size()); ++num_started_) {
    start(incoming_[num_started_]);
  }
}

// Keeps as many receives started behind this one as `receives_ahead_` says.
std::vector<at::Tensor> Messenger::receive(const Action& action) {
  start_until(num_received_ + 1 + receives_ahead_);
  Incoming& incoming = incoming_.at(num_received_++);
  TRIREME_CHECK(incoming.action == action);
  for (comm::Work& work : incoming.works) work.wait();
  if (carries_gradients(action)) forget_send(action);
  return std::move(incoming.tensors);
}

void Messenger::send(const Action& action, std::span<const at::Tensor> tensors) {
  const Channel& channel = channels_.at({action.stage, action.peer});
  const int rank = program_.schedule.rank_of(action.peer);
  const auto variant = static_cast<std::size_t>(program_.variant_of(action.micro_batch));
  std::deque<Sending>& queue = sending_[rank];
  // Over the limit, the oldest sends to that rank must complete first.
  while (outstanding_ && !queue.empty() && std::ssize(queue) >= *outstanding_) {
    queue.front().wait();
    queue.pop_front();
  }
  Sending sending{.action = action};
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    const BoundaryTensor& boundary_tensor =
        program_.boundary_tensors[channel.boundary_tensors[place]];
    sending.tensors.emplace_back(tensors[place], boundary_tensor.shapes[variant]);
    sending.works.push_back(comm::send_async(sending.tensors.back().message(), rank, group_,
                                             tag_of(channel, place, action.micro_batch)));
  }
  // With rendezvous, the send completes before the next action of the list.
  if (outstanding_ == 0) {
    sending.wait();
  } else {
    queue.push_back(std::move(sending));
  }
}

bool Messenger::Sending::has_arrived() const {
  return std::ranges::all_of(works, [](const comm::Work& work) { return work.is_completed(); });
}

void Messenger::Sending::wait() {
  for (comm::Work& work : works) work.wait();
  for (Outgoing& tensor : tensors) tensor.release();
}

void Messenger::drop_sent() {
  for (auto& [rank, queue] : sending_) {
    while (!queue.empty() && queue.front().has_arrived()) {
      queue.front().wait();
      queue.pop_front();
    }
  }
}

// Releases the activations whose gradient has arrived. That proves that they have arrived too, even
// if the engine does not report it.
void Messenger::forget_send(const Action& action) {
  std::deque<Sending>& queue = sending_[program_.schedule.rank_of(action.peer)];
  const auto sent = std::ranges::find(
      queue, Action{ActionKind::kSend, action.stage, action.micro_batch, action.peer},
      &Sending::action);
  if (sent == queue.end()) return;
  sent->wait();
  queue.erase(sent);
}

void Messenger::finish() {
  for (auto& [rank, queue] : sending_) {
    for (; !queue.empty(); queue.pop_front()) queue.front().wait();
  }
}

}  // namespace trireme::pipeline
