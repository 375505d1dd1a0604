// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/sync_batch_norm.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/tensor_access.h>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::detail {
namespace {

constexpr std::int64_t kHeader = 3;  // count, number of the layer, and if backward will exchange

// State of one call that backward needs, besides tensors.
struct LayerCall : torch::CustomClassHolder {
  LayerCall(std::string its_name, comm::Group its_group, bool exchanges_backward)
      : name(std::move(its_name)),
        group(std::move(its_group)),
        exchanges_in_backward(exchanges_backward) {}

  /// Returns a number by which ranks detect that they run different layers. It has 32 bits, so that
  /// it and its sum over ranks are exact in double.
  double number() const { return static_cast<double>(std::hash<std::string>{}(name) & 0xFFFFFFFF); }
  std::string title() const { return name.empty() ? "a batch norm" : "batch norm " + name; }

  std::string name;
  comm::Group group;
  bool exchanges_in_backward;
  double count = 0;  // values per channel over all ranks
  double eps = 0;
};

struct Arguments {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0;
  double eps = 0;

  /// Returns the number of channels, which all ranks agree on even if this rank's input is wrong.
  std::int64_t channels() const {
    for (const at::Tensor* tensor : {&weight, &bias, &running_mean, &running_var}) {
      if (tensor->defined()) return tensor->numel();
    }
    return input.dim() < 2 ? 0 : input.size(1);
  }

  /// Returns the reason why this input cannot be normalized; empty if it can.
  std::string complaint() const {
    if (input.dim() < 2 || input.size(1) != channels()) {
      return join_message("an input ", input.sizes(), ", expected [N, ", channels(), ", …]");
    }
    for (const at::Tensor* tensor : {&weight, &bias, &running_mean, &running_var}) {
      if (tensor->defined() && tensor->numel() != channels()) {
        return join_message("a weight, bias or running statistic ", tensor->sizes(), " beside one ",
                            "of ", channels(), " channels");
      }
    }
    const c10::ScalarType type = input.scalar_type();
    if (type != at::kFloat && type != at::kDouble && type != at::kHalf && type != at::kBFloat16) {
      return join_message("an input of ", type, ", expected a floating-point type");
    }
    return {};
  }

  c10::TensorOptions statistics() const {
    return input.options().dtype(at::toOpMathType(input.scalar_type()));
  }
};

// Converts a parameter to the type of the statistics, as LibTorch's kernels require.
at::Tensor converted(const at::Tensor& parameter, c10::TensorOptions options) {
  return parameter.defined() ? parameter.to(options) : parameter;
}

// Returns this rank's message, [kHeader + 2C] doubles, or -1 in all elements for a wrong input.
at::Tensor own_statistics(const Arguments& arguments, const LayerCall& layer) {
  const at::Tensor& input = arguments.input;
  const std::int64_t channels = arguments.channels();
  const auto doubles = input.options().dtype(at::kDouble);
  if (!arguments.complaint().empty()) return at::full({kHeader + 2 * channels}, -1, doubles);

  double count = 1;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) count *= static_cast<double>(input.size(dim));
  }
  const at::Tensor header =
      at::tensor({count, layer.number(), layer.exchanges_in_backward ? 1.0 : 0.0}, at::kDouble)
          .to(input.device());
  if (input.numel() == 0) return at::cat({header, at::zeros({2 * channels}, doubles)});
  // The running statistics given here are discarded. Their type makes the kernel compute in fp32.
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, at::zeros({channels}, arguments.statistics()),
                                  at::ones({channels}, arguments.statistics()), 0);
  return at::cat({header, mean.to(at::kDouble), variance.to(at::kDouble).mul_(count)});
}

// Throws on every rank if it throws on one. The message depends on what each rank knows.
void check_agreement(const at::Tensor& gathered, const Arguments& arguments,
                     const LayerCall& layer) {
  const auto rows = gathered.accessor<double, 2>();
  const int own = layer.group.rank();
  if (rows[own][0] < 0) {
    throw UsageError(layer.title() + " was given " + arguments.complaint(),
                     "the other ranks stop here too");
  }
  for (int rank = 0; rank < layer.group.size(); ++rank) {
    if (rows[rank][0] < 0) {
      throw UsageError(
          join_message(layer.title(), " was given what does not fit it on rank ", rank),
          "that rank's own message says more");
    }
    if (rows[rank][1] != rows[own][1]) {
      throw UsageError(join_message("rank ", own, " runs ", layer.title(), " while rank ", rank,
                                    " runs another one"),
                       "synchronized layers must run in the same order on every rank");
    }
    if (rows[rank][2] != rows[own][2]) {
      throw UsageError(
          join_message("the input of ", layer.title(), " requires a gradient on rank ",
                       rows[own][2] != 0 ? own : rank, ", not on rank ",
                       rows[own][2] != 0 ? rank : own),
          "backward exchanges on all ranks or on none: freeze the same layers everywhere");
    }
  }
}

