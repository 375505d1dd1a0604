// SPDX-License-Identifier: Apache-2.0
// The communication benchmark over MPI: bench/multi/comm_raw.cpp with another library. Built once
// for each MPI that is there.
#include <bench/multi/comm_loop.h>
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <iostream>

namespace {

class MpiEngine final : public bench::Engine {
 public:
  MpiEngine() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void run(const bench::Operation& operation, const bench::Buffers& buffers,
           std::size_t /*index*/) override {
    const auto input_count = static_cast<int>(operation.input_count);
    const auto output_count = static_cast<int>(operation.output_count);
    switch (operation.collective) {
      case bench::Collective::kAllReduce:
        MPI_Allreduce(MPI_IN_PLACE, buffers.output, output_count, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        return;
      case bench::Collective::kBroadcast:
        MPI_Bcast(buffers.output, output_count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        return;
      case bench::Collective::kAllGather:
        MPI_Allgather(buffers.input, input_count, MPI_FLOAT, buffers.output, input_count, MPI_FLOAT,
                      MPI_COMM_WORLD);
        return;
      case bench::Collective::kReduceScatter:
        MPI_Reduce_scatter_block(buffers.input, buffers.output, output_count, MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD);
        return;
      case bench::Collective::kAllToAll:
        MPI_Alltoall(buffers.input, input_count / size_, MPI_FLOAT, buffers.output,
                     output_count / size_, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    }
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  void maximum(std::span<double> values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Plan plan = bench::parse(argc, argv);
  MPI_Init(&argc, &argv);
  try {
    MpiEngine engine;
    bench::measure(plan, engine);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  MPI_Finalize();
  return 0;
}
