// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan.h>

#include <trireme/base/error.h>

namespace trireme {
namespace {

void check_at_least_one(const char* field, std::int64_t value) {
  if (value >= 1) return;
  throw UsageError(join_message("plan: ", field, " is ", value, ", expected 1 or more"),
                   "correct the plan before handing it to parallelize");
}

}  // namespace

std::string to_string(const Plan& plan) {
  return join_message("data parallel        ", plan.data_parallel ? "yes" : "no", "\n",
                      "micro-batches        ", plan.micro_batches, "\n", "bucket bytes         ",
                      plan.bucket_bytes, "\n", "first bucket bytes   ", plan.first_bucket_bytes,
                      "\n", "all-reduce streams   ", plan.allreduce_streams, "\n",
                      "ZeRO stage           ", plan.zero_stage, "\n", "broadcast buffers    ",
                      plan.broadcast_buffers ? "yes" : "no", "\n");
}

void validate(const Plan& plan) {
  check_at_least_one("micro_batches", plan.micro_batches);
  check_at_least_one("bucket_bytes", plan.bucket_bytes);
  check_at_least_one("first_bucket_bytes", plan.first_bucket_bytes);
  if (plan.zero_stage < 0 || plan.zero_stage > 2 || (plan.zero_stage > 0 && !plan.data_parallel)) {
    throw UsageError(join_message("plan: zero_stage is ", plan.zero_stage, " and data_parallel ",
                                  plan.data_parallel ? "true" : "false",
                                  ", expected 0 to 2, and data_parallel for more than 0"),
                     "correct the plan before handing it to parallelize");
  }
  if (plan.allreduce_streams < 0 || plan.allreduce_streams > 16) {
    throw UsageError(
        join_message("plan: allreduce_streams is ", plan.allreduce_streams, ", expected 0 to 16"),
        "correct the plan before handing it to parallelize");
  }
}

}  // namespace trireme