// Statistics of the whole batch, by channel.
struct Statistics {
  double count = 0;
  std::vector<double> mean;
  std::vector<double> squares;  // sum of (value - mean)^2
};

// Combines in plain loops on the CPU, so that all ranks get the same bits on any device.
Statistics combine(const at::Tensor& gathered, std::int64_t num_channels) {
  const auto channels = static_cast<std::size_t>(num_channels);
  Statistics whole{.mean = std::vector<double>(channels), .squares = std::vector<double>(channels)};
  for (std::int64_t rank = 0; rank < gathered.size(0); ++rank) {
    const double* row = gathered.const_data_ptr<double>() + rank * gathered.size(1);
    const double added = row[0];
    if (added == 0) continue;
    const double before = whole.count;
    whole.count += added;
    const double* mean = row + kHeader;
    const double* squares = mean + channels;
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const double difference = mean[channel] - whole.mean[channel];
      whole.mean[channel] += difference * (added / whole.count);
      whole.squares[channel] +=
          squares[channel] + difference * difference * (before * added / whole.count);
    }
  }
  return whole;
}

Statistics exchange_statistics(const Arguments& arguments, const LayerCall& layer) {
  const at::Tensor own = own_statistics(arguments, layer);
  const at::Tensor all = at::empty({layer.group.size() * own.numel()}, own.options());
  comm::all_gather(all, own, layer.group, layer.name);
  const at::Tensor gathered = all.view({layer.group.size(), own.numel()}).cpu();
  check_agreement(gathered, arguments, layer);
  Statistics whole = combine(gathered, arguments.channels());
  if (whole.count == 1) {
    throw UsageError(layer.title() +
                         " was given one value per channel over all ranks, expected "
                         "more than 1 value per channel when training",
                     "give it a larger batch, or put it into eval mode");
  }
  return whole;
}

// Updates a running statistic, rounding once, as LibTorch does. The version counter is not changed,
// because a graph may have saved the tensor.
void update(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (!running.defined()) return;
  at::Tensor(running.variable_data())
      .copy_(running.to(at::kDouble).mul(1 - momentum).add(value, momentum));
}

