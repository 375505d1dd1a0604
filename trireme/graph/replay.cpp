// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/replay.h>

#include <trireme/base/error.h>
#include <trireme/graph/run/piece_program.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <utility>

namespace trireme::graph {

using detail::Feed;
using detail::Step;

namespace {

// Sets grad mode and autocast for each operator, and restores them at the end.
class Surroundings {
 public:
  Surroundings() : outer_(AutocastState::now()), autocast_(outer_) {}
  ~Surroundings() {
    leave_autocast();
    outer_.set();
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

  void become(const Node& node) {
    set_gradients(has_gradients_ && node.grad_mode);
    set_autocast(node.autocast);
  }

  // A part sets them for its own operators. Autocast stays that of the first one, so that casts of
  // parameters are shared with the operators around the part.
  void become_for_part(const Node& first) {
    set_gradients(has_gradients_);
    set_autocast(first.autocast);
  }

 private:
  static void set_gradients(bool has_gradients) {
    if (at::GradMode::is_enabled() != has_gradients) at::GradMode::set_enabled(has_gradients);
  }

  void set_autocast(const AutocastState& wanted) {
    if (wanted == autocast_) return;
    leave_autocast();
    autocast_ = wanted;
    autocast_.set();
    if (!autocast_.is_any_enabled()) return;
    // Within a nested region a parameter is cast once, and its gradient is cast back once.
    at::autocast::increment_nesting();
    is_nested_ = true;
  }

  void leave_autocast() {
    if (is_nested_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    is_nested_ = false;
  }

  AutocastState outer_;
  AutocastState autocast_;
  bool is_nested_ = false;
  bool has_gradients_ = at::GradMode::is_enabled();
  at::AutoGradMode restored_{at::GradMode::is_enabled()};
};

std::vector<at::Tensor> run_program(const detail::Program& program,
                                    const std::vector<at::Tensor>& inputs,
                                    const RunOptions& options);

// The state of one run: the tensors of the program's slots and the stack of the current operator.
class Run {
 public:
  Run(const detail::Program& program, const RunOptions& options)
      : program_(program), options_(options), tensors_(program.tensors) {}

  // Puts the inputs in their slots. Those that an operator writes to are copied, since callers keep
  // theirs, and so are buffers that shall not change.
  void give(const std::vector<at::Tensor>& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      at::Tensor& tensor = tensors_[program_.input_slots[i]];
      tensor = program_.is_input_written[i] ? at::clone(inputs[i]) : inputs[i];
    }
    if (!options_.keep_buffers) return;
    for (const std::size_t slot : program_.written_buffer_slots) {
      tensors_[slot] = at::clone(tensors_[slot]);
    }
  }

  void go() {
    Surroundings surroundings;
    for (const Step& step : program_.steps) {
      if (step.part) {
        surroundings.become_for_part(*step.node);
        run_part(step);
        continue;
      }
      surroundings.become(*step.node);
      fill(step);
      if (step.node->is_random && options_.random) {
        const detail::NumberedRandom numbered(*options_.random, step.index, program_.device);
        call(step);
      } else {
        call(step);
      }
      keep(step);
    }
  }

  std::vector<at::Tensor> results() {
    std::vector<at::Tensor> all;
    for (const std::size_t slot : program_.output_slots) all.push_back(tensors_[slot]);
    return all;
  }

 private:
  // Runs a part through the caller's function, if there is one. The function gets its own handle on
  // the program, because it may run the part again after this run has ended.
  void run_part(const Step& step) {
    const std::shared_ptr<const detail::Program>& part = step.part;
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < part->inputs.size(); ++i) {
      const at::Tensor& input = tensors_[step.feeds.front().slots[i]];
      inputs.push_back(part->is_input_copied[i] ? at::clone(input) : input);
    }
    for (const std::size_t slot : step.dropped_before) tensors_[slot].reset();
    const std::vector<at::Tensor> outputs =
        options_.around == nullptr
            ? run_program(*part, inputs, options_)
            : options_.around(
                  part->part,
                  [part, options = options_](const std::vector<at::Tensor>& given) {
                    return run_program(*part, given, options);
                  },
                  inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) tensors_[step.outputs[i]] = outputs[i];
    for (const std::size_t slot : step.dropped_after) tensors_[slot].reset();
  }

  void call(const Step& step) {
    try {
      if (options_.replace != nullptr && options_.replace(step.node->op, stack_)) return;
      step.node->op.callBoxed(stack_);
      // The caller handles these two itself; other errors get the name of the operator.
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::DistError&) {  // an error of other ranks
      throw;
    } catch (const c10::Error& error) {
      throw UsageError(join_message(program_.graph->describe(step.index),
                                    " failed: ", error.what_without_backtrace()),
                       "shapes and types are those that were captured: look at the values that it "
                       "is given, such as indices and labels");
    }
  }

