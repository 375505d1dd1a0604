// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/writers.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/comm/torch_version.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/report/append_file.h>
#include <trireme/report/csv_file.h>
#include <trireme/report/jsonl_file.h>
#include <trireme/report/number.h>
#include <trireme/report/provenance.h>
#include <trireme/report/tensorboard_file.h>
#include <trireme/train/model.h>
#include <trireme/train/monitors.h>
#include <trireme/version.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <typeinfo>
#include <utility>

namespace trireme {
namespace {

double seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double seconds_since(std::chrono::steady_clock::time_point moment) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - moment).count();
}

report::Moment moment_of(const RunContext& run) {
  const Progress progress = run.model.progress();
  return {
      .time = seconds_since_1970(), .epoch = progress.epoch, .global_step = progress.global_step};
}

report::Texts settings_of(const Model& model) {
  const ModelOptions& options = model.options();
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : model.module().parameters()) elements += parameter.numel();
  const torch::optim::Optimizer& optimizer = model.optimizer();
  report::Texts settings = {{"module", model.module().name()},
                            {"parameters", std::to_string(elements)},
                            {"optimizer", c10::demangle(typeid(optimizer).name())},
                            {"plan", to_string(options.plan)}};
  if (options.clip_norm) settings["clip_norm"] = report::shortest(*options.clip_norm);
  if (options.autocast) settings["autocast"] = c10::toString(*options.autocast);
  if (options.deterministic) settings["deterministic"] = std::to_string(*options.deterministic);
  return settings;
}

report::Texts environment_of(const Model& model) {
  report::Texts environment = {{"trireme", TRIREME_VERSION},
                               {"torch", comm::loaded_torch_version()},
                               {"host", host_name()},
                               {"pid", std::to_string(::getpid())},
                               {"cores", std::to_string(available_cores())},
                               {"memory_bytes", std::to_string(available_memory())},
                               {"threads", std::to_string(at::get_num_threads())},
                               {"device", model.device().str()},
                               {"engine", model.options().group.engine()}};
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::current_path(failure);
  environment["command"] = report::command_line();
  environment["folder"] = folder.string();
  if (const auto revision = report::git_revision(folder)) environment["git_revision"] = *revision;
  return environment;
}

// Returns the dtype of matrix products as PyTorch spells it: that of autocast, or that of most
// elements of the parameters.
std::string dtype_of(const Model& model) {
  if (model.options().autocast)
    return std::string(c10::getDtypeNames(*model.options().autocast).first);
  std::map<at::ScalarType, std::int64_t> elements;
  for (const at::Tensor& parameter : model.module().parameters()) {
    elements[parameter.scalar_type()] += parameter.numel();
  }
  if (elements.empty()) return {};
  const at::ScalarType dtype =
      std::ranges::max_element(elements, {}, [](const auto& item) { return item.second; })->first;
  const bool uses_tf32 =
      dtype == at::kFloat && model.device().is_cuda() &&
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
          at::Float32Precision::TF32;
  return uses_tf32 ? "tf32" : std::string(c10::getDtypeNames(dtype).first);
}

// Adds the peak of the devices, if TRIREME_CLUSTER names their description.
void add_peak(report::RunRecord& record) {
  const auto cluster = detail::cluster_of_environment();
  if (!cluster) return;
  try {
    record.peak_flops = cluster::peak_flops(*cluster, record.world_size, record.dtype);
    record.environment["cluster"] = cluster->name;
  } catch (const UsageError& error) {  // the training itself needs no peak
    if (record.rank == 0) warn("the peak FLOP/s of this run are not recorded: ", error.what());
  }
}

std::optional<double> learning_rate_of(const Model& model) {
  const auto& groups = model.optimizer().param_groups();
  if (groups.empty()) return {};
  return groups.front().options().get_lr();
}

}  // namespace

RecordWriter::RecordWriter(std::filesystem::path folder, std::int64_t every_steps, Ranks ranks)
    : folder_(std::move(folder)), every_steps_(every_steps), ranks_(ranks) {
  if (every_steps >= 1) return;
  throw UsageError(join_message("a writer writes every n-th step, got n = ", every_steps),
                   "give 1 or more");
}

void RecordWriter::on_run_begin(const RunContext& run) {
  file_.reset();
  if (ranks_ == Ranks::kFirst && run.rank != 0) return;
  if (run.is_dry_run) return report::check_can_write(folder_);
  model_ = &run.model;
  file_ = open(run);
  began_ = last_ = std::chrono::steady_clock::now();
  steps_ = {.steps = 0};
  report::RunRecord record{.moment = moment_of(run),
                           .rank = run.rank,
                           .world_size = run.world_size,
                           .epochs = run.last_epoch,
                           .steps_in_epoch = run.steps_in_epoch,
                           .tokens_per_sample = tokens_per_sample(),
                           .flops_per_sample = flops_per_sample(),
                           .dtype = dtype_of(run.model),
                           .settings = settings(),
                           .environment = environment_of(run.model)};
  record.settings.merge(settings_of(run.model));
  if (record.flops_per_sample) add_peak(record);
  file_->write(record);
}

void RecordWriter::on_epoch_begin(const EpochContext& /*epoch*/) {
  // The time between epochs belongs to no record.
  last_ = std::chrono::steady_clock::now();
}

