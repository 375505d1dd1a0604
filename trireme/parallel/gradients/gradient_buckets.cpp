// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/gradient_buckets.h>

#include <trireme/base/error.h>
#include <trireme/parallel/buckets/divide.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace trireme::detail {
namespace {

constexpr int kSteps = 2;
constexpr std::int64_t kMostElements = 4096;

// Returns the relative rounding error, per added rank, of the mean of equal numbers.
double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    default:
      return 0x1p-7;  // bf16
  }
}

at::Tensor first_elements(const at::Tensor& gradients) {
  return gradients.narrow(0, 0, std::min(kMostElements, gradients.numel()));
}

// Returns the type in which gradients of type `own` are sent. As in HalfPrecisionCommHook, only
// fp32 is rounded.
at::ScalarType type_of(GradientCompression wire, at::ScalarType own) {
  if (own != at::kFloat) return own;
  switch (wire) {
    case GradientCompression::kFp16:
      return at::kHalf;
    case GradientCompression::kBf16:
      return at::kBFloat16;
    default:
      return own;
  }
}

// Adds this rank's slice as received from every rank, [ranks, slice], in rank order. The sum is
// computed in fp32 and rounded once.
at::Tensor fold(const at::Tensor& all) {
  at::Tensor sum = all[0].to(at::kFloat);
  for (std::int64_t rank = 1; rank < all.size(0); ++rank) sum.add_(all[rank]);
  return sum.to(all.scalar_type());
}

}  // namespace

bool SameRowsCheck::wants_sample() const {
  return num_steps_ < kSteps && data_.size() > 1 && !sample_.defined();
}

void SameRowsCheck::take_sample(const at::Tensor& own_gradients) {
  if (!at::isFloatingType(own_gradients.scalar_type()) || own_gradients.numel() == 0) return;
  sample_ = first_elements(own_gradients).clone();
}

void SameRowsCheck::compare(const at::Tensor& reduced_gradients, double divisor) {
  if (!sample_.defined()) return;
  const at::ScalarType type = sample_.scalar_type();
  const at::Tensor if_same = sample_.to(at::kDouble).mul_(data_.size() / divisor);
  sample_.reset();
  ++num_steps_;
  const double largest = if_same.abs().max().item<double>();
  const double distance =
      first_elements(reduced_gradients).to(at::kDouble).sub(if_same).abs().max().item<double>();
  const bool is_same = std::isfinite(largest) && largest > 0 &&
                       distance <= data_.size() * rounding_of(type) * largest;
  num_same_ += is_same ? 1 : 0;
  if (num_same_ < kSteps || data_.rank() != 0) return;
  TORCH_WARN("the ", data_.size(),
             " ranks along data have computed the same gradients in their first two steps, as they "
             "do where all of them read the same rows; each step then takes ",
             data_.size(),
             " times the work that it needs. Give each rank its own part, which "
             "trireme::data_part(plan, group) names: loader.shard({.index = part.index, .count = "
             "part.count}). Where the same rows are meant, as in data of ones, ignore this.");
}

BucketSums sums_of(const Plan& plan) {
  return {.reduction = plan.gradient_reduction,
          .predivide = plan.gradient_predivide,
          .wire = plan.wire,
          .divides_by_ranks = !plan.divide_by_active_ranks && plan.micro_batches == 1};
}

GradientBuckets::GradientBuckets(const std::vector<NamedTensor>& parameters, const BucketSums& sums,
                                 const DataGroups& data_groups, Shards* shards)
    : parameters_(parameters),
      sums_(sums),
      data_groups_(data_groups),
      shards_(shards),
      same_rows_(data_groups.all) {}

bool GradientBuckets::can_carry_tail(const std::vector<BucketLayout>& layouts) const {
  const auto cannot = [](const NamedTensor& item) {
    return item.tensor.element_size() < 4 || !item.tensor.is_cpu();
  };
  return !layouts.empty() && sums_.wire == GradientCompression::kNone && sums_.predivide == 1 &&
         std::ranges::all_of(layouts, [](const auto& layout) { return layout.kind == 0; }) &&
         std::ranges::none_of(parameters_, cannot);
}

