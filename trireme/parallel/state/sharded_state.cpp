// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/sharded_state.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/state/stage_gatherer.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

namespace trireme {
namespace {

using checkpoint::FlatRange;
using checkpoint::Reader;
using checkpoint::Slice;
using checkpoint::TensorPart;
using Part = Parallelized::Part;

constexpr auto kModel = "model";
constexpr auto kOptimizer = "optimizer";

bool has_all(const Part& part) { return part.tensor.is_same(part.parameter); }

// Returns the elements of the parameter that the part holds. Of a distributed parameter, the
// offsets count within this rank's box.
Slice slice_of(const Part& part) {
  const at::Tensor memory = detail::memory_of(part.parameter);  // does not gather the parameter
  FlatRange range{.begin = part.offset,
                  .end = part.offset + part.tensor.numel(),
                  .order = checkpoint::memory_order(memory.sizes(), memory.strides())};
  if (!has_layout(part.parameter)) return range;
  Slice here = checkpoint::slice_of(part.parameter.sizes(), layout_of(part.parameter));
  if (auto* box = std::get_if<checkpoint::Box>(&here)) {
    return checkpoint::BoxRange{.box = std::move(*box), .range = std::move(range)};
  }
  const std::int64_t before = std::get<FlatRange>(here).begin;
  range.begin += before;
  range.end += before;
  return range;
}

// The ranks of a plan. It knows which of them hold the same elements of a tensor.
class Ranks {
 public:
  explicit Ranks(const Parallelized& parallelized)
      : grid_{.axes = parallelized.plan().mesh, .rank = parallelized.group().rank()},
        size_(parallelized.group().size()),
        stages_(parallelized) {
    if (grid_.axes.empty()) grid_.axes.push_back({kDataAxis, size_});
    const auto found = std::ranges::find(grid_.axes, kDataAxis, &MeshAxis::name);
    if (found == grid_.axes.end()) return;
    data_axis_ = found - grid_.axes.begin();
    const std::int64_t asked_for = parallelized.plan().shard_ranks;
    cut_among_ = asked_for == 0 ? found->size : asked_for;
  }

  const checkpoint::RankGrid& grid() const noexcept { return grid_; }

  // Returns all ranks that hold the same part of a parameter that ZeRO shards.
  std::vector<int> holders_of(const Part& part) const {
    std::vector<int> holders(static_cast<std::size_t>(size_));
    std::iota(holders.begin(), holders.end(), 0);
    if (has_layout(part.parameter)) {
      holders = checkpoint::holders_of(part.name, layout_of(part.parameter), grid_);
    }
    const std::int64_t own = place_of(grid_.rank);
    std::erase_if(holders,
                  [&](int rank) { return place_of(rank) != own || !stages_.has_own_stages(rank); });
    return holders;
  }

  // Sets the holders of a tensor that ZeRO does not shard. Ranks with other stages do not hold it.
  void set_holders(TensorPart& part) const {
    if (!stages_.has_stages()) return;
    if (!std::exchange(part.is_replicated, false)) {
      std::erase_if(part.holders, [&](int rank) { return !stages_.has_own_stages(rank); });
      return;
    }
    for (int rank = 0; rank < size_; ++rank) {
      if (stages_.has_own_stages(rank)) part.holders.push_back(rank);
    }
  }

 private:
  std::int64_t place_of(int rank) const {
    if (data_axis_ < 0) return 0;
    return checkpoint::coordinate_in(grid_, rank)[static_cast<std::size_t>(data_axis_)] %
           cut_among_;
  }

