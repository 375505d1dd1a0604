// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/optimizer_state.h>

#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>
#include <trireme/optim/lamb.h>

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;

constexpr std::string_view kPrefix = "optimizer.";

// One struct per optimizer, with its classes and a visitor of its fields by name. The same visitor
// reads and writes them.
struct Sgd {
  using Options = torch::optim::SGDOptions;
  using ParameterState = torch::optim::SGDParamState;
  static constexpr auto kName = "SGD";
  static void visit_options(Options& options, auto&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  static void visit_state(ParameterState& state, auto&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

// Adam and AdamW have the same fields in different classes.
template <typename OptionsType, typename StateType>
struct AdamFields {
  using Options = OptionsType;
  using ParameterState = StateType;
  static void visit_options(Options& options, auto&& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  static void visit_state(ParameterState& state, auto&& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};

struct Adam : AdamFields<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr auto kName = "Adam";
};

struct AdamW : AdamFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr auto kName = "AdamW";
};

struct RmsProp {
  using Options = torch::optim::RMSpropOptions;
  using ParameterState = torch::optim::RMSpropParamState;
  static constexpr auto kName = "RMSprop";
  static void visit_options(Options& options, auto&& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  static void visit_state(ParameterState& state, auto&& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

struct Adagrad {
  using Options = torch::optim::AdagradOptions;
  using ParameterState = torch::optim::AdagradParamState;
  static constexpr auto kName = "Adagrad";
  static void visit_options(Options& options, auto&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  static void visit_state(ParameterState& state, auto&& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

struct Lamb : AdamFields<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr auto kName = "LAMB";
};

// Calls `visit` with the struct above that matches the optimizer. A class derived from one of
// LibTorch's counts as its base.
template <typename Visit>
auto with_kind(const Optimizer& optimizer, Visit visit) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return visit(Sgd{});
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return visit(Adam{});
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return visit(AdamW{});
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) return visit(RmsProp{});
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) return visit(Adagrad{});
  if (trireme::detail::is_lamb(optimizer)) return visit(Lamb{});
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError(
        "the state of LBFGS cannot be saved: it is one history over all parameters together",
        "save the model alone, or train with SGD, Adam, AdamW, LAMB, RMSprop or Adagrad");
  }
  throw UsageError(
      "the state of this optimizer cannot be saved: its class is not one of LibTorch's",
      "save the model alone, or use SGD, Adam, AdamW, LAMB, RMSprop or Adagrad");
}

// Returns the names of the optimizer's parameters by group. A tied parameter has the first of its
// names.
std::vector<std::vector<std::string>> parameter_names(const Optimizer& optimizer,
                                                      const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<std::vector<std::string>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& group_names = groups.emplace_back();
    for (const auto& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        throw UsageError(
            join_message("parameter ", group_names.size(), " of the optimizer's group ",
                         groups.size() - 1, ", of shape ", parameter.sizes(),
                         ", is not a parameter of the module"),
            "make the optimizer from module->parameters(), after the module has its final dtype");
      }
      group_names.push_back(found->second);
    }
  }
  return groups;
}

std::string tensor_name(const std::string& parameter, std::string_view field) {
  return join_message(kPrefix, parameter, ".", field);
}

template <typename Kind>
OptimizerState collect(const Optimizer& optimizer,
                       const std::vector<std::vector<std::string>>& names) {
  OptimizerState result;
  json groups = json::array();
  json states = json::object();
  for (std::size_t index = 0; index < names.size(); ++index) {
    const auto& group = optimizer.param_groups()[index];
    auto options = dynamic_cast<const typename Kind::Options&>(group.options());
    json option_values;
    Kind::visit_options(
        options, [&](const char* field, const auto& value) { option_values[field] = value; });
    groups.push_back({{"parameters", names[index]}, {"options", option_values}});

    for (std::size_t place = 0; place < names[index].size(); ++place) {
      const std::string& name = names[index][place];
      // A parameter without gradients has no state yet.
      const auto found = optimizer.state().find(group.params()[place].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      json& fields = states[name] = json::object();
      Kind::visit_state(dynamic_cast<typename Kind::ParameterState&>(*found->second),
                        [&](const char* field, const auto& value) {
                          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
                            // Marks fields that are tensors, so that a missing file is noticed when
                            // the state is loaded.
                            fields[field] = value.defined() ? json("tensor") : json(nullptr);
                            if (value.defined())
                              result.tensors[tensor_name(name, field)] = value.detach();
                          } else {
                            fields[field] = value;
                          }
                        });
    }
  }
  result.scalars = json{{"kind", Kind::kName}, {"groups", groups}, {"state", states}}.dump();
  return result;
}

// Builds the complete new state before anything is changed, so that a mismatch leaves the optimizer
// as it was.
template <typename Kind>
class Restorer {
 public:
  Restorer(const OptimizerState& saved, std::string_view source) : saved_(saved), source_(source) {}

  void read(const Optimizer& optimizer, const std::vector<std::vector<std::string>>& names) {
    const json document = json::parse(saved_.scalars);
    if (document.at("kind") != Kind::kName) {
      fail(join_message("holds the state of ", document.at("kind").get<std::string>(),
                        ", and the optimizer is ", Kind::kName));
    }
    const json& groups = document.at("groups");
    if (groups.size() != names.size()) {
      fail(join_message("has ", groups.size(), " parameter groups, and the optimizer has ",
                        names.size()));
    }
    for (std::size_t index = 0; index < names.size(); ++index) {
      check_names(groups[index].at("parameters").template get<std::vector<std::string>>(),
                  names[index], index);
      auto& options = options_.emplace_back(
          dynamic_cast<const typename Kind::Options&>(optimizer.param_groups()[index].options()));
      const json& values = groups[index].at("options");
      Kind::visit_options(options,
                          [&](const char* field, auto& value) { values.at(field).get_to(value); });
      for (std::size_t place = 0; place < names[index].size(); ++place) {
        const auto found = document.at("state").find(names[index][place]);
        if (found == document.at("state").end()) continue;
        if (!names_read_.insert(names[index][place]).second) continue;  // Tied, so listed twice.
        read_state(names[index][place], *found, optimizer.param_groups()[index].params()[place]);
      }
    }
    // State that nobody uses would be lost silently.
    if (tensors_used_ != saved_.tensors.size()) {
      fail(join_message("holds ", saved_.tensors.size(),
                        " tensors, of which this optimizer knows only ", tensors_used_));
    }
  }

  void apply(Optimizer& optimizer) {
    for (std::size_t index = 0; index < options_.size(); ++index) {
      dynamic_cast<typename Kind::Options&>(optimizer.param_groups()[index].options()) =
          options_[index];
    }
    optimizer.state() = std::move(states_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(join_message(source_, " does not fit the optimizer: it ", what),
                          "make the optimizer as it was made when the checkpoint was saved");
  }

  void check_names(const std::vector<std::string>& saved, const std::vector<std::string>& expected,
                   std::size_t group) const {
    if (saved.size() != expected.size()) {
      fail(join_message("has ", saved.size(), " parameters in group ", group,
                        ", and the optimizer has ", expected.size()));
    }
    for (std::size_t place = 0; place < saved.size(); ++place) {
      if (saved[place] == expected[place]) continue;
      fail(join_message("has '", saved[place], "' as parameter ", place, " of group ", group,
                        ", and the optimizer has '", expected[place], "'"));
    }
  }

  void read_state(const std::string& name, const json& fields, const at::Tensor& parameter) {
    auto state = std::make_unique<typename Kind::ParameterState>();
    Kind::visit_state(*state, [&](const char* field, auto& value) {
      const json& saved = fields.at(field);
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        if (!saved.is_null()) value = read_tensor(tensor_name(name, field), parameter);
      } else {
        // A cast would silently change a fraction or a number that is too large.
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::int64_t>) {
          if (!saved.is_number_integer()) {
            fail(join_message("has ", saved.dump(), " for '", field, "' of '", name,
                              "', expected an integer"));
          }
        }
        saved.get_to(value);
      }
    });
    states_[parameter.unsafeGetTensorImpl()] = std::move(state);
  }

  at::Tensor read_tensor(const std::string& name, const at::Tensor& parameter) {
    const auto found = saved_.tensors.find(name);
    if (found == saved_.tensors.end()) fail(join_message("lacks tensor '", name, "'"));
    const at::Tensor& saved = found->second;
    if (saved.sizes() != parameter.sizes() || saved.scalar_type() != parameter.scalar_type()) {
      fail(join_message("has tensor '", name, "' of shape ", saved.sizes(), " and dtype ",
                        saved.scalar_type(), "; its parameter has ", parameter.sizes(), " and ",
                        parameter.scalar_type()));
    }
    ++tensors_used_;
    // The state gets the device and strides of the parameter, because kernels round differently
    // with other strides.
    return torch::empty_like(parameter, parameter.options().requires_grad(false)).copy_(saved);
  }

  const OptimizerState& saved_;
  std::string_view source_;
  std::vector<typename Kind::Options> options_;
  std::remove_reference_t<decltype(std::declval<Optimizer&>().state())> states_;
  std::set<std::string> names_read_;
  std::size_t tensors_used_ = 0;
};

}  // namespace

