// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/state_fields.h>

#include <trireme/optim/lamb.h>

#include <torch/optim.h>

namespace trireme::detail {
namespace {

template <typename... Types>
bool is_any_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Types*>(&optimizer) != nullptr) || ...);
}

}  // namespace

namespace optim = torch::optim;

bool has_known_state(const optim::Optimizer& optimizer) {
  return is_any_of<optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop, optim::Adagrad>(
             optimizer) ||
         is_lamb(optimizer);
}

StateFields fields_of(optim::OptimizerParamState& state) {
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {nullptr, {&sgd->momentum_buffer()}};
  }
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) {
    return {&adam->step(), {&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()}};
  }
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) {
    return {&adamw->step(), {&adamw->exp_avg(), &adamw->exp_avg_sq(), &adamw->max_exp_avg_sq()}};
  }
  if (auto* rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {&rmsprop->step(),
            {&rmsprop->square_avg(), &rmsprop->momentum_buffer(), &rmsprop->grad_avg()}};
  }
  auto& adagrad = dynamic_cast<optim::AdagradParamState&>(state);
  return {&adagrad.step(), {&adagrad.sum()}};
}

std::unique_ptr<optim::OptimizerParamState> make_state(const optim::Optimizer& optimizer) {
  if (is_any_of<optim::SGD>(optimizer)) return std::make_unique<optim::SGDParamState>();
  if (is_any_of<optim::Adam>(optimizer)) return std::make_unique<optim::AdamParamState>();
  if (is_any_of<optim::AdamW>(optimizer) || is_lamb(optimizer)) {
    return std::make_unique<optim::AdamWParamState>();
  }
  if (is_any_of<optim::RMSprop>(optimizer)) return std::make_unique<optim::RMSpropParamState>();
  return std::make_unique<optim::AdagradParamState>();
}

}  // namespace trireme::detail
