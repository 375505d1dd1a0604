// SPDX-License-Identifier: Apache-2.0
// The C++ side of the parity tests in this folder:
//   checkpoint_parity copy <in> <out>            reads a safetensors file and writes what it read
//   checkpoint_parity resnet <name> <in> <out>   one training pass of a network with the weights
//   (`model.*`), images and
//                                                labels of a file; writes logits, loss, gradients
//                                                and buffers
//   checkpoint_parity import <name> <in> <folder>      weights of a file into a network, and that
//                                                      into a checkpoint
//   checkpoint_parity export <folder> <out>            the newest checkpoint into one file
#include <models/resnet.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/safetensors.h>

#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>

namespace {

using trireme::checkpoint::TensorMap;

models::ResNet make_network(const std::string& name) {
  if (name == "resnet20") return models::resnet20(10, 1);
  if (name == "resnet18") return models::resnet18(10, 3, models::Stem::kSmall);
  if (name == "resnet50") return models::resnet50(10, 3);
  if (name == "wide") {
    return models::ResNet(models::ResNetOptions{.block = models::Block::kBottleneck,
                                                .stem = models::Stem::kSmall,
                                                .blocks = {1, 2},
                                                .width = 16,
                                                .bottleneck_widening = 3,
                                                .classes = 10});
  }
  throw std::invalid_argument("no network " + name);
}

void train_once(const std::string& name, const std::string& in, const std::string& out) {
  at::set_num_threads(1);
  const TensorMap given = trireme::checkpoint::read_safetensors(in).tensors;
  auto net = make_network(name);
  TensorMap weights;
  const std::string prefix = "model.";
  for (const auto& [key, tensor] : given) {
    if (key.starts_with(prefix)) weights[key.substr(prefix.size())] = tensor;
  }
  trireme::checkpoint::load_module_tensors(weights, *net, in);

  const auto logits = net(given.at("images"));
  const auto loss = torch::cross_entropy_loss(logits, given.at("labels"));
  loss.backward();
  TensorMap result{{"logits", logits}, {"loss", loss}};
  for (const auto& item : net->named_parameters())
    result["gradient." + item.key()] = item.value().grad();
  for (const auto& item : net->named_buffers()) result["buffer." + item.key()] = item.value();
  trireme::checkpoint::write_safetensors(out, result);
}

void import_weights(const std::string& name, const std::string& in, const std::string& folder) {
  auto net = make_network(name);
  trireme::checkpoint::load_model(in, *net);
  trireme::checkpoint::save({.folder = folder}, *net, nullptr, {});
}

}  // namespace

int main(int count, char** values) {
  const std::span arguments(values, static_cast<std::size_t>(count));
  try {
    if (arguments.size() == 4 && std::string(arguments[1]) == "copy") {
      const auto file = trireme::checkpoint::read_safetensors(arguments[2]);
      trireme::checkpoint::write_safetensors(arguments[3], file.tensors, file.metadata);
    } else if (arguments.size() == 5 && std::string(arguments[1]) == "resnet") {
      train_once(arguments[2], arguments[3], arguments[4]);
    } else if (arguments.size() == 5 && std::string(arguments[1]) == "import") {
      import_weights(arguments[2], arguments[3], arguments[4]);
    } else if (arguments.size() == 4 && std::string(arguments[1]) == "export") {
      trireme::checkpoint::export_safetensors(
          trireme::checkpoint::latest(arguments[2], "checkpoint").value(), arguments[3]);
    } else {
      std::fputs(
          "usage: checkpoint_parity copy <in> <out> | resnet <name> <in> <out> | "
          "import <name> <in> <folder> | export <folder> <out>\n",
          stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
