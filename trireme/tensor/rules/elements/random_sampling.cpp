// SPDX-License-Identifier: Apache-2.0
// Random numbers that do not depend on the mesh. Every call takes one key from the generator, which
// has the same seed on all ranks. Element i of the whole tensor is what Philox makes of the key and
// i. Each rank draws its part alone, and a mesh of one rank draws the same values. (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011; docs/design/numerics.md, rule 10.)
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <numbers>
#include <vector>

namespace trireme::tensor {
namespace {

// The number of elements whose words are computed together, so that compilers use vectors.
constexpr int kLanes = 16;

// Philox4x32-10 for consecutive elements: word w of element i is words[w][i]. They are the first
// four words of at::Philox4_32(key, element), which computes one element at a time.
struct WordsOfElements {
  std::array<std::array<std::uint32_t, kLanes>, 4> words;

  WordsOfElements(std::uint64_t key, std::int64_t first) {
    auto& [word0, word1, word2, word3] = words;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t element = static_cast<std::uint64_t>(first) + lane;
      word0[lane] = word1[lane] = 0;
      word2[lane] = static_cast<std::uint32_t>(element);
      word3[lane] = static_cast<std::uint32_t>(element >> 32);
    }
    constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
    constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
    constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
    constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
    auto key0 = static_cast<std::uint32_t>(key);
    auto key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::uint64_t product0 = kMultiplier0 * word0[lane];
        const std::uint64_t product1 = kMultiplier1 * word2[lane];
        word0[lane] = static_cast<std::uint32_t>(product1 >> 32) ^ word1[lane] ^ key0;
        word1[lane] = static_cast<std::uint32_t>(product1);
        word2[lane] = static_cast<std::uint32_t>(product0 >> 32) ^ word3[lane] ^ key1;
        word3[lane] = static_cast<std::uint32_t>(product0);
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
  }
};

// The random words of one element: two uniform numbers, or a normal one.
class Words {
 public:
  Words(const WordsOfElements& all, std::size_t lane) : all_(all), lane_(lane) {}
  std::uint64_t bits() {
    const std::uint64_t high = all_.words[next_][lane_];
    const std::uint64_t low = all_.words[next_ + 1][lane_];
    next_ += 2;
    return high << 32 | low;
  }
  // Returns a number in [0, 1) with 53 random bits.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Returns a normal number by the transform of Box and Muller from two uniform ones, the first of
  // which is in (0, 1].
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  const WordsOfElements& all_;
  std::size_t lane_;
  std::size_t next_ = 0;
};

// Returns the next number of the generator as the key of a call. It is the same on all ranks that
// have drawn as often.
std::uint64_t next_key(const c10::IValue& generator) {
  auto chosen = generator.isNone() ? at::detail::getDefaultCPUGenerator() : generator.toGenerator();
  auto* const engine = at::check_generator<at::CPUGeneratorImpl>(chosen);
  const std::scoped_lock lock(engine->mutex_);
  return engine->random64();
}

// Visits the elements of the whole tensor that a part holds, as ranges of consecutive elements.
template <typename Visit>
void for_each_row(const Layout& layout, c10::IntArrayRef sizes, const Visit& visit) {
  for (int axis = 0; axis < static_cast<int>(layout.placements().size()); ++axis) {
    if (!layout[axis].is_flat_shard()) continue;
    const auto coordinate = static_cast<std::size_t>(layout.mesh().coordinate(axis));
    const FlatRange& range = layout[axis].ranges()[coordinate];
    visit(range.offset, range.length);
    return;
  }
  const auto extents = local_extents(sizes, layout, layout.mesh().coordinate());
  if (extents.empty()) return visit(0, 1);
  std::int64_t rows = 1;
  for (std::size_t dim = 0; dim + 1 < extents.size(); ++dim) rows *= extents[dim].size;
  const Extent& last = extents.back();
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t first = 0;
    std::int64_t rest = row;
    std::int64_t step = sizes.back();
    for (std::size_t dim = extents.size() - 1; dim-- > 0;) {
      first += (extents[dim].offset + rest % extents[dim].size) * step;
      rest /= extents[dim].size;
      step *= sizes[dim];
    }
    visit(first + last.offset, last.size);
  }
}

// Fills this rank's part: each element is `draw` of its words.
template <typename Draw>
void fill(const at::Tensor& part, const Layout& layout, c10::IntArrayRef sizes, std::uint64_t key,
          const Draw& draw) {
  at::Tensor values = at::empty(part.sizes(), part.options().device(at::kCPU));
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kBool, at::kHalf, at::kBFloat16, part.scalar_type(), "random", [&] {
        auto* next = values.mutable_data_ptr<scalar_t>();
        for_each_row(layout, sizes, [&](std::int64_t first, std::int64_t length) {
          for (std::int64_t begin = 0; begin < length; begin += kLanes) {
            const WordsOfElements all(key, first + begin);
            const auto count = std::min<std::int64_t>(kLanes, length - begin);
            for (std::int64_t i = 0; i < count; ++i) {
              Words words(all, static_cast<std::size_t>(i));
              *next++ = c10::convert<scalar_t>(static_cast<double>(draw(words)));
            }
          }
        });
      });
  part.copy_(values);
}

// Returns the value rounded to `dtype`, but below `end`: rounding must not reach the end of the
// range, which is exclusive.
double below(double value, double end, at::ScalarType dtype) {
  if (dtype == at::kDouble) return value;
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    const double rounded =
        dtype == at::kHalf
            ? static_cast<double>(static_cast<float>(c10::Half(static_cast<float>(value))))
            : static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(value))));
    // The largest value of the type that is surely below the end.
    const double step = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    return rounded < end ? rounded : end - std::abs(end) * step;
  }
  const auto rounded = static_cast<float>(value);
  const auto last = std::nextafter(static_cast<float>(end), std::numeric_limits<float>::lowest());
  return static_cast<double>(std::min(rounded, last));
}

