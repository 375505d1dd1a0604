// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/run/random_stream.h>

#include <trireme/tensor/dry_run/interception.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <mutex>
#include <utility>

namespace trireme::graph::detail {
namespace {

thread_local const at::Generator* current = nullptr;

// Passes the current generator to a random operator that was given none.
bool give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  if (current == nullptr || !op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    c10::IValue& given = (*stack)[stack->size() - arguments.size() + i];
    if (!given.isNone()) return false;
    given = *current;
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, tensor::kBelowAutograd), stack);
    return true;
  }
  return false;
}

c10::DispatchKey intercepted_key() {
  static std::once_flag once;
  std::call_once(once, [] { tensor::intercept_below_autograd(give_generator); });
  return tensor::kBelowAutograd;
}

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

// Mixes the keys one after the other with a round each. Their sum would be equal for different
// keys.
std::uint64_t mixed(const RandomStream& stream, int node) {
  std::uint64_t state = stream.seed;
  for (const std::int64_t key :
       {stream.step, stream.micro_batch, static_cast<std::int64_t>(node)}) {
    state = next(state) ^ static_cast<std::uint64_t>(key);
  }
  return next(state);
}

// Seeds of LibTorch's generator have 32 bits; this fills its state from 64 bits.
at::mt19937 engine_of(std::uint64_t key) {
  at::mt19937_data_pod data = {};
  data.seed_ = key;
  data.left_ = 1;
  data.seeded_ = true;
  data.next_ = 0;
  std::uint64_t state = key;
  for (std::size_t i = 0; i < data.state_.size(); i += 2) {
    const std::uint64_t bits = next(state);
    data.state_[i] = static_cast<std::uint32_t>(bits);
    data.state_[i + 1] = static_cast<std::uint32_t>(bits >> 32);
  }
  at::mt19937 engine;
  engine.set_data(data);
  return engine;
}

at::Generator generator_of(std::uint64_t key) {
  auto generator = c10::make_intrusive<at::CPUGeneratorImpl>();
  generator->set_engine(engine_of(key));
  return at::Generator(std::move(generator));
}

}  // namespace

NumberedRandom::NumberedRandom(const RandomStream& stream, int node, at::Device device) {
  const std::uint64_t key = mixed(stream, node);
  if (!device.is_cpu()) {
    generator_ = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(key);
    return;
  }
  generator_ = generator_of(key);
  outer_ = std::exchange(current, &generator_);
  include_.emplace(intercepted_key());
}

NumberedRandom::~NumberedRandom() {
  if (state_.defined()) {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
  } else {
    current = outer_;
  }
}

}  // namespace trireme::graph::detail
