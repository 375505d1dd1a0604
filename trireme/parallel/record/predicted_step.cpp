// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/record/predicted_step.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/init/construction.h>
#include <trireme/parallel/init/deferred.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/plan/plan_config.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/version.h>

#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {
namespace {

using nlohmann::json;

// OperatorWork refers to the names of dtypes, which must outlive it.
std::string_view lasting_dtype(const std::string& name) {
  constexpr std::array<std::string_view, 5> kNames = {"float64", "float32", "float16", "bfloat16",
                                                      "float8"};
  for (const std::string_view known : kNames) {
    if (known == name) return known;
  }
  throw DataError(join_message("the record of a step has the dtype '", name, "'"),
                  "use the `trireme` of the version that the program was built with");
}

json to_json(const OperatorCall& call) {
  json transfers = json::array();
  for (const Transfer& transfer : call.transfers) {
    transfers.push_back(
        {static_cast<int>(transfer.collective), transfer.axis, transfer.bytes, transfer.overlaps});
  }
  return {call.name,         call.module,       static_cast<int>(call.work.kind),
          call.work.flops,   call.work.bytes,   std::string(call.work.dtype),
          transfers,         call.result_bytes, call.gradient_bytes,
          call.reads,        call.read_bytes,   call.forward_call,
          call.weight_share, call.parameters};
}

OperatorCall call_of(const json& value) {
  std::size_t next = 0;
  const auto take = [&](auto& into) { value.at(next++).get_to(into); };
  OperatorCall call;
  int kind = 0;
  std::string dtype;
  take(call.name);
  take(call.module);
  take(kind);
  take(call.work.flops);
  take(call.work.bytes);
  take(dtype);
  call.work.kind = static_cast<cluster::OperatorKind>(kind);
  call.work.dtype = lasting_dtype(dtype);
  for (const json& transfer : value.at(next++)) {
    call.transfers.push_back({.collective = static_cast<Collective>(transfer.at(0).get<int>()),
                              .axis = transfer.at(1).get<std::string>(),
                              .bytes = transfer.at(2).get<double>(),
                              .overlaps = transfer.at(3).get<bool>()});
  }
  take(call.result_bytes);
  take(call.gradient_bytes);
  take(call.reads);
  take(call.read_bytes);
  take(call.forward_call);
  take(call.weight_share);
  take(call.parameters);
  return call;
}

json to_json(const ParameterRecord& parameter) {
  return {parameter.name,          parameter.elements, parameter.bytes, parameter.global_elements,
          parameter.requires_grad, parameter.is_half};
}

ParameterRecord parameter_of(const json& value) {
  return {.name = value.at(0).get<std::string>(),
          .elements = value.at(1).get<double>(),
          .bytes = value.at(2).get<double>(),
          .global_elements = value.at(3).get<double>(),
          .requires_grad = value.at(4).get<bool>(),
          .is_half = value.at(5).get<bool>()};
}

}  // namespace

void write_step_record(const StepRecord& record, const std::filesystem::path& file) {
  PlanSettings settings{record.plan};
  json written = {{"version", TRIREME_VERSION},
                  {"plan", config::Configuration(settings).to_toml()},
                  {"num_forward", record.module.num_forward},
                  {"input_bytes", record.module.input_bytes}};
  json& calls = written["calls"] = json::array();
  for (const OperatorCall& call : record.module.calls) calls.push_back(to_json(call));
  json& parameters = written["parameters"] = json::array();
  for (const ParameterRecord& item : record.module.parameters) parameters.push_back(to_json(item));
  json& transfers = written["gradient_transfers"] = json::array();
  for (const GradientTransfer& item : record.module.gradient_transfers) {
    transfers.push_back({item.parameter, static_cast<int>(item.transfer.collective),
                         item.transfer.axis, item.transfer.bytes, item.copy_bytes});
  }
  if (record.optimizer) {
    written["optimizer"] = {record.optimizer->state_bytes, record.optimizer->kernels};
  }
  write_file(file, written.dump());
}