void GradientBuckets::fill(const std::vector<BucketLayout>& layouts, std::int64_t tail) {
  buckets_ = std::vector<Bucket>(layouts.size());
  places_.assign(parameters_.size(), at::Tensor());
  lent_.clear();
  std::size_t num_sharded = 0;
  std::map<std::string, std::vector<std::size_t>> borrowers;  // by device
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    Bucket& bucket = buckets_[number];
    bucket.zero_level = layouts[number].kind;
    if (bucket.zero_level > 0) bucket.shard = num_sharded++;
    for (const BucketLayout::Place& place : layouts[number].places) {
      bucket.members.push_back(place.tensor);
    }
    if (bucket.zero_level >= 2) {
      borrowers[options_of(number).device().str()].push_back(number);
    } else {
      const bool is_last = number + 1 == layouts.size();
      allocate(number, layouts[number].elements, is_last ? tail : 0);
    }
  }
  for (const auto& [device, numbers] : borrowers) lend(numbers);
  for (std::size_t number = 0; number < layouts.size(); ++number) prepare(number, layouts[number]);
}

at::TensorOptions GradientBuckets::options_of(std::size_t bucket) const {
  return parameters_[buckets_[bucket].members.front()].tensor.options().requires_grad(false);
}

std::int64_t GradientBuckets::bytes_of(std::size_t bucket) const {
  const auto size = static_cast<std::int64_t>(options_of(bucket).dtype().itemsize());
  return shards_->elements(buckets_[bucket].shard) * size;
}

// Allocates a bucket's own memory. This rank's slice of the sum overwrites its own summand.
void GradientBuckets::allocate(std::size_t number, std::int64_t elements, std::int64_t tail) {
  Bucket& bucket = buckets_[number];
  if (bucket.zero_level > 0) elements = shards_->elements(bucket.shard);
  bucket.memory = comm::zeros_registered({elements + tail}, options_of(number), stream_of(number));
  bucket.gradients = bucket.memory.narrow(0, 0, elements);
  if (tail > 0) {
    tail_ = slice_of(bucket.memory, elements, at::IntArrayRef{tail}, at::IntArrayRef{1});
  }
  if (bucket.zero_level == 0) return;
  const std::int64_t slice = shards_->slice_elements(bucket.shard);
  // Only engines with shared memory allow input and output to overlap.
  bucket.own = data_groups_.shard.shared_memory() != nullptr
                   ? bucket.memory.narrow(0, data_groups_.shard.rank() * slice, slice)
                   : at::zeros({slice}, options_of(number));
}

// Allocates memory that the buckets of a device use in turn. A bucket takes the memory that was
// used longest ago, so that up to two exchanges of each stream are under way while it is filled.
void GradientBuckets::lend(const std::vector<std::size_t>& borrowers) {
  const std::size_t period = 2 * data_groups_.shard_streams.size();
  for (std::size_t first = 0; first < std::min(period, borrowers.size()); ++first) {
    std::int64_t longest = 0;
    for (std::size_t i = first; i < borrowers.size(); i += period) {
      longest = std::max(longest, bytes_of(borrowers[i]));
    }
    const std::size_t number = borrowers[first];
    lent_.push_back(
        comm::zeros_registered({longest}, options_of(number).dtype(at::kByte), stream_of(number)));
    const bool is_rounded = sums_.wire != GradientCompression::kNone;
    const at::Tensor rounded =
        at::empty({is_rounded ? longest / 2 : 0}, options_of(number).dtype(at::kByte));
    for (std::size_t i = first; i < borrowers.size(); i += period) {
      Bucket& bucket = buckets_[borrowers[i]];
      bucket.is_lent = true;
      const at::ScalarType own = options_of(borrowers[i]).dtype().toScalarType();
      if (const at::ScalarType sent = type_of(sums_.wire, own); sent != own) {
        bucket.sent = rounded.narrow(0, 0, bytes_of(borrowers[i]) / 2).view(sent);
      }
      if (i >= period) bucket.before = borrowers[i - period];
      bucket.memory = lent_.back()
                          .narrow(0, 0, bytes_of(borrowers[i]))
                          .view(options_of(borrowers[i]).dtype().toScalarType());
      bucket.gradients = bucket.memory;
      bucket.own = at::zeros({shards_->slice_elements(bucket.shard)}, options_of(borrowers[i]));
    }
  }
}

