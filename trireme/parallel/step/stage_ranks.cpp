// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/stage_ranks.h>

#include <trireme/base/error.h>
#include <trireme/parallel/init/deferred.h>
#include <trireme/parallel/pipeline/devices/device_tensors.h>
#include <trireme/parallel/pipeline/devices/workers.h>
#include <trireme/parallel/pipeline/execution/on_mesh.h>
#include <trireme/schedule/passes.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace trireme::pipeline {
namespace {

// Waits until the current stream of a device has done what it was given.
void wait_for_stream(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

// One rank along `pipe` in this process: it has one executor for each record.
class RankOfGroup final : public StageRanks {
 public:
  RankOfGroup(const comm::Group& stages, const detail::ModuleLayouts& layouts, at::Device device)
      : stages_(stages), layouts_(layouts), device_(device) {}

  int process_of(int rank) const override { return rank; }
  at::Device device() const override { return device_; }
  void check(const StagedGraph& /*staged*/) const override {}
  void synchronize() const override { wait_for_stream(device_); }

  void place_first(const std::vector<at::Tensor>& all, const StagedGraph& /*staged*/) override {
    layouts_.distribute(all);
  }

  void place(const StagedGraph& staged) override {
    std::vector<at::Tensor> used;
    for (const auto& [name, tensor] : staged.tensors_of(stages_.rank())) used.push_back(tensor);
    materialize(used);
    layouts_.distribute(used);
  }

  void prepare(Record& record, const RunnerOptions& options) override {
    if (!record.executors.empty()) return;
    Program program = record.staged.program();
    ExecutorOptions of_executor;
    of_executor.device = device_;
    of_executor.name = options.name;
    if (options.reduce && !program.is_evaluation) {
      program.schedule = schedule::with_reduction(program.schedule, schedule::ReduceAfter::kStage);
      of_executor.callbacks.reduce = [&record, reduce = options.reduce](int stage, int /*number*/) {
        reduce(schedule::item(record.alone, stage));
      };
    }
    std::vector<StageCode> code =
        on_mesh(record.staged.code_of(stages_.rank(), options.numbering), layouts_.mesh());
    record.executors.emplace_back(std::in_place, std::move(program), code, stages_, of_executor);
  }

  StepResult run(Record& record, const MicroBatches& micro_batches, std::int64_t number,
                 const StepOptions& options) override {
    return record.executors.front()->step(micro_batches, number, options);
  }

 private:
  comm::Group stages_;
  const detail::ModuleLayouts& layouts_;
  at::Device device_;
};

// All ranks along `pipe` in this process, each on a thread of its own with an executor of its own.
class DevicesOfProcess final : public StageRanks {
 public:
  explicit DevicesOfProcess(const std::vector<at::Device>& devices)
      : workers_(devices), placement_(devices) {}

  int process_of(int /*rank*/) const override { return 0; }
  at::Device device() const override { return workers_.device(0); }

  // LibTorch shares its cache of casts between all threads of a process, and settings differ
  // between device types.
  void check(const StagedGraph& staged) const override {
    for (const graph::Node& node : staged.graph().nodes) {
      if (!node.autocast.is_any_enabled()) continue;
      throw UsageError("a training step over the devices of one process cannot have autocast",
                       "leave the autocast region; or cast the module, or train over ranks");
    }
  }

  void place_first(const std::vector<at::Tensor>& /*all*/, const StagedGraph& staged) override {
    placement_.add(staged);
  }

  void place(const StagedGraph& staged) override { placement_.add(staged); }

  void prepare(Record& record, const RunnerOptions& options) override {
    workers_.group(0);  // makes a group if there is none, or if a failure has ended it
    // Executors of an earlier group are unusable.
    if (!record.executors.empty() && record.group == workers_.num_groups()) return;
    std::vector<std::optional<Executor>> executors(static_cast<std::size_t>(workers_.size()));
    workers_.run([&](int rank) {
      const Place place = placement_.place(rank);
      ExecutorOptions of_executor;
      of_executor.device = place.device;
      if (!options.name.empty()) of_executor.name = join_message(options.name, ", device ", rank);
      executors[static_cast<std::size_t>(rank)].emplace(
          record.staged.program(), record.staged.code_of(rank, options.numbering, place),
          workers_.group(rank), of_executor);
    });
    record.executors = std::move(executors);
    record.group = workers_.num_groups();
  }

  StepResult run(Record& record, const MicroBatches& micro_batches, std::int64_t number,
                 const StepOptions& options) override {
    placement_.follow();
    StepOptions of_rank = options;
    of_rank.share_loss = false;  // this process has the rank with the loss
    std::vector<at::Device> others;
    for (const at::Tensor& tensor : micro_batches.front()) others.push_back(tensor.device());
    std::vector<StepResult> results(record.executors.size());
    workers_.run(
        [&](int rank) {
          const auto index = static_cast<std::size_t>(rank);
          results[index] = record.executors[index]->step(micro_batches, number, of_rank);
        },
        others);
    const Program& program = record.staged.program();
    const auto of_stage = [&](int stage) -> StepResult& {
      return results[static_cast<std::size_t>(program.schedule.rank_of(stage))];
    };
    StepResult whole;
    whole.loss = of_stage(program.loss_stage).loss;
    whole.losses = of_stage(program.loss_stage).losses;
    for (std::size_t i = 0; i < program.results.size(); ++i) {
      whole.results.push_back(std::move(of_stage(program.results[i].stage).results[i]));
    }
    whole.report = std::move(results.front().report);
    return whole;
  }

  void synchronize() const override {
    for (int rank = 0; rank < workers_.size(); ++rank) wait_for_stream(workers_.device(rank));
  }

 private:
  Workers workers_;
  Placement placement_;
};

// Returns the device with its index. A device without an index means the current one of its type.
at::Device usable(at::Device device) {
  if (device.is_cpu()) return at::Device(at::kCPU);
  const std::string name = device.str();
  const bool is_known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count = is_known ? c10::impl::VirtualGuardImpl(device.type()).deviceCount() : 0;
  if (count > 0 && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  if (device.has_index() && device.index() < count) return device;
  throw UsageError(join_message("there is no device ", name, ": LibTorch sees ", count, " of type ",
                                c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
                   "name devices that are there; the processor is \"cpu\"");
}

}  // namespace

std::unique_ptr<StageRanks> rank_of_group(const comm::Group& stages,
                                          const detail::ModuleLayouts& layouts, at::Device device) {
  return std::make_unique<RankOfGroup>(stages, layouts, device);
}

std::unique_ptr<StageRanks> devices_of_process(const std::vector<at::Device>& devices) {
  return std::make_unique<DevicesOfProcess>(devices);
}

std::vector<at::Device> usable_devices(const std::vector<at::Device>& given) {
  std::vector<at::Device> devices;
  for (const at::Device named : given) {
    const at::Device device = usable(named);
    if (!device.is_cpu() && std::ranges::find(devices, device) != devices.end()) {
      throw UsageError(join_message("device ", device.str(), " is named twice"),
                       "name it once; plan.chunks gives it several stages");
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace trireme::pipeline
