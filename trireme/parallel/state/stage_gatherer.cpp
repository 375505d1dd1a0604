// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/state/stage_gatherer.h>

#include <trireme/comm/collectives.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/tensor_lines.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/ops/empty.h>

#include <set>
#include <string>

namespace trireme::detail {
StageGatherer::StageGatherer(const Parallelized& parallelized) : group_(parallelized.group()) {
  const std::vector<MeshAxis>& axes = parallelized.plan().mesh;
  // Ranks are numbered in row-major order of the axes: neighbours along one axis differ by the
  // product of the sizes of all later axes.
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (axis->name == kStageAxis) {
      num_stages_ = static_cast<int>(axis->size);
      return;
    }
    stride_ *= static_cast<int>(axis->size);
  }
}

int StageGatherer::stage_rank_of(int rank) const { return rank / stride_ % num_stages_; }

int StageGatherer::beside(int rank, int stage_rank) const {
  return rank + (stage_rank - stage_rank_of(rank)) * stride_;
}

at::Tensor StageGatherer::gather_to(const at::Tensor& tensor, int stage_rank, int root) const {
  if (!has_stages()) return tensor;
  const int giver = beside(root, stage_rank);
  if (giver == root) return tensor;
  if (group_.rank() == giver) comm::send(tensor.cpu().contiguous(), root, group_);
  if (group_.rank() != root) return tensor;
  at::Tensor brought =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
  comm::receive(brought, giver, group_);
  return brought;
}

void StageGatherer::gather_all_to(checkpoint::OptimizerState& state,
                                  const Parallelized& parallelized, int root) const {
  if (!has_stages()) return;
  // Collective over the ranks of each stage, so all of them do this before any of them sends.
  for (auto& [name, tensor] : state.tensors) tensor = full(tensor);
  const std::vector<std::string> texts =
      comm::all_gather_text(to_lines({state.tensors.begin(), state.tensors.end()}), group_);
  const std::vector<std::string> scalars = comm::all_gather_text(state.scalars, group_);
  std::vector<std::string> beside_root;
  for (int stage_rank = 0; stage_rank < num_stages_; ++stage_rank) {
    const int giver = beside(root, stage_rank);
    beside_root.push_back(scalars[static_cast<std::size_t>(giver)]);
    if (giver == root) continue;
    for (const TensorLine& described : parse_lines(texts[static_cast<std::size_t>(giver)])) {
      // Several stages may use a parameter. Only the state of the first one is sent.
      const std::string parameter = checkpoint::parameter_of_state(described.name);
      if (use_of(parallelized, parameter).first_rank != stage_rank) continue;
      if (group_.rank() == giver) {
        comm::send(state.tensors.at(described.name).contiguous(), root, group_);
      } else if (group_.rank() == root) {
        at::Tensor& place = state.tensors[described.name];
        place = at::empty(described.sizes, at::TensorOptions(described.type));
        comm::receive(place, giver, group_);
      }
    }
  }
  if (group_.rank() == root) {
    state.scalars = checkpoint::join_scalars(beside_root, "the optimizers of a pipeline");
  }
}

checkpoint::OptimizerState state_of_stages(const checkpoint::OptimizerState& state,
                                           const Parallelized& parallelized) {
  if (!StageGatherer(parallelized).has_stages()) return state;
  std::set<std::string> names;
  for (const Parallelized::Part& part : parallelized.parts()) {
    if (part.is_own) names.insert(part.name);
  }
  checkpoint::OptimizerState own = {.tensors = {},
                                    .scalars = checkpoint::only_state_of(names, state.scalars)};
  for (const auto& [name, tensor] : state.tensors) {
    if (names.contains(checkpoint::parameter_of_state(name))) own.tensors[name] = tensor;
  }
  return own;
}

}  // namespace trireme::detail