  checkpoint::RankGrid grid_;
  std::int64_t size_ = 1;
  detail::StageGatherer stages_;
  std::ptrdiff_t data_axis_ = -1;
  std::int64_t cut_among_ = 1;
};

// Returns the part to save of a tensor that is sharded like a parameter: the parameter itself, or a
// state of its optimizer.
TensorPart cut_like(const Part& part, const Ranks& ranks, const char* section, std::string name,
                    const at::Tensor& tensor) {
  if (has_all(part)) {
    TensorPart whole =
        checkpoint::part_of(section, std::move(name), checkpoint::completed(tensor), ranks.grid());
    ranks.set_holders(whole);
    return whole;
  }
  return {.section = section,
          .name = std::move(name),
          .shape = part.parameter.sizes().vec(),
          .slice = slice_of(part),
          .local = tensor.detach(),
          .holders = ranks.holders_of(part),
          // Gathering parameters writes to the memory of the parts.
          .changes_any_time = section == std::string_view(kModel)};
}

// Returns the parts of the parameters that this rank uses, by name.
std::map<std::string, Part> by_name(const Parallelized& parallelized) {
  std::map<std::string, Part> parts;
  for (Part& part : parallelized.parts()) {
    if (part.is_own) parts.emplace(part.name, part);
  }
  return parts;
}

// Returns the names of parameters of which this rank has elements. It counts no steps of others.
std::set<std::string> stepped_here(const std::map<std::string, Part>& parts) {
  std::set<std::string> names;
  for (const auto& [name, part] : parts) {
    if (has_all(part) || part.tensor.numel() > 0) names.insert(name);
  }
  return names;
}

// Reads the values of a part. If ZeRO does not shard the parameter, the result is shaped like it.
at::Tensor read_part(Reader& reader, const char* section, const std::string& saved_name,
                     const Part& part) {
  return has_all(part) ? checkpoint::read_like(reader, section, saved_name, part.parameter)
                       : reader.read(section, saved_name, slice_of(part));
}

// Returns the buffers that have memory here, by name. Parameters are listed by parts().
std::map<std::string, at::Tensor> buffers_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> buffers;
  for (const auto& item : module.named_buffers()) {
    const bool has_memory = item.value().defined() && !detail::is_deferred(item.value());
    if (has_memory) buffers.emplace(item.key(), item.value());
  }
  return buffers;
}

std::vector<checkpoint::WantedTensor> wanted_of(const std::map<std::string, Part>& parts,
                                                const std::map<std::string, at::Tensor>& buffers) {
  std::vector<checkpoint::WantedTensor> wanted;
  for (const auto& [name, part] : parts) {
    wanted.push_back({.name = name,
                      .shape = part.parameter.sizes().vec(),
                      .dtype = part.parameter.scalar_type()});
  }
  for (const auto& [name, buffer] : buffers) {
    wanted.push_back({.name = name, .shape = buffer.sizes().vec(), .dtype = buffer.scalar_type()});
  }
  return wanted;
}

// Returns second names of parameters that modules share, mapped to their first names. Checkpoints
// contain such parameters under each name.
std::map<std::string, std::string> second_names(const Parallelized& parallelized,
                                                const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, std::string> first;
  std::set<std::string> known;
  for (const Part& part : parallelized.parts()) {
    first.emplace(part.parameter.unsafeGetTensorImpl(), part.name);
    known.insert(part.name);
  }
  std::map<std::string, std::string> second;
  for (const auto& item : module.named_parameters()) {
    const auto found = first.find(item.value().unsafeGetTensorImpl());
    if (found != first.end() && !known.contains(item.key())) second[item.key()] = found->second;
  }
  return second;
}

// Returns the names of parameters and buffers that belong to other stages.
std::set<std::string> names_elsewhere(const Parallelized& parallelized,
                                      const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const Part& part : parallelized.parts()) {
    if (!part.is_own) names.insert(part.name);
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && detail::is_deferred(item.value())) names.insert(item.key());
  }
  return names;
}

// Returns the names that this rank does not load: those of other stages, and second names.
std::set<std::string> names_passed_over(const Parallelized& parallelized,
                                        const torch::nn::Module& module) {
  std::set<std::string> names = names_elsewhere(parallelized, module);
  for (const auto& [name, first] : second_names(parallelized, module)) names.insert(name);
  return names;
}

