// SPDX-License-Identifier: Apache-2.0
// What every program of the communication benchmark (bench/cases/comm.py) does alike: which
// collectives of which sizes, how buffers are filled, how operations are timed and how results are
// verified. A program brings an Engine; this file knows no library.
//
//     for each case, some batches of:
//       write all buffers anew | barrier | operation on buffer 0, 1, … K-1 | verify (the last
//       batch)
//                                        '------------- timed ------------'
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace bench {

enum class Collective { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll };

/// One kind of work. The greater of input and output has the bytes that the case names: all_gather
/// takes a piece from each rank, reduce_scatter gives each a piece, all_to_all does both.
struct Operation {
  Collective collective = Collective::kAllReduce;
  std::size_t input_count = 0;   ///< of float32, on this rank
  std::size_t output_count = 0;  ///< the same
};

/// Memory of one operation on one rank; all_reduce and broadcast (from rank 0) work in place.
struct Buffers {
  float* input = nullptr;
  float* output = nullptr;
};

/// A library under test, as one rank of its group.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Memory for a case; freed by release. An engine with memory of its own kind gives that.
  virtual float* allocate(std::size_t count);
  virtual void release(float* memory) noexcept;
  /// Learns of the buffers of a case before it is timed.
  virtual void prepare(std::span<const Buffers> /*buffers*/, const Operation& /*operation*/) {}
  /// Blocking. `index` is that of these buffers in prepare.
  virtual void run(const Operation& operation, const Buffers& buffers, std::size_t index) = 0;
  virtual void barrier() = 0;
  /// Replaces each value by the greatest of all ranks.
  virtual void maximum(std::span<double> values) = 0;
};

struct Case {
  std::string name;  ///< of the collective
  Collective collective = Collective::kAllReduce;
  std::size_t bytes = 0;
};

struct Plan {
  std::vector<Case> cases;
  double seconds = 0.05;  ///< for each case, as far as the least number of batches allows
};

/// Reads the command line: `all_reduce:4,8,16 broadcast:4096`, `--seconds`, `--limit`, and what
/// `more_options` adds. Ends the process where it is wrong.
Plan parse(int argc, char** argv, const std::function<void(CLI::App&)>& more_options = {});

/// Measures all cases; rank 0 prints microseconds for each operation as one line of JSON:
/// `{"all_reduce/4": 1.25, …}`. Collective. Throws std::runtime_error where a result is wrong.
void measure(const Plan& plan, Engine& engine);

}  // namespace bench