StepRecord read_step_record(const std::filesystem::path& file) {
  std::ifstream input(file);
  const json read = json::parse(input);
  if (read.at("version") != TRIREME_VERSION) {
    throw DataError(
        join_message("the program was built with Trireme ", read.at("version").get<std::string>(),
                     ", this is " TRIREME_VERSION),
        "use the `trireme` of the version that the program was built with");
  }
  PlanSettings settings;
  config::Configuration(settings).read_text(read.at("plan").get<std::string>(), "plan");
  StepRecord record{.plan = settings.plan};
  read.at("num_forward").get_to(record.module.num_forward);
  read.at("input_bytes").get_to(record.module.input_bytes);
  for (const json& call : read.at("calls")) record.module.calls.push_back(call_of(call));
  for (const json& item : read.at("parameters")) {
    record.module.parameters.push_back(parameter_of(item));
  }
  for (const json& item : read.at("gradient_transfers")) {
    record.module.gradient_transfers.push_back(
        {.parameter = item.at(0).get<int>(),
         .transfer = {.collective = static_cast<Collective>(item.at(1).get<int>()),
                      .axis = item.at(2).get<std::string>(),
                      .bytes = item.at(3).get<double>()},
         .copy_bytes = item.at(4).get<double>()});
  }
  if (const auto found = read.find("optimizer"); found != read.end()) {
    record.optimizer = {.state_bytes = found->at(0).get<double>(),
                        .kernels = found->at(1).get<double>()};
  }
  return record;
}

}  // namespace trireme