// Returns options that leave out the given names of the module, and are otherwise like `options`.
checkpoint::LoadModelOptions but_for(const std::set<std::string>& names,
                                     checkpoint::LoadModelOptions options) {
  for (auto& [saved, name] : options.names) {
    if (names.contains(name)) name.clear();
  }
  options.rename = [names, rename = std::move(options.rename)](const std::string& saved) {
    const std::string name = rename ? rename(saved) : saved;
    return names.contains(name) ? std::string() : name;
  };
  return options;
}

struct Values {
  std::map<std::string, at::Tensor> parameters;  // shaped like the parts
  std::map<std::string, at::Tensor> buffers;
  checkpoint::LoadedModel passed_over;
};

Values read_values(Reader& reader, const checkpoint::LoadModelOptions& options,
                   const std::map<std::string, Part>& parts,
                   const std::map<std::string, at::Tensor>& buffers) {
  checkpoint::LoadPlan plan = checkpoint::plan_load(reader, wanted_of(parts, buffers), options);
  Values values;
  for (const auto& [name, saved] : plan.sources) {
    const auto part = parts.find(name);
    if (part == parts.end()) {
      values.buffers[name] = checkpoint::read_like(reader, kModel, saved, buffers.at(name));
    } else {
      values.parameters[name] = read_part(reader, kModel, saved, part->second);
    }
  }
  values.passed_over = std::move(plan.passed_over);
  return values;
}

void put_values(const Values& values, Parallelized& parallelized,
                const std::map<std::string, Part>& parts,
                const std::map<std::string, at::Tensor>& buffers) {
  const torch::NoGradGuard no_grad;
  parallelized.expect_parts_to_change();
  for (const auto& [name, tensor] : values.parameters) {
    parts.at(name).tensor.detach().copy_(tensor);
  }
  for (const auto& [name, tensor] : values.buffers) buffers.at(name).detach().copy_(tensor);
}

// Reads the options and state of the optimizer that this rank needs.
checkpoint::OptimizerState read_optimizer(Reader& reader, const std::map<std::string, Part>& parts,
                                          const std::set<std::string>& passed_over) {
  const auto names = stepped_here(parts);
  checkpoint::OptimizerState state;
  state.scalars = checkpoint::only_state_of(names, checkpoint::optimizer_scalars(reader));
  for (const auto& [name, tensor] : reader.section(kOptimizer)) {
    const auto part = parts.find(checkpoint::parameter_of_state(name));
    if (passed_over.contains(checkpoint::parameter_of_state(name))) continue;
    if (part == parts.end()) {
      throw CheckpointError(join_message(reader.path().string(), " has '", name,
                                         "', state of a parameter that the module has not"),
                            "load it into the model that was saved");
    }
    if (!names.contains(part->first)) continue;
    if (tensor.shape != part->second.parameter.sizes().vec()) {
      throw CheckpointError(join_message(reader.path().string(), " has '", name, "' of shape ",
                                         at::IntArrayRef(tensor.shape), ", and its parameter has ",
                                         part->second.parameter.sizes()),
                            "load it into the model that was saved");
    }
    state.tensors[name] = read_part(reader, kOptimizer, name, part->second);
  }
  return state;
}

}  // namespace