std::string parameter_of_state(std::string_view tensor_name) {
  const auto end = tensor_name.rfind('.');
  if (!tensor_name.starts_with(kPrefix) || end <= kPrefix.size()) return {};
  return std::string(tensor_name.substr(kPrefix.size(), end - kPrefix.size()));
}

OptimizerState optimizer_state(const Optimizer& optimizer, const torch::nn::Module& module) {
  return with_kind(optimizer, [&]<typename Kind>(Kind) {
    return collect<Kind>(optimizer, parameter_names(optimizer, module));
  });
}

std::string join_scalars(const std::vector<std::string>& by_rank, std::string_view source) {
  for (const std::string& scalars : by_rank) {
    if (json_depth(scalars) <= kDeepestJson) continue;
    throw CheckpointError(
        join_message(source, " has a damaged description of the optimizer: more than ",
                     kDeepestJson, " lists and objects lie in each other"),
        "restore the file from a good copy");
  }
  try {
    json all = json::parse(by_rank.at(0));
    for (const std::string& scalars : by_rank) {
      const json own = json::parse(scalars);
      for (const auto& [name, fields] : own.at("state").items()) {
        // Ranks that step parts of the same parameter have equal numbers.
        if (!all.at("state").contains(name)) all["state"][name] = fields;
      }
    }
    return all.dump();
  } catch (const json::exception& error) {
    throw CheckpointError(
        join_message(source, " has a damaged description of the optimizer: ", error.what()),
        "restore the file from a good copy");
  }
}

std::string only_state_of(const std::set<std::string>& parameters, const std::string& scalars) {
  json all = json::parse(scalars);
  json state = json::object();
  for (const auto& [name, fields] : all.at("state").items()) {
    if (parameters.contains(name)) state[name] = fields;
  }
  all["state"] = std::move(state);
  return all.dump();
}

void load_optimizer_state(const OptimizerState& state, Optimizer& optimizer,
                          const torch::nn::Module& module, std::string_view source) {
  const torch::NoGradGuard no_grad;
  with_kind(optimizer, [&]<typename Kind>(Kind) {
    Restorer<Kind> restorer(state, source);
    try {
      restorer.read(optimizer, parameter_names(optimizer, module));
    } catch (const json::exception& error) {
      throw CheckpointError(
          join_message(source, " has a damaged description of the optimizer: ", error.what()),
          "restore the file from a good copy");
    }
    restorer.apply(optimizer);
  });
}

}  // namespace trireme::checkpoint