struct SynchronizedBatchNorm : torch::autograd::Function<SynchronizedBatchNorm> {
  // Input, weight and bias are arguments of their own so that autograd sees them. They are optional
  // because autograd does not take undefined tensors.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                            const Arguments& arguments,
                            const c10::intrusive_ptr<LayerCall>& layer) {
    const Statistics whole = exchange_statistics(arguments, *layer);
    layer->count = whole.count;
    layer->eps = arguments.eps;

    const auto statistics = arguments.statistics();
    const auto on_device = [&](const std::vector<double>& values) {
      return at::tensor(values, at::kDouble).to(input.device());
    };
    const at::Tensor exact_mean = on_device(whole.mean);
    const at::Tensor squares = on_device(whole.squares);
    const at::Tensor mean = exact_mean.to(statistics);
    const at::Tensor variance = squares.div(whole.count).to(statistics);
    if (whole.count > 0) {
      update(arguments.running_mean, exact_mean, arguments.momentum);
      update(arguments.running_var, squares.div(whole.count - 1), arguments.momentum);
    }
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->save_for_backward({input, arguments.weight, arguments.bias, mean, variance});
    if (input.numel() == 0) return at::empty_like(input);
    // In evaluation mode the kernel uses the statistics that it is given.
    return std::get<0>(at::native_batch_norm(input, converted(arguments.weight, statistics),
                                             converted(arguments.bias, statistics), mean, variance,
                                             /*training=*/false, 0, arguments.eps));
  }

  // dx = weight / deviation * (dy - average(dy) - normalized * average(dy * normalized))
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = context->saved_data.at("layer").toCapsule();
    const auto& layer = dynamic_cast<const LayerCall&>(*holder);
    if (at::GradMode::is_enabled()) {
      throw UsageError("backward through " + layer.title() + " with create_graph",
                       "synchronized batch norm has no second derivative; leave create_graph out, "
                       "or synchronized batch norm");
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    const at::Tensor &mean = saved[3], &variance = saved[4];
    const at::Tensor& grad_output = gradients[0];

    at::Tensor of_weight = at::zeros_like(mean);
    at::Tensor of_bias = at::zeros_like(mean);
    if (input.numel() > 0) {
      // A weight of ones does not change these two results; it only determines their type. CUDA's
      // kernel wants saved statistics, and uses those of evaluation where they are empty.
      const at::Tensor none = at::empty({0}, mean.options());
      std::tie(std::ignore, of_weight, of_bias) = at::native_batch_norm_backward(
          grad_output, input, at::ones_like(mean), mean, variance, none, none,
          /*train=*/false, layer.eps, {false, true, true});
    }
    torch::autograd::variable_list result(5);
    if (layer.exchanges_in_backward) {
      const auto [sum, sum_normalized] = exchange_sums(of_bias, of_weight, layer);
      result[0] = gradient_of_input(grad_output, saved, sum, sum_normalized, layer);
    }
    if (weight.defined()) result[1] = of_weight.to(weight.scalar_type());
    if (bias.defined()) result[2] = of_bias.to(bias.scalar_type());
    return result;
  }

 private:
  static std::pair<at::Tensor, at::Tensor> exchange_sums(const at::Tensor& of_bias,
                                                         const at::Tensor& of_weight,
                                                         const LayerCall& layer) {
    const auto number = at::full({1}, layer.number(), of_bias.options().dtype(at::kDouble));
    const at::Tensor sums = at::cat({number, of_bias.to(at::kDouble), of_weight.to(at::kDouble)});
    comm::all_reduce(sums, layer.group, comm::ReduceOp::kSum, layer.name);
    if (sums[0].item<double>() != layer.number() * layer.group.size()) {
      throw UsageError("rank " + std::to_string(layer.group.rank()) + " runs backward through " +
                           layer.title() + " while another rank runs it through another one",
                       "compute the loss from the same layers in the same order on every rank");
    }
    const std::int64_t channels = of_bias.numel();
    return {sums.narrow(0, 1, channels), sums.narrow(0, 1 + channels, channels)};
  }

  static at::Tensor gradient_of_input(const at::Tensor& grad_output,
                                      const torch::autograd::variable_list& saved,
                                      const at::Tensor& sum, const at::Tensor& sum_normalized,
                                      const LayerCall& layer) {
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[3], &variance = saved[4];
    const auto type = mean.scalar_type();
    std::vector<std::int64_t> by_channel(static_cast<std::size_t>(input.dim()), 1);
    by_channel[1] = mean.numel();
    const at::Tensor inverse = variance.to(at::kDouble).add(layer.eps).rsqrt();
    const at::Tensor scale = weight.defined() ? inverse * weight : inverse;
    const at::Tensor slope = scale * inverse * sum_normalized / layer.count;
    const at::Tensor shift = scale * sum / layer.count;
    const auto spread = [&](const at::Tensor& values) { return values.to(type).view(by_channel); };
    return input.to(type)
        .sub(spread(mean))
        .mul_(spread(-slope))
        .addcmul_(grad_output.to(type), spread(scale))
        .sub_(spread(shift))
        .to(input.scalar_type());
  }
};

// Finds synchronized layers by one of their tensors. Ranks that are threads of one process have
// different tensors, so one registry serves all of them.
struct Registry {
  struct Entry {
    comm::Group group;
    std::string name;
  };
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, std::shared_ptr<const Entry>> entries;
};

Registry& registry() {
  static Registry& all = *new Registry;  // never destroyed: static modules may outlive it otherwise
  return all;
}

std::shared_ptr<const Registry::Entry> find(const std::optional<at::Tensor>& running_mean,
                                            const std::optional<at::Tensor>& weight) {
  const std::lock_guard lock(registry().mutex);
  for (const auto* tensor : {&running_mean, &weight}) {
    if (!tensor->has_value()) continue;
    const auto found = registry().entries.find((*tensor)->unsafeGetTensorImpl());
    if (found != registry().entries.end()) return found->second;
  }
  return nullptr;
}

