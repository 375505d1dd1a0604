// SPDX-License-Identifier: Apache-2.0
// Times forward and backward of one stage, with the exchanges along `data` that run beside them.
#pragma once

#include <trireme/predict/buckets.h>
#include <trireme/predict/memory_walk.h>
#include <trireme/predict/stage_work.h>
#include <trireme/predict/step_costs.h>
#include <trireme/predict/streams.h>

#include <cstddef>
#include <set>
#include <vector>

namespace trireme::predict {

/// A stage with what one micro-batch costs in it. Times are in seconds.
struct StageModel {
  StageWork work{};
  std::vector<Bucket> buckets{};
  std::vector<int> bucket_of{};  ///< by parameter; -1: none
  ActivationMemory memory{};
  double compute = 0;        ///< operators, without recomputation
  double recomputation = 0;  ///< operators that backward repeats
  double layouts = 0;        ///< collectives along axes of layouts, also repeated ones
  double weight = 0;         ///< gradients of parameters
  double flops = 0;          ///< FLOPs, without recomputation
  double repeated_flops = 0;
};

/// What a pass over a stage includes.
struct PassOptions {
  bool has_forward = true;
  bool has_backward = true;
  /// ZeRO levels 1 and 2: forward gathers the parameters that the optimizer has stepped.
  bool gathers_at_start = false;
  bool reduces = false;  ///< backward reduces the gradients
};

/// How finely computation is divided into tasks. It changes no time.
enum class PassDetail {
  kExchanges,  ///< only where something is exchanged
  kPasses,     ///< and at the ends of forward and backward
  kModules,    ///< and where the module changes
  kOperators,  ///< every call of an operator
};

/// What a task of a pass does.
struct TaskLabel {
  enum class Kind { kOperators, kLayouts, kGather, kReduce, kOptimizer };
  Kind kind = Kind::kOperators;
  int micro_batch = 0;       ///< counted by StagePass::add
  bool is_backward = false;  ///< belongs to backward, also if it repeats forward
  bool is_repeated = false;  ///< recomputation
  int call = -1;             ///< the first of its calls, as a position in ModuleRecord::calls
  /// Positions of its calls in StageWork::forward or backward; none (-1) for recomputation.
  int first = -1;
  int last = -1;
  int bucket = -1;   ///< of gathers and reductions
  double flops = 0;  ///< of its calls
};

/// A task of a pass with its time.
struct LabelledSpan {
  TaskLabel label;
  TaskSpan span;
};

/// Builds the tasks of passes over one stage, one after the other, and runs them.
class StagePass {
 public:
  StagePass(const StepCosts& costs, const StageModel& stage,
            PassDetail detail = PassDetail::kExchanges)
      : costs_(costs), stage_(stage), detail_(detail) {}

  /// Adds a micro-batch.
  void add(const PassOptions& options);
  /// Adds what brings gradients to the layouts of their parameters, after the last micro-batch.
  void add_gradient_layouts();
  /// Adds a computation that waits for all communication: the optimizer.
  void add_last(double seconds);
  /// Returns the time until the last task has ended.
  double seconds();
  /// Returns all tasks in order, with their times in seconds from the start.
  std::vector<LabelledSpan> spans();

 private:
  bool gathers(const Bucket& bucket, bool at_start) const;
  void forward(const PassOptions& options);
  void backward(const PassOptions& options);
  void repeat_region(int forward_call, std::set<std::size_t>& repeated);
  void begin_gathers();
  void gather_for(int call, bool at_start, bool is_ahead);
  void reduce(int number);
  void compute(int call, int position, bool is_repeated);
  void compute(const TaskLabel& label, double seconds);
  bool continues(const TaskLabel& label) const;
  void end_pass(int num_calls);
  int communicate(double seconds, const TaskLabel& label, int after);
  void flush(bool always);

  const StepCosts& costs_;
  const StageModel& stage_;
  PassDetail detail_;
  std::vector<Task> tasks_;
  std::vector<TaskLabel> labels_;   // of tasks_
  std::set<int> gathered_;          // buckets gathered in this pass
  std::vector<int> before_gather_;  // the computation that ends when each gather is needed
  std::vector<int> needed_;         // what the next computation waits for
  int last_compute_ = -1;
  double compute_ = 0;  // seconds not yet in a task
  TaskLabel label_;     // of these
  TaskLabel pass_;      // micro-batch and direction of the present pass
  int next_call_ = 0;   // position of the first call that is in no label
  int micro_batches_ = 0;
};

}  // namespace trireme::predict