void GradientBuckets::prepare(std::size_t number, const BucketLayout& layout) {
  Bucket& bucket = buckets_[number];
  for (const BucketLayout::Place& place : layout.places) {
    const at::Tensor& parameter = parameters_[place.tensor].tensor;
    places_[place.tensor] =
        slice_of(bucket.memory, place.offset, parameter.sizes(), parameter.strides());
    bucket.exchanged.gradients.push_back(places_[place.tensor]);
    bucket.exchanged.names.push_back(parameters_[place.tensor].name);
  }
  bucket.exchanged.memory = bucket.gradients;
  const std::size_t others = bucket.members.size() - 1;
  bucket.label = "gradient of " + bucket.exchanged.names.front() +
                 (others > 0 ? join_message(" and ", others, " more") : "");
  const at::TensorOptions options = options_of(number);
  const at::ScalarType own = options.dtype().toScalarType();
  bucket.divisor = divisor_for(options, 1);
  const at::ScalarType sent = type_of(sums_.wire, own);
  if (bucket.zero_level > 0 && sent != own) {
    if (!bucket.sent.defined()) {
      bucket.sent = at::empty({bucket.gradients.numel()}, options.dtype(sent));
    }
    const bool is_ordered = data_groups_.shard.summation_order() == comm::SummationOrder::kRank;
    bucket.received = at::empty({is_ordered ? 1 : data_groups_.shard.size(), bucket.own.numel()},
                                options.dtype(sent));
    // bf16 has the range of fp32 and needs no division.
    if (sent == at::kHalf) bucket.scale = predivisor_of(sent, data_groups_.shard.size());
  }
}

// Returns true if the engine divides while it sums, which saves a pass over all gradients. Shared
// memory can do so if the divisor is the number of ranks and the bucket carries no counts. The bits
// are those of a sum that is divided afterwards. Half precision is divided in fp32, before the sum
// is rounded.
bool GradientBuckets::is_averaged(const Bucket& bucket) const {
  if (sums_.reduction != GradientReduction::kMean || !sums_.divides_by_ranks ||
      sums_.predivide != 1) {
    return false;
  }
  const bool is_exchanged = bucket.zero_level == 0 && hook_ != nullptr;
  const bool is_summed_twice = bucket.zero_level > 0 && data_groups_.replicas.size() > 1;
  const bool carries_counts = bucket.memory.numel() != bucket.gradients.numel();
  const at::ScalarType type = bucket.gradients.scalar_type();
  const auto& streams = bucket.zero_level > 0 ? data_groups_.shard_streams : data_groups_.streams;
  return streams.front().shared_memory() != nullptr && !is_exchanged && !is_summed_twice &&
         !carries_counts && !bucket.sent.defined() && at::isFloatingType(type);
}

// Returns the part of the divisor that is applied before the sum.
double GradientBuckets::predivisor(const Bucket& bucket) const {
  if (sums_.predivide != 1) return sums_.predivide;
  if (sums_.reduction != GradientReduction::kMean || is_averaged(bucket)) return 1;
  return predivisor_of(bucket.gradients.scalar_type(), data_groups_.all.size());
}

// Returns a number for divide(), undefined if it is 1.
at::Tensor GradientBuckets::divisor_of(Bucket& bucket, double value) {
  if (value == 1) return {};
  return bucket.divisor.fill_(value);
}

at::Tensor GradientBuckets::remaining_divisor(std::size_t number, double divisor) {
  Bucket& bucket = buckets_[number];
  return is_averaged(bucket) ? at::Tensor() : divisor_of(bucket, divisor / predivisor(bucket));
}