void RecordWriter::on_step_end(const StepEndContext& step) {
  if (!file_) return;
  report::PhaseSeconds& seconds = steps_.seconds;
  seconds.data += step.seconds.data;
  seconds.forward += step.seconds.forward;
  seconds.backward += step.seconds.backward;
  seconds.communication += step.seconds.communication;
  seconds.optimizer += step.seconds.optimizer;
  seconds.callbacks += step.seconds.callbacks;
  ++steps_.steps;
  steps_.step = step.step;
  steps_.loss += static_cast<double>(step.loss);  // divided by the number of steps in flush()
  steps_.samples += step.samples;
  steps_.all_samples = steps_.all_samples.value_or(0) + step.all_samples;
  steps_.skipped += step.is_skipped ? 1 : 0;
  if (step.gradient_norm) steps_.gradient_norm = step.gradient_norm;
  if (step.loss_scale) steps_.loss_scale = step.loss_scale;
  for (const auto& [name, value] : *step.run.scalars) steps_.scalars[name] = value;
  steps_.moment = {
      .time = seconds_since_1970(), .epoch = step.epoch, .global_step = step.global_step};
  if (step.global_step % every_steps_ != 0) return;
  flush();
}

// Writes the record of the steps since the last one, if there are any.
void RecordWriter::flush() {
  if (!file_ || steps_.steps == 0) return;
  const MemoryUse use = memory_use(model_->device());
  steps_.memory_bytes = use.resident;
  steps_.peak_memory_bytes = use.peak_resident;
  steps_.device_memory_bytes = use.device;
  steps_.learning_rate = learning_rate_of(*model_);
  steps_.loss /= static_cast<double>(steps_.steps);
  steps_.seconds.total = seconds_since(last_);
  file_->write(steps_);
  steps_ = {.steps = 0};
  last_ = std::chrono::steady_clock::now();
}

// Ends the record of the steps, so that its time does not include the evaluation.
void RecordWriter::on_evaluation_begin(const EvaluationContext& /*evaluation*/) { flush(); }

void RecordWriter::on_evaluation_end(const EvaluationEndContext& evaluation) {
  if (!file_) return;
  file_->write(report::EvaluationRecord{.moment = moment_of(evaluation.run),
                                        .loss = evaluation.evaluation.loss,
                                        .accuracy = evaluation.evaluation.accuracy,
                                        .samples = evaluation.evaluation.samples,
                                        .seconds = evaluation.seconds,
                                        .scalars = *evaluation.run.scalars});
}

void RecordWriter::on_epoch_end(const EpochEndContext& epoch) {
  if (!file_) return;
  flush();
  file_->write(report::EpochRecord{.moment = moment_of(epoch.run),
                                   .loss = epoch.mean_loss,
                                   .samples = epoch.samples,
                                   .seconds = epoch.seconds,
                                   .scalars = *epoch.run.scalars});
}

void RecordWriter::on_checkpoint_end(const CheckpointEndContext& checkpoint) {
  if (!file_) return;
  file_->write(report::CheckpointRecord{.moment = moment_of(checkpoint.run),
                                        .path = checkpoint.path.string(),
                                        .seconds = checkpoint.seconds});
}

void RecordWriter::on_run_end(const RunContext& run) {
  if (!file_) return;
  flush();
  file_->write(report::EndRecord{.moment = moment_of(run),
                                 .is_stopped = run.model.is_stopped(),
                                 .seconds = seconds_since(began_)});
  file_.reset();
}

// A failure to write must not replace the exception that ends the training.
void RecordWriter::on_failure(const FailureContext& failure) noexcept {
  if (!file_) return;
  try {
    flush();
    file_->write(
        report::FailureRecord{.moment = moment_of(failure.run), .message = failure.message});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see above
  }
  file_.reset();
}

std::unique_ptr<report::RecordFile> CsvWriter::open(const RunContext& /*run*/) {
  return std::make_unique<report::CsvFile>(folder() / "metrics.csv");
}

JsonlWriter::JsonlWriter(const JsonlWriterOptions& options)
    : RecordWriter(options.folder, options.every_steps, Ranks::kAll),
      settings_(options.settings),
      tokens_per_sample_(options.tokens_per_sample),
      flops_per_sample_(options.flops_per_sample) {
  if (tokens_per_sample_.value_or(1) < 1) {
    throw UsageError(join_message("JsonlWriterOptions::tokens_per_sample is ", *tokens_per_sample_),
                     "give the length of the sequences, or leave it out");
  }
  const double flops = flops_per_sample_.value_or(1);
  if (std::isfinite(flops) && flops > 0) return;
  throw UsageError(join_message("JsonlWriterOptions::flops_per_sample is ", flops,
                                ", expected a finite number above 0"),
                   "give what predict::model_flops counts for a sample, or leave it out");
}

std::unique_ptr<report::RecordFile> JsonlWriter::open(const RunContext& run) {
  return std::make_unique<report::JsonlFile>(folder() /
                                             join_message("events-rank", run.rank, ".jsonl"));
}

std::unique_ptr<report::RecordFile> TensorBoardWriter::open(const RunContext& /*run*/) {
  return std::make_unique<report::TensorBoardFile>(folder(), seconds_since_1970());
}

}  // namespace trireme