std::vector<TensorPart> parts_to_save(const Parallelized& parallelized, ConstModuleRef given,
                                      torch::optim::Optimizer* optimizer,
                                      checkpoint::State& state) {
  const torch::nn::Module& module = *given;
  const auto parts = by_name(parallelized);
  const Ranks ranks(parallelized);
  std::vector<TensorPart> all;
  // Each stage shards a parameter of several stages differently. Only the first one's is saved.
  const auto is_first = [&](const std::string& name) {
    return detail::use_of(parallelized, name).is_first;
  };
  for (const auto& [name, part] : parts) {
    if (is_first(name)) all.push_back(cut_like(part, ranks, kModel, name, part.tensor));
  }
  for (const auto& [name, first] : second_names(parallelized, module)) {
    if (!is_first(first)) continue;
    const Part& part = parts.at(first);
    all.push_back(cut_like(part, ranks, kModel, name, part.tensor));
  }
  for (const auto& [name, buffer] : buffers_of(module)) {
    TensorPart part =
        checkpoint::part_of(kModel, name, checkpoint::completed(buffer), ranks.grid());
    // Buffers may differ along data. Those of the first rank are saved.
    if (!is_first(name)) continue;
    ranks.set_holders(part);
    const int first = part.is_replicated ? 0 : part.holders.front();
    if (first != ranks.grid().rank) continue;
    part.is_replicated = false;
    part.holders.clear();
    part.changes_any_time = true;
    all.push_back(std::move(part));
  }
  if (optimizer == nullptr) return all;
  const PartialState content = partial_state(parallelized, module, *optimizer);
  for (const auto& [name, tensor] : content.optimizer.tensors) {
    const auto part = parts.find(checkpoint::parameter_of_state(name));
    if (part == parts.end() || !is_first(part->first)) continue;
    all.push_back(cut_like(part->second, ranks, kOptimizer, name, tensor));
  }
  state.own[checkpoint::kOptimizerScalars] =
      checkpoint::only_state_of(stepped_here(parts), content.optimizer.scalars);
  return all;
}

std::filesystem::path save_checkpoint(const checkpoint::SaveOptions& options,
                                      const Parallelized& parallelized, ConstModuleRef given,
                                      torch::optim::Optimizer* optimizer,
                                      const checkpoint::State& state) {
  const torch::nn::Module& module = *given;
  const auto make = [&] {
    checkpoint::Content content{.parts = {}, .state = state};
    content.parts = parts_to_save(parallelized, module, optimizer, content.state);
    return content;
  };
  return checkpoint::save_parts(options, make, parallelized.group());
}

checkpoint::State load_checkpoint(const std::filesystem::path& path, Parallelized& parallelized,
                                  ModuleRef given, torch::optim::Optimizer* optimizer) {
  torch::nn::Module& module = *given;
  const comm::Group& group = parallelized.group();
  const auto parts = by_name(parallelized);
  const auto buffers = buffers_of(module);
  const auto passed_over = names_passed_over(parallelized, module);
  checkpoint::State state;
  Values values;
  checkpoint::OptimizerState optimizer_content;
  const auto found = checkpoint::agree(group, "cannot load", [&] {
    Reader reader(path);
    values = read_values(reader, but_for(passed_over, {}), parts, buffers);
    if (optimizer != nullptr) optimizer_content = read_optimizer(reader, parts, passed_over);
    state = checkpoint::state_for_rank(reader, group.rank());
    return checkpoint::identify(reader);
  });
  checkpoint::check_same(found, path);
  // Errors about the optimizer must occur before anything is changed. They occur on all ranks
  // alike, because all have the same parameter groups.
  if (optimizer != nullptr) {
    load_optimizer_parts(optimizer_content, parallelized, *optimizer, path.string());
  }
  put_values(values, parallelized, parts, buffers);
  return state;
}

checkpoint::LoadedModel load_model(const std::filesystem::path& path, Parallelized& parallelized,
                                   ModuleRef given, const checkpoint::LoadModelOptions& options) {
  torch::nn::Module& module = *given;
  const auto parts = by_name(parallelized);
  const auto buffers = buffers_of(module);
  const std::set<std::string> passed_over = names_passed_over(parallelized, module);
  const auto own = passed_over.empty() ? options : but_for(passed_over, options);
  Values values;
  const auto found = checkpoint::agree(parallelized.group(), "cannot load", [&] {
    Reader reader(path);
    values = read_values(reader, own, parts, buffers);
    return checkpoint::identify(reader);
  });
  checkpoint::check_same(found, path);
  put_values(values, parallelized, parts, buffers);
  return values.passed_over;
}

}  // namespace trireme