// Fills `part` from a new key and returns it as the result of the call.
template <typename Draw>
void fill_argument(LocalCall& call, const at::Tensor& part, const Draw& draw) {
  const int generator = call.call().position("generator");
  const std::uint64_t key = next_key(generator < 0 ? c10::IValue() : call.argument(generator));
  fill(part, call.output_layout(0), call.output_sizes(0), key, draw);
  call.give({part});
}

double number(LocalCall& call, const char* name) {
  return call.argument(call.call().position(name)).toScalar().toDouble();
}

// The tensor of probabilities is sharded as the result is.
void bernoulli_of_tensor(LocalCall& call) {
  const bool is_in_place = call.call().is_in_place();
  const at::Tensor probabilities = call.tensor(is_in_place ? 1 : 0);
  const at::Tensor result = is_in_place ? call.tensor(0) : at::empty_like(probabilities);
  const at::Tensor drawn = at::empty(result.sizes(), result.options().dtype(at::kDouble));
  const int generator = call.call().position("generator");
  fill(drawn, call.output_layout(0), call.output_sizes(0), next_key(call.argument(generator)),
       [](Words& words) { return words.uniform(); });
  result.copy_(drawn < probabilities);
  call.give({result});
}

void bernoulli(LocalCall& call) {
  const double p = number(call, "p");
  const at::Tensor self = call.tensor(0);
  const at::Tensor part = call.call().is_in_place() ? self : at::empty_like(self);
  fill_argument(call, part, [p](Words& words) { return words.uniform() < p ? 1.0 : 0.0; });
}

void uniform(LocalCall& call) {
  const double from = number(call, "from");
  const double to = number(call, "to");
  const at::Tensor part = call.tensor(0);
  const at::ScalarType dtype = part.scalar_type();
  fill_argument(call, part, [=](Words& words) {
    return below(from + (to - from) * words.uniform(), to, dtype);
  });
}

void normal(LocalCall& call) {
  const double mean = number(call, "mean");
  const double deviation = number(call, "std");
  fill_argument(call, call.tensor(0),
                [=](Words& words) { return mean + deviation * words.normal(); });
}

// Returns a new local tensor with the sizes of the first argument and the dtype of the result.
at::Tensor new_part(LocalCall& call) {
  const at::Tensor self = call.tensor(0);
  return at::empty(self.sizes(), self.options().dtype(call.call().output(0).scalar_type()));
}

void rand_like(LocalCall& call) {
  const at::Tensor part = new_part(call);
  const at::ScalarType dtype = part.scalar_type();
  fill_argument(call, part, [dtype](Words& words) { return below(words.uniform(), 1, dtype); });
}

void randn_like(LocalCall& call) {
  fill_argument(call, new_part(call), [](Words& words) { return words.normal(); });
}

// Exponential numbers are the negative logarithm of a uniform number in (0, 1], divided by the
// rate.
void exponential(LocalCall& call) {
  const double rate = call.argument(call.call().position("lambd")).toDouble();
  fill_argument(call, call.tensor(0),
                [rate](Words& words) { return -std::log(1 - words.uniform()) / rate; });
}

// In training, every element that is not positive gets a random slope, which `noise` keeps for
// backward.
void rrelu(LocalCall& call) {
  const Call& global_call = call.call();
  const at::Tensor self = call.tensor(0);
  const at::Tensor noise = call.tensor(global_call.position("noise"));
  const double lower = number(call, "lower");
  const double upper = number(call, "upper");
  at::Tensor result;
  if (call.argument(global_call.position("training")).toBool()) {
    const std::uint64_t key = next_key(call.argument(global_call.position("generator")));
    fill(noise, call.input_layout(0), call.input_sizes(0), key,
         [=](Words& words) { return lower + (upper - lower) * words.uniform(); });
    noise.masked_fill_(self > 0, 1);
    result = self * noise;
  } else {
    result = at::leaky_relu(self, (lower + upper) / 2);
  }
  call.give({global_call.is_in_place() ? self.copy_(result) : result});
}

// Lists strategies with inputs and outputs sharded alike, along any dim or into flat ranges.
void alike_everywhere(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const std::int64_t num_dims = axis.call.input(0).dim();
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    strategies.push_back(
        alike(axis.call, Shard{static_cast<int>(dim)}, Shard{static_cast<int>(dim)}));
  }
  const Placement& current = axis.layouts[0][axis.axis];
  if (current.is_flat_shard() && axis.call.num_inputs() == 1) {
    strategies.push_back(alike(axis.call, current, current));
  }
}

Rule drawn_by(LocalKernel kernel) { return {.strategies = alike_everywhere, .kernel = kernel}; }

}  // namespace

void add_random_rules(NamedRules& rules) {
  FamilyRules family(rules, "random numbers");
  family.add("bernoulli_.float", drawn_by(bernoulli));
  family.add("bernoulli.p", drawn_by(bernoulli));
  family.add("bernoulli_.Tensor", drawn_by(bernoulli_of_tensor));
  family.add("bernoulli", drawn_by(bernoulli_of_tensor));
  family.add("uniform_", drawn_by(uniform));
  family.add("normal_", drawn_by(normal));
  // LibTorch has no meta kernels for these.
  family.add("exponential_", with_shapes(drawn_by(exponential), like_first));
  family.add({"rrelu_with_noise", "rrelu_with_noise_"}, with_shapes(drawn_by(rrelu), like_first));
  family.add("rand_like", drawn_by(rand_like));
  family.add("randn_like", drawn_by(randn_like));
}

}  // namespace trireme::tensor