namespace trireme::detail {
namespace {

std::unique_ptr<DeferredScope>& deferral() {
  static auto& scope = *new std::unique_ptr<DeferredScope>;
  return scope;
}

// Calls of up to so many micro-batches are followed before the optimizer.
constexpr std::size_t kMostCalls = 200'000;

// What a program makes from here on has no memory if it is large. A program that ends without a
// second step has still shown its optimizer.
void begin_program() {
  deferral() = std::make_unique<DeferredScope>(Deferral::kShapes);
  static_cast<void>(PredictedStep::of_process());
}

// True as soon as a program links what predictions need.
const bool kIsRegistered = on_predicted_world(begin_program);

}  // namespace

PredictedStep* PredictedStep::of_process() {
  // Never destroyed: code that runs at exit may still use the module's tensors.
  static PredictedStep* const step = []() -> PredictedStep* {
    const Settings settings = Settings::from(Environment::of_process());
    return settings.predict_folder.empty() ? nullptr : new PredictedStep(settings.predict_folder);
  }();
  return step;
}

// A file takes the place of the program's plan, and settings change either.
Plan PredictedStep::plan_for(const Plan& of_program, int ranks, PlanEntry entry) const {
  PlanSettings settings;
  config::Configuration configuration(settings);
  std::ifstream file(folder_ / "plan");
  if (std::string name; std::getline(file, name)) {
    configuration.read_file(name);
  } else {
    settings.plan = of_program;
  }
  std::ifstream assignments(folder_ / "settings");
  for (std::string line; std::getline(assignments, line);) configuration.set(line);
  if (settings.plan.mode == PlanMode::kAutomatic) {
    throw UsageError("the program's plan is automatic, and the plan of a prediction must be known",
                     "find it by trireme plan --save plan.toml -- program, and give it by --plan");
  }
  if (settings.plan.mesh.empty()) settings.plan.mesh = {{kDataAxis, ranks}};
  check_plan(settings.plan, {.ranks = ranks, .entry = entry});
  return settings.plan;
}

const Plan& PredictedStep::begin(const torch::nn::Module* module,
                                 std::vector<NamedTensor> parameters, const Plan& of_program,
                                 const comm::Group& group, PlanEntry entry) {
  if (searches()) {
    throw UsageError(
        "trireme plan searches for the plan of a Model, and this program trains "
        "without one",
        "call trireme::search::find_plan in the program, with its forward pass");
  }
  if (laid_out_) {
    throw UsageError("the program makes a second module parallel, and the step of one is predicted",
                     "predict a program that trains one module, or register both in one");
  }
  plan_ = plan_for(of_program, group.size(), entry);
  const std::optional<cluster::Cluster> described = cluster_of_environment();
  const cluster::Cluster* const cluster = described ? &*described : nullptr;
  laid_out_ = module == nullptr ? lay_out_tensors(std::move(parameters), plan_, cluster)
                                : lay_out_module(*module, plan_, cluster);
  micro_batches_left_ = std::max<std::int64_t>(plan_.micro_batches, 1);
  std::vector<at::Tensor> all;
  for (const NamedTensor& item : laid_out_->tensors) all.push_back(item.tensor);
  fake_tensors_ = std::make_unique<tensor::FakeTensors>(all, laid_out_->layouts);
  dry_run_ = std::make_unique<tensor::DryRun>(
      tensor::DryRun::Mode::kInstead,
      [this](const tensor::DryRunCall& call, auto results) { on_call(call, results); });
  dry_run_->before_refusal([this] { refuse("an operator that needs values"); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    dry_run_->give_name(all[i], laid_out_->tensors[i].name);
    if (!all[i].requires_grad()) continue;
    all[i].register_hook([this, i](const at::Tensor& gradient) { on_gradient(i, gradient); });
  }
  std::atexit([] {  // a program may end after its first step
    PredictedStep* const step = of_process();
    if (step->has_step()) step->write();
  });
  return plan_;
}

void PredictedStep::refuse(std::string_view what) {
  if (has_step()) finish();
  throw UsageError(join_message(what,
                                " before the first training step has no values to work with "
                                "while `trireme predict` records this program"),
                   "train first, or leave this part out if world.launcher is `prediction`");
}

at::Tensor PredictedStep::run(const std::function<at::Tensor()>& forward) {
  if (has_step()) finish();
  const at::AutoGradMode with_gradients(true);
  const at::Tensor loss = forward();
  // A step that sums its micro-batches itself needs one of them only.
  micro_batches_left_ = 1;
  loss.backward();
  return at::zeros({}, at::TensorOptions().dtype(loss.dtype()));
}

void PredictedStep::on_gradient(std::size_t parameter, const at::Tensor& gradient) {
  if (phase_ > Phase::kBackward) return;
  if (phase_ == Phase::kForward) {
    phase_ = Phase::kBackward;
    torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
  }
  gradients_.push_back({parameter, dry_run_->describe(gradient)});
}

void PredictedStep::end_backward() {
  num_calls_ = dry_run_->calls().size();
  --micro_batches_left_;
  phase_ = micro_batches_left_ > 0 ? Phase::kMoreMicroBatches : Phase::kOptimizer;
  first_of_optimizer_ = num_calls_;
}

// True if a call computes with parameters, or multiplies.
bool PredictedStep::begins_forward(const tensor::DryRunCall& call) const {
  if (!at::GradMode::is_enabled()) return false;
  return std::ranges::any_of(call.inputs, [](const tensor::DryRunTensor& input) {
    return input.requires_grad && !input.name.empty();
  });
}

void PredictedStep::on_call(const tensor::DryRunCall& call, c10::ArrayRef<c10::IValue> results) {
  if (phase_ == Phase::kForward && !first_of_forward_ && begins_forward(call)) {
    first_of_forward_ = dry_run_->calls().size() - 1;
  }
  if (phase_ == Phase::kMoreMicroBatches) {
    const std::size_t number = dry_run_->calls().size();
    if (number + num_calls_ * static_cast<std::size_t>(micro_batches_left_) > kMostCalls) finish();
    return;
  }
  if (phase_ != Phase::kOptimizer) return;
  if (begins_forward(call)) finish();
  const int position = static_cast<int>(dry_run_->calls().size()) - 1;
  for (const c10::IValue& result : results) {
    if (!result.isTensor() || !tensor::is_wrapper(result.toTensor())) continue;
    made_.push_back({c10::weak_intrusive_ptr(result.toTensor().getIntrusivePtr()), position});
  }
}

ModuleRecord PredictedStep::module_record() const {
  ModuleDryRun dry_run{.gradients = gradients_};
  const auto& calls = dry_run_->calls();
  // What came before forward, such as other initial values, is left out.
  const std::size_t first = first_of_forward_.value_or(0);
  dry_run.calls.assign(calls.begin() + static_cast<std::ptrdiff_t>(first),
                       calls.begin() + static_cast<std::ptrdiff_t>(num_calls_));
  const auto count_from_first = [first](tensor::DryRunTensor& tensor) {
    tensor.made_by = std::max(tensor.made_by - static_cast<int>(first), -1);
  };
  for (tensor::DryRunCall& call : dry_run.calls) {
    std::ranges::for_each(call.inputs, count_from_first);
    std::ranges::for_each(call.outputs, count_from_first);
  }
  for (DryRunGradient& gradient : dry_run.gradients) count_from_first(gradient.tensor);
  const auto first_of_backward = std::ranges::find_if(
      dry_run.calls, [](const tensor::DryRunCall& call) { return !call.node.empty(); });
  dry_run.num_forward = static_cast<std::size_t>(first_of_backward - dry_run.calls.begin());
  return make_record(*laid_out_, dry_run);
}

// What the optimizer made and somebody still holds is its state.
OptimizerRecord PredictedStep::optimizer_record() const {
  std::set<const c10::StorageImpl*> known;
  double parameters = 0;
  double count = 0;
  for (const NamedTensor& item : laid_out_->tensors) {
    if (!item.tensor.requires_grad()) continue;
    const at::Tensor& part = tensor::distributed_meta(item.tensor).local;
    known.insert(part.storage().unsafeGetStorageImpl());
    parameters += static_cast<double>(part.nbytes());
    count += 1;
    const at::Tensor& gradient = item.tensor.grad();
    if (gradient.defined() && tensor::is_wrapper(gradient)) {
      known.insert(tensor::distributed_meta(gradient).local.storage().unsafeGetStorageImpl());
    }
  }
  OptimizerRecord record;
  std::set<int> first_only;  // calls that made state, which later steps do not repeat
  for (const Made& made : made_) {
    const auto held = made.tensor.lock();
    if (!held) continue;
    const at::Tensor tensor(held);
    const c10::Storage& storage = tensor::distributed_meta(tensor).local.storage();
    if (!known.insert(storage.unsafeGetStorageImpl()).second) continue;
    record.state_bytes += static_cast<double>(storage.nbytes());
    first_only.insert(made.call);
  }
  const auto& calls = dry_run_->calls();
  for (std::size_t i = first_of_optimizer_; i < calls.size(); ++i) {
    const bool is_view = calls[i].name == "aten::detach" || calls[i].outputs.empty();
    if (!is_view && !first_only.contains(static_cast<int>(i))) record.kernels += 1;
  }
  if (parameters > 0) record.state_bytes /= parameters;
  if (count > 0) record.kernels /= count;
  return record;
}

// True if something was written to a parameter after backward.
bool PredictedStep::has_stepped() const {
  if (phase_ != Phase::kOptimizer) return false;
  const auto calls = std::span(dry_run_->calls()).subspan(first_of_optimizer_);
  return std::ranges::any_of(calls, [](const tensor::DryRunCall& call) {
    const std::string base = call.name.substr(0, call.name.find('.'));
    return base.ends_with('_') && !call.inputs.empty() && !call.inputs.front().name.empty();
  });
}

void PredictedStep::write() const {
  StepRecord record{.plan = plan_, .module = module_record()};
  if (has_stepped()) record.optimizer = optimizer_record();
  write_step_record(record, folder_ / "step");
}

void PredictedStep::finish() {
  write();
  end();
}

// The name is search::kRequestFile, of a component that includes this one.
bool PredictedStep::searches() const { return std::filesystem::exists(folder_ / "search.toml"); }

void PredictedStep::end() {
  std::cout.flush();
  std::cerr.flush();
  ::_exit(0);
}

}  // namespace trireme::detail
