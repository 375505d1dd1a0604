// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/micro_batches.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/graph/guard.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <exception>

namespace trireme::pipeline {
namespace {

void check_batch(const std::vector<at::Tensor>& batch, std::int64_t micro_batches) {
  if (batch.empty()) {
    throw UsageError("a step of a pipeline was given no tensors", "give it the batch");
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].defined() || batch[i].dim() == 0 || batch[i].size(0) != batch[0].size(0)) {
      throw UsageError(
          join_message("tensor ", i, " of the batch is ",
                       batch[i].defined() ? join_message("of ", batch[i].sizes()) : "undefined",
                       " beside one of ", batch[0].sizes(), "; expected as many rows"),
          "every input is cut along dim 0: expand what all rows share, or make it a buffer");
    }
  }
  if (batch[0].size(0) < micro_batches) {
    throw UsageError(join_message("a batch of ", batch[0].size(0), " rows cannot be cut into ",
                                  micro_batches, " micro-batches"),
                     "give larger batches, or a plan with fewer micro_batches");
  }
}

MicroBatches micro_batches_of(const std::vector<at::Tensor>& batch, std::int64_t count) {
  const std::int64_t rows = batch[0].size(0);
  MicroBatches all;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = rows / count + (i < rows % count ? 1 : 0);
    std::vector<at::Tensor>& micro_batch = all.emplace_back();
    for (const at::Tensor& tensor : batch) {
      micro_batch.push_back(tensor.narrow(0, begin, length));
    }
    begin += length;
  }
  return all;
}

// Throws for a wrong number of micro-batches, and for one without rows.
void check_micro_batches(const MicroBatches& micro_batches, std::int64_t count, bool may_be_fewer) {
  const std::int64_t given = std::ssize(micro_batches);
  if (given == 0 || given > count || (given < count && !may_be_fewer)) {
    throw UsageError(
        join_message("a pipeline was given ", given, " micro-batches, and its plan has ", count),
        "give it plan.micro_batches of them; an evaluation may have fewer");
  }
  for (std::int64_t number = 0; number < given; ++number) {
    const auto& tensors = micro_batches[static_cast<std::size_t>(number)];
    const auto is_missing = [](const at::Tensor& tensor) { return !tensor.defined(); };
    const bool has_rows = !tensors.empty() && std::ranges::none_of(tensors, is_missing) &&
                          tensors[0].dim() > 0 && tensors[0].size(0) > 0;
    if (has_rows) continue;
    throw UsageError(
        join_message("micro-batch ", number, " of a pipeline has no rows, or an undefined tensor"),
        "give every micro-batch its tensors, of one row or more");
  }
}

// Makes a batch on all ranks. An exception on one rank reaches the others in place of the key: the
// keys then differ, and all ranks throw. So a step needs one collective for shapes and errors.
template <typename Make>
SplitBatch made_together(const Make& make, const std::string& function,
                         const torch::nn::Module& module, const comm::Group& group) {
  SplitBatch cut;
  std::exception_ptr failure;
  try {
    cut = make();
    cut.function = function;
    if (!function.empty()) cut.key += join_message("function ", function, " ");
    for (const auto& micro_batch : cut.micro_batches) {
      cut.key += graph::capture_key(module, micro_batch);
    }
  } catch (const std::exception& error) {
    failure = std::current_exception();
    cut.key = message_of(error);
  }
  detail::check_same_text("shapes and mode of a batch", cut.key, group);
  if (failure) std::rethrow_exception(failure);
  return cut;
}

}  // namespace

SplitBatch split_batch(const std::vector<at::Tensor>& batch, const SplitOptions& options,
                       const torch::nn::Module& module, const comm::Group& group) {
  const auto make = [&]() -> SplitBatch {
    if (options.check) options.check();
    check_batch(batch, options.may_be_fewer ? 1 : options.count);
    return {.micro_batches = micro_batches_of(batch, std::min(options.count, batch[0].size(0)))};
  };
  return made_together(make, options.function, module, group);
}

SplitBatch take_batch(const MicroBatches& micro_batches, const SplitOptions& options,
                      const torch::nn::Module& module, const comm::Group& group) {
  const auto make = [&]() -> SplitBatch {
    if (options.check) options.check();
    check_micro_batches(micro_batches, options.count, options.may_be_fewer);
    return {.micro_batches = micro_batches, .key = "as given ", .counts_alike = true};
  };
  return made_together(make, options.function, module, group);
}

// If ranks of one pipeline read different batches, the first stage uses the inputs of one and the
// last stage the labels of another. Only this check would notice.
void check_same_values(const MicroBatches& micro_batches, const comm::Group& group) {
  std::string digests;
  for (std::size_t index = 0; index < micro_batches.size(); ++index) {
    for (std::size_t place = 0; place < micro_batches[index].size(); ++place) {
      digests +=
          join_message("values of tensor ", place, " in micro-batch ", index, " with digest ",
                       detail::digest_of(micro_batches[index][place].contiguous()), "\n");
    }
  }
  detail::check_same_text("batch of one pipeline", digests, group,
                          "give all ranks of one pipeline the same rows: choose them by "
                          "data_part(plan, group), and seed what draws them with its index, not "
                          "with the rank");
}

at::Tensor joined(const std::vector<at::Tensor>& of_micro_batches) {
  if (of_micro_batches.front().dim() == 0) return at::stack(of_micro_batches);
  return of_micro_batches.size() == 1 ? of_micro_batches.front() : at::cat(of_micro_batches);
}

}  // namespace trireme::pipeline