// Samples one bucket that is summed without rounding: this rank's summands of the elements whose
// sum it gets back.
void GradientBuckets::take_sample(std::size_t number) {
  const Bucket& bucket = buckets_[number];
  const bool is_summed_as_it_is = !bucket.sent.defined() && (bucket.zero_level > 0 || !hook_);
  if (!is_summed_as_it_is || !same_rows_.wants_sample()) return;
  const std::int64_t slice = bucket.zero_level > 0 ? bucket.own.numel() : 0;
  same_rows_.take_sample(
      slice == 0 ? bucket.gradients
                 : bucket.gradients.narrow(0, data_groups_.shard.rank() * slice, slice));
  sampled_ = number;
}

void GradientBuckets::acquire(std::size_t number) {
  if (const auto before = buckets_[number].before) complete(buckets_[*before]);
}

void GradientBuckets::launch(std::size_t number) {
  Bucket& bucket = buckets_[number];
  take_sample(number);
  divide(bucket.gradients, bucket.gradients, divisor_of(bucket, predivisor(bucket)));
  submit(number);
}

void GradientBuckets::launch_copies(std::size_t number,
                                    const std::function<at::Tensor(std::size_t)>& gradient_of) {
  Bucket& bucket = buckets_[number];
  const at::Tensor divisor = divisor_of(bucket, predivisor(bucket));
  for (const std::size_t parameter : bucket.members) {
    if (const at::Tensor gradient = gradient_of(parameter); gradient.defined()) {
      divide(places_[parameter], gradient, divisor);
    } else {
      places_[parameter].zero_();
    }
  }
  submit(number);
}

void GradientBuckets::submit(std::size_t number) {
  Bucket& bucket = buckets_[number];
  const comm::Group& stream = stream_of(number);
  const comm::ReduceOp op = is_averaged(bucket) ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum;
  if (bucket.zero_level == 0 && hook_) {
    bucket.finish_exchange = hook_->start(bucket.exchanged, stream);
  } else if (bucket.zero_level == 0) {
    bucket.work = comm::all_reduce_async(bucket.memory, stream, op, bucket.label);
  } else if (bucket.sent.defined()) {
    bucket.sent.copy_(bucket.scale == 1 ? bucket.gradients : bucket.gradients.div_(bucket.scale));
    bucket.work =
        bucket.received.size(0) == 1
            ? comm::reduce_scatter_async(bucket.received[0], bucket.sent, stream,
                                         comm::ReduceOp::kSum, bucket.label)
            : comm::all_to_all_async(bucket.received.flatten(), bucket.sent, stream, bucket.label);
  } else {
    bucket.work =
        comm::reduce_scatter_async(bucket.own, bucket.gradients, stream, op, bucket.label);
  }
  bucket.is_under_way = true;
}

// Waits for the sum over the ranks of a shard group, and starts the sum over replicas.
void GradientBuckets::complete(Bucket& bucket) {
  if (!std::exchange(bucket.is_under_way, false)) return;
  bucket.work.wait();
  if (const auto finish_exchange = std::exchange(bucket.finish_exchange, {})) finish_exchange();
  if (bucket.received.defined()) {
    const bool is_summed = bucket.received.size(0) == 1;
    bucket.own.copy_(is_summed ? bucket.received[0] : fold(bucket.received));
    if (bucket.scale != 1) bucket.own.mul_(bucket.scale);
  }
  if (bucket.zero_level > 0 && data_groups_.replicas.size() > 1) {
    bucket.replica_work = comm::all_reduce_async(bucket.own, data_groups_.replicas,
                                                 comm::ReduceOp::kSum, bucket.label);
  }
}

void GradientBuckets::finish(double whole_divisor) {
  for (Bucket& bucket : buckets_) complete(bucket);
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    bucket.replica_work.wait();
    const at::Tensor& sum = bucket.zero_level > 0 ? bucket.own : bucket.gradients;
    divide(sum, sum, remaining_divisor(number, whole_divisor));
  }
  if (const auto sampled = std::exchange(sampled_, std::nullopt)) {
    const Bucket& bucket = buckets_[*sampled];
    same_rows_.compare(bucket.zero_level > 0 ? bucket.own : bucket.gradients, whole_divisor);
  }
}

void GradientBuckets::abandon() {
  same_rows_.abandon();
  sampled_.reset();
  for (Bucket& bucket : buckets_) {
    bucket.is_under_way = false;
    bucket.finish_exchange = {};
  }
}

}  // namespace trireme::detail
