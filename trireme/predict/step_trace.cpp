// SPDX-License-Identifier: Apache-2.0
// The trace of a simulated step. Spans are placed in the rows of traces of real runs.
#include <trireme/base/error.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/simulated_step.h>
#include <trireme/report/trace_text.h>

#include <cstdint>

namespace trireme::predict {
namespace {

using Row = SimulatedSpan::Row;

report::TraceSpan trace_span(const SimulatedSpan& span, std::int64_t rank) {
  report::TraceSpan made = {.rank = rank,
                            .row = static_cast<int>(span.row),
                            .name = span.name,
                            .begin = span.begin / cluster::kMicro,
                            .end = span.end / cluster::kMicro};
  const auto add = [&made](const char* name, const auto& value) {
    made.arguments.emplace_back(name, value);
  };
  if (span.stage >= 0) add("stage", static_cast<std::int64_t>(span.stage));
  if (span.micro_batch >= 0) add("micro_batch", static_cast<std::int64_t>(span.micro_batch));
  if (span.flops > 0) add("gigaflops", span.flops / cluster::kGiga);
  if (span.bytes > 0) add("bytes", span.bytes);
  if (!span.parameters.empty()) add("parameters", span.parameters);
  return made;
}

// In GiB, with the parts that do not change during the step.
void add_memory(const SimulatedRank& rank, const RankMemoryPrediction& parts,
                report::TraceText& trace) {
  const double state = parts.total() - parts.activations - parts.temporary -
                       (rank.makes_gradients() ? parts.gradients : 0);
  for (const MemoryMoment& moment : rank.memory) {
    trace.add_values(rank.rank, "memory (GiB)", moment.time / cluster::kMicro,
                     {{"all", (state + moment.total()) / cluster::kGiB},
                      {"activations", moment.activations / cluster::kGiB},
                      {"temporary", moment.temporary / cluster::kGiB}});
  }
}

}  // namespace

std::string to_trace(const SimulatedStep& step) {
  report::TraceText trace;
  for (std::size_t i = 0; i < step.ranks.size(); ++i) {
    const SimulatedRank& rank = step.ranks[i];
    trace.add_rank(rank.rank);
    trace.label_rank(rank.rank, "simulated");
    trace.name_row(rank.rank, static_cast<int>(Row::kComputation), "computation");
    trace.name_row(rank.rank, static_cast<int>(Row::kCommunication), "communication");
    for (const SimulatedSpan& span : rank.spans) {
      if (span.row == Row::kMessages) {
        trace.add_overlapping("messages", trace_span(span, rank.rank));
      } else {
        trace.add(trace_span(span, rank.rank));
      }
    }
    add_memory(rank, step.prediction.memory[i], trace);
  }
  return trace.closed();
}

}  // namespace trireme::predict
