// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/buckets.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>

namespace trireme::predict {
namespace {

// The default of Plan::bucket_bytes.
double default_bucket_bytes(double all) {
  constexpr double kMiB = 1 << 20;
  return std::clamp(all / 16, kMiB, 25 * kMiB);
}

// The position in backward of the last call that works for each parameter.
std::unordered_map<int, int> last_calls(const ModuleRecord& record, const StageWork& stage) {
  std::unordered_map<int, int> last;
  for (std::size_t i = 0; i < stage.backward.size(); ++i) {
    const OperatorCall& call = record.call(stage.backward[i]);
    for (const int parameter : record.call(call.forward_call).parameters) {
      last[parameter] = static_cast<int>(i);
    }
  }
  return last;
}

}  // namespace

std::vector<Bucket> make_buckets(const ModuleRecord& record, const StageWork& stage,
                                 const Plan& plan) {
  const auto last = last_calls(record, stage);
  std::vector<int> order;
  double all = 0;
  for (const int parameter : stage.parameters) {
    const ParameterRecord& item = record.parameters[static_cast<std::size_t>(parameter)];
    if (!item.requires_grad || !last.contains(parameter)) continue;
    order.push_back(parameter);
    all += item.bytes;
  }
  std::ranges::stable_sort(order, {}, [&](int parameter) { return last.at(parameter); });
  const double limit =
      plan.bucket_bytes > 0 ? static_cast<double>(plan.bucket_bytes) : default_bucket_bytes(all);
  std::vector<Bucket> buckets;
  for (const int parameter : order) {
    const ParameterRecord& item = record.parameters[static_cast<std::size_t>(parameter)];
    const int level = zero_level_of(plan, item.name);
    const double most =
        buckets.size() <= 1 ? std::min(limit, static_cast<double>(plan.first_bucket_bytes)) : limit;
    const bool is_full = buckets.empty() || buckets.back().bytes + item.bytes > most ||
                         buckets.back().zero_level != level;
    if (is_full) buckets.push_back({.zero_level = level});
    Bucket& bucket = buckets.back();
    const bool is_compressed = plan.wire != GradientCompression::kNone && !item.is_half;
    bucket.parameters.push_back(parameter);
    bucket.bytes += item.bytes;
    bucket.gradient_bytes += is_compressed ? item.bytes / 2 : item.bytes;
    bucket.ready_after = std::max(bucket.ready_after, last.at(parameter));
  }
  return buckets;
}

DataRanks data_ranks_of(const Plan& plan) {
  const std::int64_t all = data_ranks(plan, 1);
  return {.all = all, .shard = plan.shard_ranks > 0 ? plan.shard_ranks : all};
}

std::vector<BucketExchange> reductions_of(const Bucket& bucket, const DataRanks& ranks) {
  const double bytes = bucket.gradient_bytes;
  std::vector<BucketExchange> all;
  if (bucket.zero_level == 0) {
    all = {{.collective = Collective::kAllReduce, .bytes = bytes, .ranks = ranks.all}};
  } else {
    all = {{.collective = Collective::kReduceScatter, .bytes = bytes, .ranks = ranks.shard},
           {.collective = Collective::kAllReduce,
            .bytes = bytes / static_cast<double>(ranks.shard),
            .ranks = ranks.all / ranks.shard,
            .stride = ranks.shard}};
  }
  std::erase_if(all, [](const BucketExchange& exchange) { return exchange.ranks == 1; });
  return all;
}

BucketExchange gather_of(const Bucket& bucket, const DataRanks& ranks) {
  return {.collective = Collective::kAllGather, .bytes = bucket.bytes, .ranks = ranks.shard};
}

double exchange_seconds(const RankGroups& groups, const BucketExchange& exchange) {
  return exchange.stride > 1 ? groups.seconds_of_every(kDataAxis, exchange.stride,
                                                       exchange.collective, exchange.bytes)
                             : groups.seconds_of_part(kDataAxis, exchange.ranks,
                                                      exchange.collective, exchange.bytes);
}

void check_shares(const std::vector<Bucket>& buckets, const ModuleRecord& record,
                  const DataRanks& ranks) {
  constexpr std::int64_t kLine = 64;
  bool has_slices = false;
  std::int64_t most_lines = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.zero_level == 0) continue;
    has_slices = true;
    std::int64_t lines = 0;
    for (const int parameter : bucket.parameters) {
      const double bytes = record.parameters[static_cast<std::size_t>(parameter)].bytes;
      lines += (static_cast<std::int64_t>(bytes) + kLine - 1) / kLine;
    }
    const std::int64_t of_rank = (lines + ranks.shard - 1) / ranks.shard;
    if (of_rank * (ranks.shard - 1) < lines) return;  // the last rank has a part, too
    most_lines = std::max(most_lines, lines);
  }
  if (!has_slices) return;
  throw UsageError(
      join_message("the plan shards ", most_lines * kLine, " bytes of parameters of a stage over ",
                   ranks.shard, " ranks, which leaves ranks without any of them"),
      "use a lower zero_level, or fewer ranks along data");
}

double bucket_memory(const std::vector<Bucket>& buckets, const Plan& plan) {
  double largest = 0;
  double all = 0;
  double largest_gradient = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.zero_level == 3) {
      largest = std::max(largest, bucket.bytes);
      all += bucket.bytes;
    }
    if (bucket.zero_level >= 2) {
      largest_gradient = std::max(largest_gradient, bucket.gradient_bytes);
    }
  }
  const auto limit = static_cast<double>(plan.gathered_buckets);
  const double gathered = limit == 0 ? all : std::min(all, limit * largest);
  return gathered + largest_gradient;
}

}  // namespace trireme::predict
