// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/tensor/redistribution/partials.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

// Executes the actions of a program: slices, neutral elements, and collectives with their buffers.
namespace trireme::tensor {
namespace {

using Kind = RedistributionStep::Kind;

void make_contiguous(InFlightTensor& in_flight) {
  if (in_flight.tensor.is_contiguous()) return;
  in_flight.tensor = in_flight.tensor.contiguous();
  in_flight.is_own = true;
}

at::Tensor empty_like(const InFlightTensor& in_flight, at::IntArrayRef sizes) {
  return at::empty(sizes, in_flight.tensor.options());
}

void slice(const Action& action, InFlightTensor& in_flight) {
  if (action.is_flat) make_contiguous(in_flight);
  const at::Tensor& tensor = in_flight.tensor;
  const Sizes strides = action.is_flat ? c10::contiguous_strides(action.sizes)
                                       : Sizes(tensor.strides().begin(), tensor.strides().end());
  const std::int64_t step = action.is_flat ? 1 : strides[static_cast<std::size_t>(action.dim)];
  // An empty part may begin beyond the end of the memory.
  const std::int64_t offset = c10::multiply_integers(action.sizes) == 0 ? 0 : action.offset * step;
  in_flight.tensor = alias(tensor, action.sizes, strides, tensor.storage_offset() + offset);
}

void to_partial(const Action& action, InFlightTensor& in_flight) {
  make_contiguous(in_flight);
  if (action.keeps_value) {
    if (!in_flight.is_own) in_flight.tensor = in_flight.tensor.clone();
    in_flight.is_own = true;
    return;
  }
  const at::Tensor result =
      at::full(action.sizes, neutral_element(action.partial, in_flight.tensor.scalar_type()),
               in_flight.tensor.options());
  copy_from_slots(result, action.receive, in_flight.tensor, 0, 0);
  in_flight = {.tensor = result, .is_own = true};
}

// Bools are reduced as bytes, which every engine can reduce.
at::Tensor numbers(const Action& action, const at::Tensor& tensor) {
  return action.reduces_bytes ? tensor.view(at::kByte) : tensor;
}

bool reduces(const Action& action) {
  return action.kind == Kind::kAllReduce || action.kind == Kind::kReduceScatter;
}

void communicate(const Action& action, const at::Tensor& received, const at::Tensor& sent,
                 std::string_view label) {
  switch (action.kind) {
    case Kind::kAllGather:
      comm::all_gather(received, sent, action.group, label);
      break;
    case Kind::kAllToAll:
      comm::all_to_all(received, sent, action.group, label);
      break;
    case Kind::kReduceScatter:
      comm::reduce_scatter(numbers(action, received), numbers(action, sent), action.group,
                           action.op, label);
      break;
    default:
      comm::all_reduce(numbers(action, received), action.group, action.op, label);
      break;
  }
  if (action.divisor == 1) return;
  if (at::isIntegralType(received.scalar_type(), true)) {
    received.div_(action.divisor, "trunc");
  } else {
    received.div_(action.divisor);
  }
}

// The number of slots in the buffers of a collective.
std::int64_t slots_sent(const Action& action) {
  return static_cast<std::int64_t>(action.send.size());
}
std::int64_t slots_received(const Action& action) {
  return static_cast<std::int64_t>(action.receive.size());
}

at::Tensor buffer_to_send(const Action& action, const InFlightTensor& in_flight,
                          std::int64_t elements, bool has_gaps) {
  // Gaps that are summed are zeros: leftover values could overflow and look like an error.
  return reduces(action) && has_gaps ? at::zeros({elements}, in_flight.tensor.options())
                                     : empty_like(in_flight, {elements});
}

void all_reduce(const Action& action, InFlightTensor& in_flight, std::string_view label) {
  if (!in_flight.is_own) in_flight.tensor = in_flight.tensor.clone();
  in_flight.is_own = true;
  communicate(action, in_flight.tensor, in_flight.tensor, label);
}

// Runs a collective: copies blocks into the send buffer unless the tensor is the buffer, and copies
// the received blocks into the result unless the buffer is the result.
void exchange(const Action& action, InFlightTensor& in_flight, std::string_view label) {
  if (action.slot == 0) {
    in_flight = {.tensor = empty_like(in_flight, action.sizes), .is_own = true};
    return;
  }
  make_contiguous(in_flight);
  if (action.kind == Kind::kAllReduce) return all_reduce(action, in_flight, label);

  at::Tensor sent = in_flight.tensor;
  if (!action.sends_in_place) {
    sent = buffer_to_send(action, in_flight, action.slot * slots_sent(action), action.has_gaps);
    copy_to_slots(sent, 0, action.slot, in_flight.tensor, action.send);
  }
  const at::Tensor received = action.receives_in_place
                                  ? empty_like(in_flight, action.sizes)
                                  : empty_like(in_flight, {action.slot * slots_received(action)});
  communicate(action, received, sent, label);
  in_flight.is_own = true;
  if (action.receives_in_place) {
    in_flight.tensor = received;
  } else if (action.kind == Kind::kReduceScatter) {
    in_flight.tensor = alias(received, action.sizes, c10::contiguous_strides(action.sizes), 0);
  } else {
    in_flight.tensor = empty_like(in_flight, action.sizes);
    copy_from_slots(in_flight.tensor, action.receive, received, 0, action.slot);
  }
}

}  // namespace

at::Tensor alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                 std::int64_t offset) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(offset);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

