// SPDX-License-Identifier: Apache-2.0
// The communication benchmark over oneCCL on the CPU, which moves bytes by Intel MPI:
// bench/peers/mpi_comm.cpp with another library. MPI itself only tells ranks where the first one
// serves oneCCL's store.
#include <bench/multi/comm_loop.h>
#include <mpi.h>
#include <oneapi/ccl.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>

namespace {

ccl::communicator connect() {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ccl::kvs::address_type address{};
  ccl::shared_ptr_class<ccl::kvs> store;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  return ccl::create_communicator(size, rank, store);
}

class OneCclEngine final : public bench::Engine {
 public:
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }

  void run(const bench::Operation& operation, const bench::Buffers& buffers,
           std::size_t /*index*/) override {
    start(operation, buffers).wait();
  }

  void barrier() override { ccl::barrier(communicator_).wait(); }

  void maximum(std::span<double> values) override {
    ccl::allreduce(values.data(), values.data(), values.size(), ccl::reduction::max, communicator_)
        .wait();
  }

 private:
  ccl::event start(const bench::Operation& operation, const bench::Buffers& buffers) {
    switch (operation.collective) {
      case bench::Collective::kAllReduce:
        return ccl::allreduce(buffers.output, buffers.output, operation.output_count,
                              ccl::reduction::sum, communicator_);
      case bench::Collective::kBroadcast:
        return ccl::broadcast(buffers.output, operation.output_count, 0, communicator_);
      case bench::Collective::kAllGather:
        return ccl::allgather(buffers.input, buffers.output, operation.input_count, communicator_);
      case bench::Collective::kReduceScatter:
        return ccl::reduce_scatter(buffers.input, buffers.output, operation.output_count,
                                   ccl::reduction::sum, communicator_);
      case bench::Collective::kAllToAll:
        break;
    }
    return ccl::alltoall(buffers.input, buffers.output,
                         operation.input_count / static_cast<std::size_t>(size()), communicator_);
  }

  ccl::communicator communicator_ = connect();
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Plan plan = bench::parse(argc, argv);
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);  // oneCCL asks for it
  try {
    ccl::init();
    OneCclEngine engine;
    bench::measure(plan, engine);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  MPI_Finalize();
  return 0;
}
