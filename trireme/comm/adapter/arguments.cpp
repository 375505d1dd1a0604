// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/arguments.h>

#include <trireme/base/error.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace trireme::comm {
namespace {

using Tensors = Arguments::Tensors;

constexpr const char* kBySize = "size the tensors by the number of ranks";

template <typename... Parts>
void require(bool holds, const char* hint, const Parts&... parts) {
  if (!holds) throw UsageError(join_message(parts...), hint);
}

std::vector<std::int64_t> lengths_of(const Tensors& tensors) {
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& tensor : tensors) lengths.push_back(tensor.numel());
  return lengths;
}

// Returns whether contiguous tensors follow each other in one piece of memory.
bool is_one_block(const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_contiguous() || !tensors[i].is_alias_of(tensors.front())) return false;
    if (i == 0) continue;
    const auto* end =
        static_cast<const std::byte*>(tensors[i - 1].const_data_ptr()) + tensors[i - 1].nbytes();
    if (tensors[i].const_data_ptr() != end) return false;
  }
  return true;
}

Buffer block_of(const Tensors& tensors) {
  const auto lengths = lengths_of(tensors);
  const std::int64_t total = std::reduce(lengths.begin(), lengths.end());
  return Buffer(tensors.front().as_strided({total}, {1}), lengths);
}

Tensors rows_of(const at::Tensor& tensor, const std::vector<std::int64_t>& splits) {
  const at::Tensor whole = tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  Tensors parts;
  std::int64_t begin = 0;
  for (const std::int64_t split : splits) {
    parts.push_back(whole.narrow(0, begin, split));
    begin += split;
  }
  return parts;
}

// Converts numbers of rows to numbers of elements.
std::vector<std::int64_t> lengths_of_rows(const at::Tensor& tensor,
                                          std::vector<std::int64_t> splits) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  for (std::int64_t& split : splits) split *= row;
  return splits;
}

}  // namespace

Arguments::Arguments(OperationKind kind, const EngineConnection& engine)
    : engine_(engine), size_(engine.size()), form_(engine.form()) {
  operation_.kind = kind;
}

const at::Tensor& Arguments::only(const Tensors& tensors) const {
  require(tensors.size() == 1, "make one call per tensor", name_of(operation_.kind), " was given ",
          tensors.size(), " tensors, expected 1");
  return tensors.front();
}

const Tensors& Arguments::only_list(const std::vector<Tensors>& lists) const {
  constexpr const char* kHint = "give one list with a tensor for each rank";
  require(lists.size() == 1, kHint, name_of(operation_.kind), " was given ", lists.size(),
          " lists of tensors, expected 1");
  require(lists.front().size() == static_cast<std::size_t>(size_), kHint, name_of(operation_.kind),
          " was given ", lists.front().size(), " tensors for ", size_, " ranks");
  return lists.front();
}

void Arguments::check_same_type(const at::Tensor& one, const at::Tensor& other) const {
  require(one.scalar_type() == other.scalar_type(), "convert one of the tensors",
          name_of(operation_.kind), " was given dtypes ", one.scalar_type(), " and ",
          other.scalar_type(), ", expected one");
}

void Arguments::check_elements(std::int64_t count, std::int64_t expected, const char* what) const {
  require(count == expected, kBySize, name_of(operation_.kind), " over ", size_, " ranks: ", what,
          " has ", count, " elements, expected ", expected);
}

void Arguments::set_root(std::int64_t root) {
  require(root >= 0 && root < size_, "ranks count within the group", name_of(operation_.kind),
          " over ", size_, " ranks: the root is ", root, ", expected a rank from 0 to ", size_ - 1);
  operation_.peer = static_cast<int>(root);
}

void Arguments::set_peer(int peer, int tag) {
  const bool is_send = operation_.kind == OperationKind::kSend;
  require(peer >= 0 && peer < size_ && peer != engine_.rank(), "name another rank of the group",
          name_of(operation_.kind), " over ", size_, " ranks: the ",
          is_send ? "receiver" : "sender", " is ", peer, ", expected a rank from 0 to ", size_ - 1,
          " other than this one, ", engine_.rank());
  operation_.peer = peer;
  operation_.tag = tag;
}

void Arguments::set_reduction(const c10d::ReduceOp& op, at::ScalarType type) {
  check_reduction(operation_.kind, op, type);
  operation_.reduction = op;
}

void Arguments::check_tensor(const at::Tensor& tensor) const {
  const char* const name = name_of(operation_.kind);
  require(tensor.defined(), "give a tensor", name, " was given an undefined tensor");
  const bool fits = tensor.layout() == at::kStrided &&
                    (form_ == TensorForm::kAny ? !tensor.is_meta() : tensor.device().is_cpu());
  require(fits, "copy it with tensor.cpu() or tensor.to_dense(), or use an engine for its device",
          name, " over ", engine_.name(), " was given a tensor on ", tensor.device(), " of layout ",
          tensor.layout(), ", expected a dense one in ",
          form_ == TensorForm::kAny ? "memory" : "CPU memory");
}