std::atomic<BeforeBatchNorm> before_batch_norm = nullptr;

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAccessKey);
  if (const BeforeBatchNorm before = before_batch_norm) {
    if (weight) before(*weight);
    if (bias) before(*bias);
  }
  const auto entry = training ? find(running_mean, weight) : nullptr;
  if (entry == nullptr) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                          cudnn_enabled);
  }
  const auto or_undefined = [](const std::optional<at::Tensor>& tensor) {
    return tensor.value_or(at::Tensor());
  };
  return synchronized_batch_norm(input, or_undefined(weight), or_undefined(bias),
                                 or_undefined(running_mean), or_undefined(running_var), momentum,
                                 eps, entry->group, entry->name);
}

void register_kernel() {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "aten", kAccessKey, __FILE__, __LINE__);
    made.impl("batch_norm", &batch_norm);
    return made;
  }();
}

}  // namespace

at::Tensor synchronized_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias, const at::Tensor& running_mean,
                                   const at::Tensor& running_var, double momentum, double eps,
                                   const comm::Group& group, const std::string& name) {
  if (group.size() == 1) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/true,
                          momentum, eps, at::globalContext().userEnabledCuDNN());
  }
  const bool exchanges_in_backward = at::GradMode::is_enabled() && input.requires_grad();
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SynchronizedBatchNorm::apply(
      input, if_defined(weight), if_defined(bias),
      Arguments{input, weight, bias, running_mean, running_var, momentum, eps},
      c10::make_intrusive<LayerCall>(name, group, exchanges_in_backward));
}

void set_before_batch_norm(BeforeBatchNorm hook) { before_batch_norm = hook; }

std::vector<SyncBatchNorm::Layer> SyncBatchNorm::find_layers(torch::nn::Module& module) {
  std::vector<Layer> layers;
  std::unordered_set<const torch::nn::Module*> seen;  // a module may be registered twice
  const auto add = [&](const std::string& name, const torch::nn::Module* whole, const auto* layer) {
    if (layer == nullptr || !seen.insert(whole).second) return;
    layers.push_back({name, layer->running_mean.defined() ? layer->running_mean : layer->weight});
  };
  module.apply([&](const std::string& name, torch::nn::Module& part) {
    const auto* const other = dynamic_cast<const BatchNormOfOtherKind*>(&part);
    if (other != nullptr && seen.insert(&part).second) layers.push_back({name, other->marked()});
    add(name, &part, part.as<torch::nn::BatchNorm1dImpl>());
    add(name, &part, part.as<torch::nn::BatchNorm2dImpl>());
    add(name, &part, part.as<torch::nn::BatchNorm3dImpl>());
  });
  return layers;
}

SyncBatchNorm::SyncBatchNorm(torch::nn::Module& module, const comm::Group& group) {
  if (group.size() == 1) return;
  std::vector<Layer> layers = find_layers(module);
  std::vector<NamedTensor> described;
  for (const auto& [name, marked] : layers) {
    described.push_back({name, marked.defined() ? marked : at::empty({0})});
  }
  check_same_on_all_ranks(described, "batch norm", group);
  for (const auto& [name, marked] : layers) {
    if (marked.defined()) continue;
    throw UsageError(join_message("batch norm '", name, "' cannot be synchronized: it has neither ",
                                  "weight nor running statistics by which to recognise it"),
                     "give it affine(true) or track_running_stats(true)");
  }
  register_kernel();
  const std::lock_guard lock(registry().mutex);
  auto& entries = registry().entries;
  for (const auto& [name, marked] : layers) {
    if (entries.contains(marked.unsafeGetTensorImpl())) {
      throw UsageError(join_message("batch norm '", name, "' is synchronized already"),
                       "destroy the first SyncBatchNorm of the module before");
    }
  }
  for (const auto& [name, marked] : layers) {
    entries[marked.unsafeGetTensorImpl()] =
        std::make_shared<const Registry::Entry>(Registry::Entry{group, name});
    mark(marked);
  }
  layers_ = std::move(layers);
}

SyncBatchNorm::~SyncBatchNorm() {
  // Destroyed after the lock is released: ending a group may wait for a thread that needs the lock.
  std::vector<decltype(Registry::entries)::node_type> removed;
  const std::lock_guard lock(registry().mutex);
  for (const auto& [name, marked] : layers_) {
    removed.push_back(registry().entries.extract(marked.unsafeGetTensorImpl()));
    unmark(marked);
  }
}

void SyncBatchNorm::check() const {
  for (const auto& [name, marked] : layers_) {
    if (marked.key_set().has(kAccessKey)) continue;
    throw UsageError(join_message("batch norm '", name, "' is not synchronized any more: its ",
                                  "tensors were given other memory"),
                     "move the module to its device and type before it is synchronized");
  }
}

}  // namespace trireme::detail
