// SPDX-License-Identifier: Apache-2.0
// Redistributes several tensors at once. Which steps are merged depends on the paths alone, so all
// ranks make the same collectives.
#include <trireme/base/error.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstddef>

namespace trireme::tensor {
namespace {

using Kind = RedistributionStep::Kind;

// A step that sends this many bytes is not worth a copy into a common buffer.
constexpr double kAloneBytes = 64 * 1024;

// A tensor on its path.
struct Journey {
  const Redistribution* path;
  InFlightTensor in_flight;
  std::size_t next = 0;  // index of the next action

  const std::vector<Action>& actions() const { return path->program()->actions; }
  bool has_arrived() const { return next == actions().size(); }
  const Action& action() const { return actions()[next]; }
  bool is_long(std::size_t step) const { return path->steps()[step].bytes_sent >= kAloneBytes; }
};

bool is_local(const Action& action) {
  return action.kind == Kind::kSlice || action.kind == Kind::kToPartial;
}

// Returns true if the next step of a journey and a step of another can be one collective.
bool go_together(const Journey& journey, const Journey& other, std::size_t step) {
  const Action& a = journey.action();
  const Action& b = other.actions()[step];
  return a.kind == b.kind && a.mesh == b.mesh && a.axis == b.axis && a.op == b.op &&
         a.divisor == b.divisor && journey.path->program()->dtype == other.path->program()->dtype &&
         journey.in_flight.tensor.device() == other.in_flight.tensor.device() &&
         !journey.is_long(journey.next) && !other.is_long(step);
}

// Returns true if another tensor has a matching step later on, so that this one should wait for it.
bool is_awaited(const std::vector<Journey>& journeys, const Journey& journey) {
  return std::ranges::any_of(journeys, [&](const Journey& other) {
    for (std::size_t step = other.next + 1; step < other.actions().size(); ++step) {
      if (go_together(journey, other, step)) return true;
    }
    return false;
  });
}

// Returns the first journey for whose next step no other comes later. If every journey would wait
// for another, returns the first one, so that the loop always advances.
const Journey* choose(const std::vector<Journey>& journeys) {
  const Journey* first = nullptr;
  for (const Journey& journey : journeys) {
    if (journey.has_arrived()) continue;
    if (!is_awaited(journeys, journey)) return &journey;
    if (first == nullptr) first = &journey;
  }
  return first;
}

void carry_out_all(std::vector<Journey>& journeys) {
  while (true) {
    for (Journey& journey : journeys) {
      while (!journey.has_arrived() && is_local(journey.action())) {
        execute(journey.action(), journey.in_flight, {});
        ++journey.next;
      }
    }
    const Journey* chosen = choose(journeys);
    if (chosen == nullptr) return;
    std::vector<const Action*> actions;
    std::vector<Journey*> members;
    for (Journey& journey : journeys) {
      if (journey.has_arrived()) continue;
      if (&journey == chosen || go_together(*chosen, journey, journey.next)) {
        members.push_back(&journey);
        actions.push_back(&journey.action());
      }
    }
    std::vector<InFlightTensor*> in_flight;
    for (Journey* member : members) in_flight.push_back(&member->in_flight);
    execute_together(actions, in_flight);
    for (Journey* member : members) ++member->next;
  }
}

}  // namespace

std::vector<at::Tensor> redistribute_together(const std::vector<const Redistribution*>& paths,
                                              const std::vector<at::Tensor>& locals) {
  if (paths.size() != locals.size()) {
    throw UsageError(
        join_message(paths.size(), " redistributions were given ", locals.size(), " local tensors"),
        "give one tensor for each path");
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> results = locals;
  std::vector<Journey> journeys;
  std::vector<std::size_t> places;
  for (std::size_t index = 0; index < paths.size(); ++index) {
    const Redistribution& path = *paths[index];
    if (path.steps().empty()) continue;
    if (!path.program()) path(locals[index]);  // throws: this rank is not in the mesh
    journeys.push_back(
        {.path = &path, .in_flight = begin_transfer(*path.program(), locals[index], {})});
    places.push_back(index);
  }
  carry_out_all(journeys);
  for (std::size_t index = 0; index < journeys.size(); ++index) {
    results[places[index]] =
        finish_transfer(*journeys[index].path->program(), journeys[index].in_flight);
  }
  return results;
}

}  // namespace trireme::tensor
