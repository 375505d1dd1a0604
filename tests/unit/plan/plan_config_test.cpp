// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan_config.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using config::Configuration;
using test::message_of;
using testing::HasSubstr;

constexpr const char* kOther = R"(
mesh = ["data=2", "tensor=3"]
layouts = ["*.weight -> Shard(0) on tensor"]
operators = ["*.mlp takes {{2, 1}, {1, 1}} and gives Shard(1) on tensor"]
sequence_attention = "ring"
stages = [["layer3", 1]]
schedule = "gpipe"
chunks = 1
recompute = ["blocks.*", "aten::gelu"]
activation_bytes = 4096
offload_activations = true
mode = "auto"
constraints = ["pipe=1", "memory_gib=4"]
data_parallel = false
micro_batches = 4
bucket_bytes = 1000
first_bucket_bytes = 10
allreduce_streams = 2
zero_level = 1
zero_level_of = [["embedding", 3], ["head", 0]]
shard_ranks = 2
gathered_buckets = 0
offload_optimizer = true
sparse_gradients = ["a.weight"]
gradient_reduction = "sum"
gradient_predivide = 2.0
wire = "bf16"
divide_by_active_ranks = true
broadcast_parameters = false
broadcast_buffers = false
sync_batch_norm = true
)";

std::string error_of(const char* text) {
  Plan plan;
  Configuration configuration(plan);
  return message_of<ConfigError>([&] { configuration.read_text(text, "plan.toml"); });
}

TEST(PlanConfig, HasEveryFieldAndReadsBackAsTheSamePlan) {
  Plan plan;
  Configuration configuration(plan);
  configuration.read_text(kOther, "plan.toml");
  // A field that plan_config.cpp lacks would still have its default.
  const auto& [mode, constraints, mesh, layouts, operators, sequence_attention, stages, schedule,
               chunks, recompute, activation_bytes, offload_activations, data_parallel,
               micro_batches, bucket_bytes, first_bucket_bytes, allreduce_streams, zero_level,
               zero_level_of, shard_ranks, gathered_buckets, offload_optimizer, sparse_gradients,
               gradient_reduction, gradient_predivide, wire, divide_by_active_ranks,
               broadcast_parameters, broadcast_buffers, sync_batch_norm] = plan;
  const auto differ = [](const auto& member, const auto& usual) { EXPECT_FALSE(member == usual); };
  const Plan usual;
  differ(mode, usual.mode);
  differ(constraints, usual.constraints);
  differ(mesh, usual.mesh);
  differ(layouts, usual.layouts);
  differ(operators, usual.operators);
  differ(sequence_attention, usual.sequence_attention);
  differ(stages, usual.stages);
  differ(schedule, usual.schedule);
  differ(chunks, usual.chunks);
  differ(recompute, usual.recompute);
  differ(activation_bytes, usual.activation_bytes);
  differ(offload_activations, usual.offload_activations);
  differ(data_parallel, usual.data_parallel);
  differ(micro_batches, usual.micro_batches);
  differ(bucket_bytes, usual.bucket_bytes);
  differ(first_bucket_bytes, usual.first_bucket_bytes);
  differ(allreduce_streams, usual.allreduce_streams);
  differ(zero_level, usual.zero_level);
  differ(zero_level_of, usual.zero_level_of);
  differ(shard_ranks, usual.shard_ranks);
  differ(gathered_buckets, usual.gathered_buckets);
  differ(offload_optimizer, usual.offload_optimizer);
  differ(sparse_gradients, usual.sparse_gradients);
  differ(gradient_reduction, usual.gradient_reduction);
  differ(gradient_predivide, usual.gradient_predivide);
  differ(wire, usual.wire);
  differ(divide_by_active_ranks, usual.divide_by_active_ranks);
  differ(broadcast_parameters, usual.broadcast_parameters);
  differ(broadcast_buffers, usual.broadcast_buffers);
  differ(sync_batch_norm, usual.sync_batch_norm);

  Plan again;
  Configuration read(again);
  read.read_text(configuration.to_toml(), "saved.toml");
  EXPECT_EQ(again, plan);
}

TEST(PlanConfig, TheDefaultIsADefaultPlan) {
  Plan plan;
  Configuration configuration(plan);
  configuration.read_text(configuration.to_toml(), "saved.toml");
  EXPECT_EQ(plan, Plan{});
}

TEST(PlanConfig, RefusesWhatNoNumberOfRanksCanCarryOut) {
  EXPECT_THAT(error_of("zero_level = 4"),
              HasSubstr("plan.toml:1:14: zero_level is 4, expected an integer, 0 to 3"));
  EXPECT_THAT(error_of("zero_level_of = [[\"a\", 4]]"), HasSubstr("ZeRO levels from 0 to 3"));
  EXPECT_THAT(error_of("micro_batches = 0"), HasSubstr("1 or more"));
  EXPECT_THAT(error_of("activation_bytes = -1"), HasSubstr("0 or more"));
  EXPECT_THAT(error_of("gathered_buckets = 1"), HasSubstr("0 or at least 2"));
  EXPECT_THAT(error_of("allreduce_streams = 17"), HasSubstr("0 to 16"));
  EXPECT_THAT(error_of("gradient_predivide = 0"), HasSubstr("above 0"));
  EXPECT_THAT(error_of("wire = \"bf61\""), HasSubstr("did you mean 'bf16'?"));
  EXPECT_THAT(error_of("zero_levl = 1"), HasSubstr("did you mean 'zero_level'?"));
}

// Plans of older versions: the keys are refused, and the error says what they are called now.
TEST(PlanConfig, NamesTheNewKeysWhereOldOnesAreGiven) {
  EXPECT_THAT(error_of("zero_stage = 1"), HasSubstr("there is no setting 'zero_stage'"));
  EXPECT_THAT(error_of("zero_stage = 1"), HasSubstr("it is 'zero_level' now"));
  EXPECT_THAT(error_of("zero_stage_of = [[\"a\", 1]]"), HasSubstr("it is 'zero_level_of' now"));
}

}  // namespace
}  // namespace trireme