  // Puts the arguments of a step on the stack, then frees the tensors that are not needed any more.
  void fill(const Step& step) {
    stack_.assign(step.node->arguments.begin(), step.node->arguments.end());
    for (const std::size_t argument : step.devices) stack_[argument] = program_.device;
    for (const Feed& feed : step.feeds) {
      switch (feed.kind) {
        case Feed::Kind::kTensor:
          stack_[feed.argument] = tensors_[feed.slots.front()];
          break;
        case Feed::Kind::kList: {
          c10::List<at::Tensor> list;
          for (const std::size_t slot : feed.slots) {
            list.push_back(slot == Feed::kNone ? at::Tensor() : tensors_[slot]);
          }
          stack_[feed.argument] = std::move(list);
          break;
        }
        case Feed::Kind::kOptionalList: {
          c10::List<std::optional<at::Tensor>> list;
          for (const std::size_t slot : feed.slots) {
            list.push_back(slot == Feed::kNone ? std::optional<at::Tensor>() : tensors_[slot]);
          }
          stack_[feed.argument] = std::move(list);
          break;
        }
      }
    }
    for (const std::size_t slot : step.dropped_before) tensors_[slot].reset();
  }

  // Stores the results on the stack in their slots.
  void keep(const Step& step) {
    auto slot = step.outputs.begin();
    const auto store = [&](const at::Tensor& tensor) {
      if (slot == step.outputs.end()) return;
      if (*slot != Feed::kNone) tensors_[*slot] = tensor;
      ++slot;
    };
    for (const c10::IValue& value : stack_) tensor::visit_tensors(value, store);
    stack_.clear();
    for (const std::size_t unused : step.dropped_after) tensors_[unused].reset();
  }

  const detail::Program& program_;
  const RunOptions& options_;
  std::vector<at::Tensor> tensors_;
  torch::jit::Stack stack_;
};

std::vector<at::Tensor> run_program(const detail::Program& program,
                                    const std::vector<at::Tensor>& inputs,
                                    const RunOptions& options) {
  Run run(program, options);
  run.give(inputs);
  run.go();
  return run.results();
}

void check_input(const Value& expected, const at::Tensor& given) {
  if (given.defined() && given.sizes() == c10::IntArrayRef(expected.sizes) &&
      given.scalar_type() == expected.dtype) {
    return;
  }
  const std::string got = given.defined() ? join_message(given.scalar_type(), " ", given.sizes())
                                          : std::string("an undefined tensor");
  throw UsageError(
      join_message("a piece got ", got, " as ", expected.name, ", and was captured with ",
                   expected.dtype, " ", c10::IntArrayRef(expected.sizes)),
      "give what it was captured with, or capture the module for these shapes too");
}

}  // namespace

Piece::Piece(std::shared_ptr<const Graph> graph, int begin, int end,
             const torch::nn::Module& module, const std::vector<Part>& parts)
    : program_(
          std::make_shared<const detail::Program>(std::move(graph), begin, end, module, parts)) {}

Piece::Piece(std::shared_ptr<const detail::Program> program) : program_(std::move(program)) {}

Piece Piece::moved_to(at::Device device, const std::function<at::Tensor(ValueId)>& there) const {
  return Piece(std::make_shared<const detail::Program>(program_->moved_to(device, there)));
}

int Piece::begin() const noexcept { return program_->begin; }
int Piece::end() const noexcept { return program_->end; }
const Graph& Piece::graph() const noexcept { return *program_->graph; }
const std::vector<ValueId>& Piece::inputs() const noexcept { return program_->inputs; }
const std::vector<ValueId>& Piece::outputs() const noexcept { return program_->outputs; }
const std::vector<ValueId>& Piece::parameters() const noexcept { return program_->parameters; }
const std::vector<ValueId>& Piece::buffers() const noexcept { return program_->buffers; }
const std::vector<ValueId>& Piece::written_buffers() const noexcept {
  return program_->written_buffers;
}

std::vector<at::Tensor> Piece::lasting() const { return program_->lasting(); }

std::vector<at::Tensor> Piece::run(const std::vector<at::Tensor>& inputs,
                                   const RunOptions& options) const {
  const std::vector<ValueId>& expected = program_->inputs;
  if (inputs.size() != expected.size()) {
    throw UsageError(
        join_message("a piece got ", inputs.size(), " inputs, expected ", expected.size()),
        "give one tensor for each of its inputs(), in their order");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_input(program_->graph->value(expected[i]), inputs[i]);
  }
  return run_program(*program_, inputs, options);
}

}  // namespace trireme::graph
