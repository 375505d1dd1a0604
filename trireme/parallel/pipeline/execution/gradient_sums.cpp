// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/gradient_sums.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>

namespace trireme::pipeline {
namespace {

// Returns a line for each parameter: `2 [4, 3] Float\tweight`. Names come last, because they may
// contain spaces.
std::string describe_parameters(const std::vector<StageCode>& stages) {
  TextWriter text;
  for (const StageCode& code : stages) {
    for (const auto& [name, parameter] : code.parameters) {
      if (!parameter.requires_grad()) continue;
      text << code.stage << " " << parameter.sizes() << " " << parameter.scalar_type() << "\t"
           << name << "\n";
    }
  }
  return text.str();
}

// Wraps this rank's local part as a gradient with the layout of the parameter.
at::Tensor as_gradient_of(const at::Tensor& parameter, const at::Tensor& memory) {
  if (!has_layout(parameter)) return memory;
  return from_local(memory, layout_of(parameter), parameter.sizes());
}

// One use of a parameter, as a rank has announced it.
struct Told {
  std::string kind;  // `[4, 3] Float`
  int stage = 0;
  int rank = 0;
};

// Parses the texts of all ranks. Returns the uses of each parameter, by name, in the order of
// stages.
std::map<std::string, std::vector<Told>> read(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<Told>> all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    TextReader lines(texts[rank]);
    Told told{.kind = {}, .stage = 0, .rank = static_cast<int>(rank)};
    std::string name;
    while (lines >> told.stage && lines.get() == ' ' && std::getline(lines, told.kind, '\t') &&
           std::getline(lines, name)) {
      all[name].push_back(told);
    }
  }
  for (auto& [name, uses] : all) std::ranges::sort(uses, {}, &Told::stage);
  return all;
}

}  // namespace

bool GradientSums::Shared::crosses_ranks() const {
  return std::ranges::any_of(uses, [&](const Use& use) { return use.rank != uses.front().rank; });
}

GradientSums::GradientSums(const Program& program, const std::vector<StageCode>& stages,
                           const comm::Group& group, at::Device device)
    : program_(program), group_(group), buffers_(device) {
  find_shared(comm::all_gather_text(describe_parameters(stages), group));
  for (const StageCode& code : stages) {
    for (const auto& [name, parameter] : code.parameters) {
      if (!parameter.requires_grad()) continue;
      const auto shared = std::ranges::find(shared_, name, &Shared::name);
      if (shared != shared_.end()) shared->parameter = parameter;
      const bool is_new =
          std::ranges::none_of(own_, [&](const at::Tensor& own) { return own.is_same(parameter); });
      if (is_new) own_.push_back(parameter);
    }
  }
}

void GradientSums::find_shared(const std::vector<std::string>& texts) {
  for (const auto& [name, uses] : read(texts)) {
    if (uses.size() == 1) continue;
    Shared shared{.name = name, .parameter = {}, .uses = {}};
    for (const Told& use : uses) {
      if (use.kind != uses.front().kind) {
        throw UsageError(join_message("parameter '", name, "' is ", uses.front().kind, " in stage ",
                                      uses.front().stage, " (rank ", uses.front().rank, ") and ",
                                      use.kind, " in stage ", use.stage, " (rank ", use.rank, ")"),
                         "stages share a parameter of one name; give different ones two names");
      }
      shared.uses.push_back({.stage = use.stage, .rank = use.rank, .tag = num_tags_++, .sum = {}});
    }
    shared_.push_back(std::move(shared));
  }
}

bool GradientSums::is_shared(const at::Tensor& parameter) const {
  return std::ranges::any_of(
      shared_, [&](const Shared& shared) { return shared.parameter.is_same(parameter); });
}

void GradientSums::begin() {
  for (Shared& shared : shared_) {
    for (Use& use : shared.uses) use.sum.reset();
  }
  aside_.clear();
  for (const at::Tensor& parameter : own_) {
    // Without a division, micro-batches can be added to the present gradient. A division would
    // divide that too, so it is stored and added afterwards.
    if (program_.division == GradientDivision::kByWeights || is_shared(parameter)) {
      aside_.take(parameter);
    }
  }
}

