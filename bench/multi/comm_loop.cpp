// SPDX-License-Identifier: Apache-2.0
#include <bench/multi/comm_loop.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <new>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace bench {
namespace {

const std::map<std::string, Collective> kCollectives = {
    {"all_reduce", Collective::kAllReduce},
    {"broadcast", Collective::kBroadcast},
    {"all_gather", Collective::kAllGather},
    {"reduce_scatter", Collective::kReduceScatter},
    {"all_to_all", Collective::kAllToAll}};

bool is_in_place(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast;
}

// What a rank gives: small whole numbers, whose sums are exact in any order, and which differ from
// batch to batch, so that no result can be left over from the one before.
float contribution(int rank, std::uint32_t batch, std::uint32_t buffer, std::uint32_t element) {
  return static_cast<float>(
      (element + 7 * buffer + 13 * batch + 29 * static_cast<std::uint32_t>(rank)) & 63U);
}

/// The buffers of one case: as many as fit the budget, so that short operations are timed over many
/// and still find a fresh buffer each.
class Pool {
 public:
  Pool(Engine& engine, const Operation& operation) : engine_(engine), operation_(operation) {
    constexpr std::size_t kBudget = (std::size_t{256} << 10) / sizeof(float);
    constexpr std::size_t kMost = 64;
    const std::size_t longest = std::max(operation.input_count, operation.output_count);
    const std::size_t num_buffers = std::clamp(kBudget / longest, std::size_t{1}, kMost);
    const bool in_place = is_in_place(operation.collective);
    const std::size_t input_stride = stride(operation.input_count);
    const std::size_t output_stride = in_place ? 0 : stride(operation.output_count);
    count_ = num_buffers * (input_stride + output_stride);
    memory_ = engine_.allocate(count_);
    float* const outputs = memory_ + num_buffers * input_stride;
    for (std::size_t i = 0; i < num_buffers; ++i) {
      float* const input = memory_ + i * input_stride;
      buffers_.push_back({input, in_place ? input : outputs + i * output_stride});
    }
    std::fill_n(memory_, count_, -1.0F);  // no page is touched first while timed
  }
  ~Pool() { engine_.release(memory_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::span<const Buffers> buffers() const { return buffers_; }

  void fill(std::uint32_t batch) {
    for (std::uint32_t buffer = 0; buffer < buffers_.size(); ++buffer) {
      float* const input = buffers_[buffer].input;
      for (std::uint32_t i = 0; i < operation_.input_count; ++i) {
        input[i] = contribution(engine_.rank(), batch, buffer, i);
      }
    }
  }

  void verify(std::uint32_t batch) const {
    const auto own = static_cast<std::uint32_t>(engine_.rank());
    const auto count = static_cast<std::uint32_t>(operation_.output_count);
    const auto piece = std::max(count / static_cast<std::uint32_t>(engine_.size()), 1U);
    for (std::uint32_t buffer = 0; buffer < buffers_.size(); ++buffer) {
      const auto sum = [&](std::uint32_t i) {
        float total = 0;
        for (int rank = 0; rank < engine_.size(); ++rank) {
          total += contribution(rank, batch, buffer, i);
        }
        return total;
      };
      switch (operation_.collective) {
        case Collective::kAllReduce:
          compare(buffer, sum);
          break;
        case Collective::kBroadcast:
          compare(buffer, [&](std::uint32_t i) { return contribution(0, batch, buffer, i); });
          break;
        case Collective::kAllGather:
          compare(buffer, [&](std::uint32_t i) {
            return contribution(static_cast<int>(i / piece), batch, buffer, i % piece);
          });
          break;
        case Collective::kReduceScatter:
          compare(buffer, [&](std::uint32_t i) { return sum(own * count + i); });
          break;
        case Collective::kAllToAll:
          compare(buffer, [&](std::uint32_t i) {
            return contribution(static_cast<int>(i / piece), batch, buffer,
                                own * piece + i % piece);
          });
          break;
      }
    }
  }

 private:
  // In whole cache lines.
  static std::size_t stride(std::size_t count) { return (count + 15) / 16 * 16; }

  template <typename Expected>
  void compare(std::uint32_t buffer, const Expected& expected) const {
    const float* const output = buffers_[buffer].output;
    for (std::uint32_t i = 0; i < operation_.output_count; ++i) {
      if (output[i] == expected(i)) continue;
      throw std::runtime_error("wrong result on rank " + std::to_string(engine_.rank()) +
                               ", buffer " + std::to_string(buffer) + ": element " +
                               std::to_string(i) + " is " + std::to_string(output[i]) +
                               ", expected " + std::to_string(expected(i)));
    }
  }

  Engine& engine_;
  Operation operation_;
  std::size_t count_ = 0;
  float* memory_ = nullptr;
  std::vector<Buffers> buffers_;
};

Operation operation_of(const Case& one, std::size_t size) {
  const std::size_t count = one.bytes / sizeof(float);
  const bool in_pieces = !is_in_place(one.collective);
  if (count == 0 || one.bytes % sizeof(float) != 0 || (in_pieces && count % size != 0)) {
    throw std::runtime_error(one.name + " of " + std::to_string(one.bytes) +
                             " bytes: expected whole float32, as many for each rank");
  }
  return {.collective = one.collective,
          .input_count = one.collective == Collective::kAllGather ? count / size : count,
          .output_count = one.collective == Collective::kReduceScatter ? count / size : count};
}

// All processes of a host share this clock.
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs one batch; returns when this rank began and ended its operations.
std::pair<double, double> run_batch(Engine& engine, const Operation& operation, Pool& pool,
                                    std::uint32_t batch) {
  pool.fill(batch);
  engine.barrier();
  const double began = now();
  std::size_t index = 0;
  for (const Buffers& buffers : pool.buffers()) engine.run(operation, buffers, index++);
  return {began, now()};
}

// Returns the median of the batches' seconds for one operation: from the moment the last rank began
// until the last one was done, so that what a library's barrier leaves between the ranks is not
// counted.
double time_of(Engine& engine, const Operation& operation, double seconds) {
  constexpr std::uint32_t kLeast = 1;
  constexpr std::uint32_t kMost = 300;
  Pool pool(engine, operation);
  engine.prepare(pool.buffers(), operation);
  // Warming up: two batches, or one long one; all ranks must do the same number.
  double batch_seconds = 0;
  std::uint32_t batch = 0;
  do {
    const double began = now();
    run_batch(engine, operation, pool, batch++);
    batch_seconds = now() - began;
    engine.maximum({&batch_seconds, 1});
  } while (batch < 2 && batch_seconds < seconds);
  const auto num_batches = static_cast<std::uint32_t>(
      std::clamp(seconds / batch_seconds, double{kLeast}, double{kMost}));

  std::vector<double> began_and_ended(2 * std::size_t{num_batches});
  for (std::uint32_t i = 0; i < num_batches; ++i) {
    std::tie(began_and_ended[i], began_and_ended[num_batches + i]) =
        run_batch(engine, operation, pool, batch + i);
  }
  pool.verify(batch + num_batches - 1);
  engine.maximum(began_and_ended);

  std::vector<double> times;
  for (std::uint32_t i = 0; i < num_batches; ++i) {
    times.push_back((began_and_ended[num_batches + i] - began_and_ended[i]) /
                    static_cast<double>(pool.buffers().size()));
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

float* Engine::allocate(std::size_t count) {
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes = (count * sizeof(float) + kPage - 1) / kPage * kPage;
  void* const memory = std::aligned_alloc(kPage, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<float*>(memory);
}

void Engine::release(float* memory) noexcept { std::free(memory); }

Plan parse(int argc, char** argv, const std::function<void(CLI::App&)>& more_options) {
  Plan plan;
  std::vector<std::string> texts;
  std::size_t limit = SIZE_MAX;
  CLI::App app("Times collectives.");
  app.add_option("cases", texts, "such as all_reduce:4,8,16 (bytes)");
  app.add_option("--seconds", plan.seconds, "for each case");
  app.add_option("--limit", limit, "leave out cases of more bytes");
  if (more_options) more_options(app);
  try {
    app.parse(argc, argv);
    for (const std::string& text : texts) {
      const std::size_t colon = text.find(':');
      const auto found = kCollectives.find(text.substr(0, colon));
      if (found == kCollectives.end() || colon == std::string::npos) {
        throw CLI::ValidationError("'" + text + "', expected such as all_reduce:4,8,16");
      }
      for (const std::string& bytes : CLI::detail::split(text.substr(colon + 1), ',')) {
        const Case one{found->first, found->second, std::stoull(bytes)};
        if (one.bytes <= limit) plan.cases.push_back(one);
      }
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return plan;
}

void measure(const Plan& plan, Engine& engine) {
  std::string line = "{";
  for (const Case& one : plan.cases) {
    const Operation operation = operation_of(one, static_cast<std::size_t>(engine.size()));
    const double microseconds = 1e6 * time_of(engine, operation, plan.seconds);
    line += (line.size() == 1 ? "\"" : ", \"") + one.name + "/" + std::to_string(one.bytes) +
            "\": " + std::to_string(microseconds);
  }
  if (engine.rank() == 0) std::cout << line << "}" << std::endl;
}

}  // namespace bench