void check_local(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                 const Layout& layout, std::string_view label) {
  if (local.defined() && local.sizes() == sizes && local.scalar_type() == dtype) return;
  throw UsageError(
      join_message(
          "redistribution of ", label.empty() ? "a tensor" : label, " from ", layout.to_string(),
          " was given ",
          local.defined()
              ? join_message("a local tensor of sizes ", local.sizes(), " of ", local.scalar_type())
              : std::string("an undefined tensor"),
          ", expected ", sizes, " of ", dtype, " at coordinate ", layout.mesh().coordinate()),
      "pass what this rank holds of the tensor, of the sizes that local_sizes() gives");
}

InFlightTensor begin_transfer(const Program& program, const at::Tensor& local,
                              std::string_view label) {
  check_local(local, program.local_sizes, program.dtype, program.from, label);
  // Collectives transfer memory, so a lazy conjugation or negation has to be applied first.
  const bool is_lazy = local.is_conj() || local.is_neg();
  const at::Tensor plain = is_lazy ? local.resolve_conj().resolve_neg() : local;
  if (program.format == at::MemoryFormat::Contiguous) {
    return {.tensor = plain, .is_own = !plain.is_same(local)};
  }
  const at::Tensor ordered = plain.contiguous(program.format);
  const Sizes sizes = in_order(program.local_sizes, program.order);
  return {.tensor = alias(ordered, sizes, c10::contiguous_strides(sizes), ordered.storage_offset()),
          .is_own = !ordered.is_same(local)};
}

void execute(const Action& action, InFlightTensor& in_flight, std::string_view label) {
  switch (action.kind) {
    case Kind::kSlice:
      return slice(action, in_flight);
    case Kind::kToPartial:
      return to_partial(action, in_flight);
    default:
      return exchange(action, in_flight, label);
  }
}

// Each slot holds the blocks of all tensors, one tensor after the other, at multiples of 64 bytes.
void execute_together(const std::vector<const Action*>& actions,
                      const std::vector<InFlightTensor*>& in_flight) {
  if (actions.size() == 1) return execute(*actions.front(), *in_flight.front(), {});
  constexpr std::int64_t kAlignment = 64;
  const Action& first = *actions.front();
  const auto item = static_cast<std::int64_t>(in_flight.front()->tensor.element_size());
  // Every tensor begins at the same alignment as one from LibTorch's allocator.
  const std::int64_t aligned = kAlignment / item;
  std::vector<std::int64_t> begins;
  std::int64_t slot = 0;
  bool has_gaps = false;
  for (const Action* action : actions) {
    begins.push_back(slot);
    const std::int64_t end = slot + action->slot;
    slot = (end + aligned - 1) / aligned * aligned;
    has_gaps = has_gaps || action->has_gaps || slot != end;
  }
  // No rank has anything to send, so that no collective is needed.
  if (slot == 0) {
    for (std::size_t index = 0; index < actions.size(); ++index) {
      exchange(*actions[index], *in_flight[index], {});
    }
    return;
  }
  const at::Tensor sent =
      buffer_to_send(first, *in_flight.front(), slot * slots_sent(first), has_gaps);
  for (std::size_t index = 0; index < actions.size(); ++index) {
    make_contiguous(*in_flight[index]);
    copy_to_slots(sent, begins[index], slot, in_flight[index]->tensor, actions[index]->send);
  }
  const at::Tensor received = first.kind == Kind::kAllReduce
                                  ? sent
                                  : empty_like(*in_flight.front(), {slot * slots_received(first)});
  communicate(first, received, sent, {});
  for (std::size_t index = 0; index < actions.size(); ++index) {
    const Action& action = *actions[index];
    at::Tensor result;
    if (reduces(action)) {
      result = alias(received, action.sizes, c10::contiguous_strides(action.sizes), begins[index]);
    } else {
      result = empty_like(*in_flight[index], action.sizes);
      copy_from_slots(result, action.receive, received, begins[index], slot);
    }
    *in_flight[index] = {.tensor = result, .is_own = true};
  }
}

at::Tensor finish_transfer(const Program& program, const InFlightTensor& in_flight) {
  at::Tensor result = in_flight.tensor;
  if (!result.is_non_overlapping_and_dense()) result = result.contiguous();
  if (program.format == at::MemoryFormat::Contiguous) return result;
  const Sizes strides = c10::contiguous_strides(result.sizes());
  Sizes by_dim(strides.size());
  for (std::size_t position = 0; position < strides.size(); ++position) {
    by_dim[static_cast<std::size_t>(program.order[position])] = strides[position];
  }
  return alias(result, program.result_sizes, by_dim, result.storage_offset());
}

}  // namespace trireme::tensor
