// SPDX-License-Identifier: Apache-2.0
// The communication benchmark through Group, over any engine: over the shared-memory engine it is
// ours, over LibTorch's Gloo a peer. --layer chooses how all_reduce is called, --registered takes
// memory that the ranks share, --tensors the memory of ordinary tensors.
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <CLI/CLI.hpp>
#include <bench/multi/comm_loop.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace comm = trireme::comm;

enum class Layer {
  kGroup,         ///< comm::all_reduce
  kAsync,         ///< comm::all_reduce_async and wait
  kProcessGroup,  ///< LibTorch's ProcessGroup::allreduce and wait, through its dispatcher
};
const std::map<std::string, Layer> kLayers = {
    {"group", Layer::kGroup}, {"async", Layer::kAsync}, {"process_group", Layer::kProcessGroup}};

c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(const comm::Group& group) {
  using c10d::ProcessGroup;
  auto result = c10::make_intrusive<ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                  group.rank(), group.size());
  result->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM, group.backend());
  result->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  return result;
}

class GroupEngine final : public bench::Engine {
 public:
  GroupEngine(trireme::World world, Layer layer, bool registered, bool tensors)
      : world_(std::move(world)),
        group_(world_.group),
        layer_(layer),
        registered_(registered),
        tensors_(tensors) {
    if (layer_ == Layer::kProcessGroup) process_group_ = process_group_of(group_);
  }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  float* allocate(std::size_t count) override {
    if (!registered_ && !tensors_) return Engine::allocate(count);
    memory_ = registered_ ? comm::zeros_registered({as_size(count)}, at::kFloat, group_)
                          : at::empty({as_size(count)}, at::kFloat);
    return memory_.mutable_data_ptr<float>();
  }
  void release(float* memory) noexcept override {
    if (registered_ || tensors_) {
      memory_.reset();
    } else {
      Engine::release(memory);
    }
  }

  void prepare(std::span<const bench::Buffers> buffers,
               const bench::Operation& operation) override {
    inputs_.clear();
    outputs_.clear();
    for (const bench::Buffers& one : buffers) {
      inputs_.push_back(at::from_blob(one.input, {as_size(operation.input_count)}, at::kFloat));
      outputs_.push_back(at::from_blob(one.output, {as_size(operation.output_count)}, at::kFloat));
    }
  }

  void run(const bench::Operation& operation, const bench::Buffers& /*buffers*/,
           std::size_t index) override {
    const at::Tensor& input = inputs_[index];
    const at::Tensor& output = outputs_[index];
    switch (operation.collective) {
      case bench::Collective::kAllReduce:
        all_reduce(output);
        return;
      case bench::Collective::kBroadcast:
        comm::broadcast(output, 0, group_);
        return;
      case bench::Collective::kAllGather:
        comm::all_gather(output, input, group_);
        return;
      case bench::Collective::kReduceScatter:
        comm::reduce_scatter(output, input, group_);
        return;
      case bench::Collective::kAllToAll:
        comm::all_to_all(output, input, group_);
        return;
    }
  }

  void barrier() override { comm::barrier(group_); }

  void maximum(std::span<double> values) override {
    const at::Tensor tensor = at::from_blob(values.data(), {as_size(values.size())}, at::kDouble);
    comm::all_reduce(tensor, group_, comm::ReduceOp::kMaximum);
  }

 private:
  static std::int64_t as_size(std::size_t count) { return static_cast<std::int64_t>(count); }

  void all_reduce(const at::Tensor& tensor) {
    switch (layer_) {
      case Layer::kGroup:
        comm::all_reduce(tensor, group_);
        return;
      case Layer::kAsync:
        comm::all_reduce_async(tensor, group_).wait();
        return;
      case Layer::kProcessGroup: {
        std::vector<at::Tensor> tensors = {tensor};
        process_group_->allreduce(tensors)->wait();
        return;
      }
    }
  }

  trireme::World world_;
  comm::Group group_;
  Layer layer_;
  bool registered_;
  bool tensors_;
  at::Tensor memory_;  // of the case that runs
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace

int main(int argc, char** argv) try {
  std::string engine = "auto";
  Layer layer = Layer::kGroup;
  bool registered = false;
  bool tensors = false;
  const bench::Plan plan = bench::parse(argc, argv, [&](CLI::App& app) {
    app.add_option("--engine", engine, "of the group");
    app.add_option("--layer", layer, "group, async or process_group")
        ->transform(CLI::CheckedTransformer(kLayers));
    app.add_flag("--registered", registered, "memory that the ranks share");
    app.add_flag("--tensors", tensors, "memory of ordinary tensors");
  });
  GroupEngine group(trireme::init({.engine = engine, .timeout = {}, .tensor_memory = {}}), layer,
                    registered, tensors);
  bench::measure(plan, group);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