GradientSums::OfStage::OfStage(GradientSums& sums, int stage) : sums_(sums), stage_(stage) {
  exchange();
}

GradientSums::OfStage::~OfStage() { exchange(); }

void GradientSums::OfStage::exchange() {
  for (Shared& shared : sums_.shared_) {
    for (Use& use : shared.uses) {
      if (use.stage != stage_) continue;
      std::swap(use.sum, shared.parameter.mutable_grad());
    }
  }
}

// Prepares the sums that other ranks need: makes missing ones zero and redistributes the others to
// the layout of their parameter. Refuses sparse ones.
void GradientSums::complete_own_sums() {
  for (Shared& shared : shared_) {
    if (!shared.parameter.defined() || !shared.crosses_ranks()) continue;
    for (Use& use : shared.uses) {
      if (use.rank != group_.rank()) continue;
      if (!use.sum.defined()) {
        const at::Tensor memory = detail::memory_of(shared.parameter);
        use.sum = as_gradient_of(shared.parameter, at::zeros(memory.sizes(), memory.options()));
      }
      if (use.sum.layout() != at::kStrided) {
        throw UsageError(join_message("the gradient of parameter '", shared.name,
                                      "' is sparse, and stages on other ranks share it"),
                         "make its layer's gradient dense, or put its stages on one rank");
      }
      if (!has_layout(use.sum)) continue;
      use.sum = as_gradient_of(shared.parameter, detail::memory_like(shared.parameter, use.sum));
    }
  }
}

// Sends this rank's sums to all ranks that share the parameter, and receives theirs. All receives
// are started before the first send.
void GradientSums::exchange() {
  complete_own_sums();
  std::vector<comm::Work> works;
  std::vector<Outgoing> outgoing;
  for (Shared& shared : shared_) {
    if (!shared.parameter.defined() || !shared.crosses_ranks()) continue;
    const Shape shape{.sizes = detail::memory_of(shared.parameter).sizes().vec()};
    for (Use& use : shared.uses) {
      if (use.rank == group_.rank()) continue;
      Buffers::Lent lent = buffers_.take(shape, shared.parameter.scalar_type());
      works.push_back(comm::receive_async(lent.message, use.rank, group_, use.tag));
      use.sum = as_gradient_of(shared.parameter, lent.tensor);
    }
  }
  for (Shared& shared : shared_) {
    if (!shared.parameter.defined() || !shared.crosses_ranks()) continue;
    std::set<int> others;
    for (const Use& use : shared.uses) others.insert(use.rank);
    others.erase(group_.rank());
    for (Use& use : shared.uses) {
      if (use.rank != group_.rank()) continue;
      const at::Tensor memory = detail::memory_of(use.sum);
      const Shape shape{.sizes = memory.sizes().vec()};
      for (const int other : others) {
        outgoing.emplace_back(memory, shape);
        works.push_back(comm::send_async(outgoing.back().message(), other, group_, use.tag));
      }
    }
  }
  for (comm::Work& work : works) work.wait();
}

// Adds the sums of all stages into `.grad()`, the last stage first. That is the order in which
// autograd adds them in one process.
void GradientSums::add_up(Shared& shared) const {
  at::Tensor total;
  for (Use& use : std::views::reverse(shared.uses)) {
    if (!use.sum.defined()) continue;
    total = total.defined() ? at::add(total, use.sum) : use.sum;
    use.sum.reset();
  }
  shared.parameter.mutable_grad() = std::move(total);
}

void GradientSums::finish() {
  const c10::NoGradGuard no_graph;
  exchange();
  for (Shared& shared : shared_) {
    if (shared.parameter.defined()) add_up(shared);
  }
  const double weights = program_.sum_of_weights();
  const bool divides = program_.division == GradientDivision::kByWeights && weights != 1;
  for (const at::Tensor& parameter : own_) {
    detail::redistribute_gradient(parameter);
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && divides) {
      const at::Tensor memory = detail::memory_of(gradient);
      const at::Tensor divisor = detail::divisor_for(memory.options(), weights);
      if (memory.layout() == at::kStrided) {
        detail::divide(memory, memory, divisor);
      } else {
        gradient.div_(divisor);
      }
    }
  }
  aside_.add_back();
}

}  // namespace trireme::pipeline