std::vector<std::int64_t> Arguments::check_splits(const at::Tensor& tensor,
                                                  const std::vector<std::int64_t>& splits,
                                                  const char* what) const {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    require(rows % size_ == 0, "give split sizes", name_of(operation_.kind), ": ", what, " has ",
            rows, " rows for ", size_, " ranks, and no split sizes");
    return std::vector<std::int64_t>(static_cast<std::size_t>(size_), rows / size_);
  }
  const std::int64_t sum = std::reduce(splits.begin(), splits.end());
  const bool fits = splits.size() == static_cast<std::size_t>(size_) && sum == rows &&
                    std::ranges::all_of(splits, [](std::int64_t split) { return split >= 0; });
  require(fits, "give one split size of 0 or more per rank, with the rows as their sum",
          name_of(operation_.kind), ": ", what, " has ", rows, " rows for ", size_, " ranks, and ",
          splits.size(), " split sizes that sum to ", sum);
  return splits;
}

at::Tensor Arguments::input_memory(const at::Tensor& tensor) const {
  return form_ == TensorForm::kAny ? tensor : tensor.contiguous();
}

at::Tensor Arguments::output_memory(const at::Tensor& tensor) {
  if (form_ == TensorForm::kAny || tensor.is_contiguous()) return tensor;
  // The engine writes to a contiguous copy. It has the tensor's present values, because some
  // operations also read their output.
  at::Tensor memory = tensor.contiguous();
  operation_.write_back.emplace_back(tensor, memory);
  return memory;
}

void Arguments::set_input(const at::Tensor& tensor, int num_pieces) {
  check_tensor(tensor);
  // Several pieces must be contiguous, because they are found by their place in memory.
  operation_.input =
      Buffer(num_pieces == 1 ? input_memory(tensor) : tensor.contiguous(), num_pieces);
}

void Arguments::set_output(const at::Tensor& tensor, int num_pieces) {
  check_tensor(tensor);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "pass tensor.contiguous()",
          name_of(operation_.kind), " was given an output with sizes ", tensor.sizes(),
          " and strides ", tensor.strides(), ", whose elements share memory");
  require(form_ != TensorForm::kAny || num_pieces == 1 || tensor.is_contiguous(),
          "pass tensor.contiguous()", name_of(operation_.kind), " was given a tensor of sizes ",
          tensor.sizes(), " and strides ", tensor.strides(), ", expected a contiguous one");
  operation_.output = Buffer(output_memory(tensor), num_pieces);
  operation_.results = {tensor};
}

void Arguments::set_inputs(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) check_tensor(tensor);
  if (form_ == TensorForm::kBlock && !is_one_block(tensors)) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    operation_.input = Buffer(at::cat(flat), lengths_of(tensors));
    return;
  }
  Tensors ready;
  for (const at::Tensor& tensor : tensors) ready.push_back(input_memory(tensor));
  operation_.input = form_ == TensorForm::kBlock ? block_of(ready) : Buffer(std::move(ready));
}

void Arguments::set_outputs(const Tensors& tensors) {
  Tensors ready;
  for (const at::Tensor& tensor : tensors) {
    set_output(tensor);  // for its checks; the buffer is replaced below
    ready.push_back(operation_.output.whole());
  }
  operation_.results = tensors;
  if (form_ != TensorForm::kBlock) {
    operation_.output = Buffer(std::move(ready));
  } else if (is_one_block(tensors)) {
    operation_.output = block_of(tensors);
  } else {
    // set_output may have noted copies for single tensors. One block for all of them replaces
    // these.
    operation_.write_back.clear();
    const auto lengths = lengths_of(tensors);
    operation_.output = Buffer(
        at::empty({std::reduce(lengths.begin(), lengths.end())}, tensors[0].options()), lengths);
    for (int rank = 0; rank < size_; ++rank) {
      const at::Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
      operation_.write_back.emplace_back(tensor,
                                         operation_.output.piece(rank).view(tensor.sizes()));
    }
  }
}

void Arguments::set_input_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits) {
  check_tensor(tensor);
  const auto rows = check_splits(tensor, splits, "the input");
  if (form_ == TensorForm::kAny && !tensor.is_contiguous()) {
    operation_.input = Buffer(rows_of(tensor, rows));
  } else {
    operation_.input = Buffer(tensor.contiguous(), lengths_of_rows(tensor, rows));
  }
}

void Arguments::set_output_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits) {
  set_output(tensor);
  const auto rows = check_splits(tensor, splits, "the output");
  if (form_ == TensorForm::kAny && !tensor.is_contiguous()) {
    operation_.output = Buffer(rows_of(tensor, rows));
  } else {
    operation_.output = Buffer(operation_.output.whole(), lengths_of_rows(tensor, rows));
  }
}

}  // namespace trireme::comm
