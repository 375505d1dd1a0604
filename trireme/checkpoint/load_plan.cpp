// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/load_plan.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/save_steps.h>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme::checkpoint {
namespace {

// Returns the name in the module for a name in the checkpoint; empty to skip the tensor.
std::string name_in_module(const std::string& saved, const LoadModelOptions& options) {
  const auto found = options.names.find(saved);
  if (found != options.names.end()) return found->second;
  return options.rename ? options.rename(saved) : saved;
}

}  // namespace

LoadPlan plan_load(const Reader& reader, const std::vector<WantedTensor>& wanted,
                   const LoadModelOptions& options) {
  const std::string source = reader.describe_section("model");
  const Section& section = reader.section("model");
  // The names in the checkpoint by their names in the module. Two tensors must not get the same
  // name.
  std::map<std::string, std::string> saved_by_name;
  for (const auto& [saved, tensor] : section) {
    std::string name = name_in_module(saved, options);
    if (name.empty()) continue;
    const auto [place, is_new] = saved_by_name.emplace(std::move(name), saved);
    if (is_new) continue;
    throw CheckpointError(join_message(source, ": '", place->second, "' and '", saved,
                                       "' would both be '", place->first, "' in the model"),
                          "rename them differently, or one of them to nothing to leave it out");
  }
  // An entry of the table that matches no tensor is probably a misspelt name.
  for (const auto& [saved, name] : options.names) {
    if (section.contains(saved)) continue;
    throw CheckpointError(join_message(source, " has no tensor '", saved, "' to be '", name, "'"),
                          "trireme checkpoint inspect lists what there is");
  }
  std::set<std::string> left_out;  // Tensors that were left out when the checkpoint was saved.
  for (const std::string& saved : reader.left_out("model")) {
    left_out.insert(name_in_module(saved, options));
  }
  LoadPlan plan;
  for (const WantedTensor& one : wanted) {
    const auto found = saved_by_name.find(one.name);
    // A tensor that was deliberately not saved is not missing.
    if (found == saved_by_name.end() && left_out.contains(one.name)) continue;
    if (found == saved_by_name.end()) {
      plan.passed_over.missing.push_back(one.name);
      continue;
    }
    const IndexedTensor& tensor = section.at(found->second);
    if (tensor.shape != one.shape || tensor.dtype != one.dtype) {
      throw CheckpointError(
          join_message(source, " is of another model: '", one.name, "' is ",
                       dtype_name(tensor.dtype), " ", at::IntArrayRef(tensor.shape), " there and ",
                       dtype_name(one.dtype), " ", at::IntArrayRef(one.shape), " in the model"),
          "rename it to nothing to leave it out, or build the model with the options of the saved "
          "one");
    }
    plan.sources[one.name] = found->second;
    saved_by_name.erase(found);
  }
  for (const auto& [name, saved] : saved_by_name) plan.passed_over.unexpected.push_back(saved);
  const auto& [missing, unexpected] = plan.passed_over;
  if (options.strict && !(missing.empty() && unexpected.empty())) {
    throw CheckpointError(
        join_message(source, " is of another model: ", missing.size(), " missing",
                     missing.empty() ? "" : ", first '" + missing.front() + "'", ", ",
                     unexpected.size(), " unexpected",
                     unexpected.empty() ? "" : ", first '" + unexpected.front() + "'"),
        "build the model with the options of the saved one, or load it by load_checkpoint, whose "
        "options `names` and `rename` are for tensors that are called otherwise, and `strict = "
        "false` for passing over the rest");
  }
  return plan;
}

bool has_optimizer(const Reader& reader) {
  return std::ranges::any_of(reader.state().of_ranks,
                             [](const Entries& own) { return own.contains(kOptimizerScalars); });
}

std::string optimizer_scalars(const Reader& reader) {
  std::vector<std::string> by_rank;
  for (const Entries& own : reader.state().of_ranks) {
    const auto found = own.find(kOptimizerScalars);
    if (found != own.end()) by_rank.push_back(found->second);
  }
  if (by_rank.empty()) {
    throw CheckpointError(
        join_message(reader.path().string(), " lists no optimizer: it holds a model alone"),
        "load it without an optimizer, or give a checkpoint that was saved with one");
  }
  return join_scalars(by_rank, reader.path().string());
}

std::string identify(const Reader& reader) {
  const Index& index = reader.index();
  return join_message("epoch ", index.state.epoch, ", step ", index.state.step, ", number ",
                      index.order, ", written at ", index.written_at);
}

void check_same(const std::vector<std::string>& by_rank, const std::filesystem::path& path) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank[0]) continue;
    throw CheckpointError(
        join_message("ranks found different checkpoints in ", path.string(), ": ", by_rank[0],
                     " on rank 0, ", by_rank[rank], " on rank ", rank),
        "put the checkpoint where all hosts see the same files");
  }
}

State state_for_rank(const Reader& reader, int rank) {
  State state = reader.state();
  for (Entries& own : state.of_ranks) own.erase(kOptimizerScalars);
  if (static_cast<std::size_t>(rank) < state.of_ranks.size()) {
    state.own = state.of_ranks[static_cast<std::size_t>(rank)];
  }
  return state;
}

}  // namespace trireme::checkpoint
