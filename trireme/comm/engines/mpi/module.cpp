// SPDX-License-Identifier: Apache-2.0
// The only file that uses MPI's headers; built into trireme_mpi.so. Follows MPI 3.1, of which Open
// MPI 4 and MPICH 3 have everything that is used here. MPI counts elements in `int`. Larger
// reductions and broadcasts are split; other operations describe their bytes by a derived type.
#include <trireme/comm/engines/mpi/module.h>

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace trireme::comm::mpi {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  std::string line(text, static_cast<std::size_t>(length));
  std::ranges::replace(line, '\n', ' ');  // MPICH adds a stack of calls
  throw std::runtime_error(std::string(call) + ": error " + std::to_string(code) + ", " + line);
}

bool is_truncation(int code) {
  int kind = MPI_SUCCESS;
  return code != MPI_SUCCESS && MPI_Error_class(code, &kind) == MPI_SUCCESS &&
         kind == MPI_ERR_TRUNCATE;
}

MPI_Datatype type_of(Element element) {
  switch (element) {
    case Element::kFloat64:
      return MPI_DOUBLE;
    case Element::kFloat32:
      return MPI_FLOAT;
    case Element::kInt8:
      return MPI_INT8_T;
    case Element::kInt16:
      return MPI_INT16_T;
    case Element::kInt32:
      return MPI_INT32_T;
    case Element::kInt64:
      return MPI_INT64_T;
    case Element::kUint8:
      return MPI_UINT8_T;
    case Element::kComplex64:
      return MPI_C_FLOAT_COMPLEX;
    case Element::kComplex128:
      return MPI_C_DOUBLE_COMPLEX;
  }
  throw std::logic_error("unknown Element");
}

std::int64_t size_of(Element element) {
  constexpr std::int64_t kSizes[] = {8, 4, 1, 2, 4, 8, 1, 8, 16};
  return kSizes[static_cast<int>(element)];
}

MPI_Op op_of(Fold fold) {
  switch (fold) {
    case Fold::kSum:
      return MPI_SUM;
    case Fold::kProduct:
      return MPI_PROD;
    case Fold::kMinimum:
      return MPI_MIN;
    case Fold::kMaximum:
      return MPI_MAX;
    case Fold::kAnd:
      return MPI_BAND;
    case Fold::kOr:
      return MPI_BOR;
    case Fold::kXor:
      return MPI_BXOR;
  }
  throw std::logic_error("unknown Fold");
}

// Returns the address `bytes` further on. The null buffer of an empty message stays null.
void* advance(void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<char*>(data) + bytes;
}
const void* advance(const void* data, std::int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

// A number of bytes in the form that MPI needs: a count of a type. The type may be freed while
// operations that use it are running.
class Span {
 public:
  Span(std::int64_t bytes, std::int64_t largest) {
    if (bytes <= largest) {
      count_ = static_cast<int>(bytes);
      return;
    }
    const auto block = static_cast<int>(largest);
    const auto blocks = static_cast<int>(bytes / largest);
    MPI_Datatype one = MPI_DATATYPE_NULL;
    MPI_Datatype many = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(block, MPI_BYTE, &one), "MPI_Type_contiguous");
    check(MPI_Type_contiguous(blocks, one, &many), "MPI_Type_contiguous");
    const int lengths[] = {1, static_cast<int>(bytes % largest)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(blocks) * block};
    const MPI_Datatype types[] = {many, MPI_BYTE};
    check(MPI_Type_create_struct(2, lengths, places, types, &type_), "MPI_Type_create_struct");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
    MPI_Type_free(&one);
    MPI_Type_free(&many);
    count_ = 1;
  }
  ~Span() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

// Several MPI requests, done when all of them are done.
class Requests final : public Request {
 public:
  static constexpr std::int64_t kNotReceived = -1;

  /// Returns where an MPI call stores its request.
  /// @param expected the number of bytes that a receive must bring.
  MPI_Request* add(std::int64_t expected = kNotReceived) {
    parts_.push_back({MPI_REQUEST_NULL, expected});
    return &parts_.back().request;
  }

  bool test() override {
    for (; next_ < parts_.size(); ++next_) {
      int done = 0;
      MPI_Status status;
      const std::int64_t expected = parts_[next_].expected;
      const int code = MPI_Test(&parts_[next_].request, &done, &status);
      if (is_truncation(code)) {
        throw std::runtime_error("a message is longer than the " + std::to_string(expected) +
                                 " bytes that were expected");
      }
      check(code, "MPI_Test");
      if (done == 0) return false;
      if (expected != kNotReceived) check_size(status, expected);
    }
    return true;
  }

  int source() const override { return source_; }

  /// Converts numbers for calls that take one per rank. Keeps the result, because MPI may read it
  /// until the operation is done.
  const int* keep(std::span<const std::int64_t> numbers) {
    std::vector<int>& kept = kept_.emplace_back(numbers.size());
    std::ranges::transform(numbers, kept.begin(),
                           [](std::int64_t n) { return static_cast<int>(n); });
    return kept.data();
  }

 private:
  struct Part {
    MPI_Request request;
    std::int64_t expected;
  };

  void check_size(const MPI_Status& status, std::int64_t expected) {
    source_ = status.MPI_SOURCE;
    MPI_Count got = 0;
    check(MPI_Get_elements_x(&status, MPI_BYTE, &got), "MPI_Get_elements_x");
    if (got == expected) return;
    throw std::runtime_error("rank " + std::to_string(source_) + " sent " + std::to_string(got) +
                             " bytes, expected " + std::to_string(expected));
  }

  std::vector<Part> parts_;
  std::size_t next_ = 0;
  std::vector<std::vector<int>> kept_;
  int source_ = kAnyRank;
};

bool is_ended() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::int64_t largest) : comm_(comm), largest_(largest) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    int* highest = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&highest), &found);
    own_tag_ = found != 0 ? *highest : 32767;  // what the standard promises at least
  }
  ~MpiCommunicator() override {
    if (!is_ended()) MPI_Comm_free(&comm_);
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  Started all_reduce(void* data, std::int64_t count, Element element, Fold fold) override {
    auto started = std::make_unique<Requests>();
    split(count, element, [&](std::int64_t offset, int part) {
      check(MPI_Iallreduce(MPI_IN_PLACE, advance(data, offset), part, type_of(element), op_of(fold),
                           comm_, started->add()),
            "MPI_Iallreduce");
    });
    return started;
  }

  Started reduce(const void* input, void* output, std::int64_t count, Element element, Fold fold,
                 int root) override {
    auto started = std::make_unique<Requests>();
    reduce_into(*started, input, output, count, element, fold, root);
    return started;
  }

  Started reduce_scatter(const void* input, void* output, std::span<const std::int64_t> counts,
                         Element element, Fold fold) override {
    auto started = std::make_unique<Requests>();
    if (std::reduce(counts.begin(), counts.end()) > largest_) {
      for (int root = 0; root < size_; ++root) {
        const std::int64_t count = counts[static_cast<std::size_t>(root)];
        reduce_into(*started, input, output, count, element, fold, root);
        input = advance(input, count * size_of(element));
      }
      return started;
    }
    check(MPI_Ireduce_scatter(input, output, started->keep(counts), type_of(element), op_of(fold),
                              comm_, started->add()),
          "MPI_Ireduce_scatter");
    return started;
  }

  Started broadcast(Bytes data, int root) override {
    auto started = std::make_unique<Requests>();
    broadcast_into(*started, data, root);
    return started;
  }

  Started all_gather(const void* input, void* output,
                     std::span<const std::int64_t> sizes) override {
    auto started = std::make_unique<Requests>();
    const auto own = static_cast<std::size_t>(rank_);
    std::vector<std::int64_t> offsets(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), std::int64_t{0});
    if (std::ranges::all_of(sizes, [&](std::int64_t size) { return size == sizes[0]; })) {
      const Span slice(sizes[0], largest_);
      check(MPI_Iallgather(input, slice.count(), slice.type(), output, slice.count(), slice.type(),
                           comm_, started->add()),
            "MPI_Iallgather");
    } else if (offsets.back() + sizes.back() <= largest_) {
      const int* const counts = started->keep(sizes);
      check(MPI_Iallgatherv(input, counts[own], MPI_BYTE, output, counts, started->keep(offsets),
                            MPI_BYTE, comm_, started->add()),
            "MPI_Iallgatherv");
    } else {
      if (sizes[own] > 0) {
        std::memcpy(advance(output, offsets[own]), input, static_cast<std::size_t>(sizes[own]));
      }
      for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
        broadcast_into(*started, {advance(output, offsets[rank]), sizes[rank]},
                       static_cast<int>(rank));
      }
    }
    return started;
  }

  Started gather(Bytes input, void* output, int root) override {
    auto started = std::make_unique<Requests>();
    const Span slice(input.size, largest_);
    check(MPI_Igather(input.data, slice.count(), slice.type(), output, slice.count(), slice.type(),
                      root, comm_, started->add()),
          "MPI_Igather");
    return started;
  }

  Started scatter(const void* input, Bytes output, int root) override {
    auto started = std::make_unique<Requests>();
    const Span slice(output.size, largest_);
    check(MPI_Iscatter(input, slice.count(), slice.type(), output.data, slice.count(), slice.type(),
                       root, comm_, started->add()),
          "MPI_Iscatter");
    return started;
  }

  // Uses messages instead of MPI_Ialltoallv, whose byte offsets are `int`. Messages also detect
  // sizes that do not match.
  Started all_to_all(std::span<const Bytes> inputs, std::span<const Bytes> outputs) override {
    auto started = std::make_unique<Requests>();
    for (int step = 0; step < size_; ++step) {  // not everybody to rank 0 first
      const int from = (rank_ - step + size_) % size_;
      receive_into(*started, outputs[static_cast<std::size_t>(from)], from, own_tag_);
    }
    for (int step = 0; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      send_into(*started, inputs[static_cast<std::size_t>(to)], to, own_tag_);
    }
    return started;
  }

  Started barrier() override {
    auto started = std::make_unique<Requests>();
    check(MPI_Ibarrier(comm_, started->add()), "MPI_Ibarrier");
    return started;
  }

  int highest_tag() const override { return own_tag_ - 1; }

  Started send(Bytes data, int to, int tag) override {
    auto started = std::make_unique<Requests>();
    send_into(*started, data, to, tag);
    return started;
  }

  Started receive(Bytes data, int from, int tag) override {
    auto started = std::make_unique<Requests>();
    receive_into(*started, data, from == kAnyRank ? MPI_ANY_SOURCE : from, tag);
    return started;
  }

 private:
  // Calls `start(byte offset, count)` for parts whose count fits an `int`.
  template <typename Start>
  void split(std::int64_t count, Element element, const Start& start) const {
    std::int64_t done = 0;
    do {  // one call at least: ranks that pass nothing take part too
      start(done * size_of(element), static_cast<int>(std::min(largest_, count - done)));
      done += largest_;
    } while (done < count);
  }

  void reduce_into(Requests& requests, const void* input, void* output, std::int64_t count,
                   Element element, Fold fold, int root) {
    split(count, element, [&](std::int64_t offset, int part) {
      const bool in_place = rank_ == root && input == output;
      check(MPI_Ireduce(in_place ? MPI_IN_PLACE : advance(input, offset), advance(output, offset),
                        part, type_of(element), op_of(fold), root, comm_, requests.add()),
            "MPI_Ireduce");
    });
  }

  // Also sent in parts, because MPICH 4.0 fails on a broadcast of more than 2 GiB.
  void broadcast_into(Requests& requests, Bytes data, int root) {
    split(data.size, Element::kUint8, [&](std::int64_t offset, int part) {
      check(MPI_Ibcast(advance(data.data, offset), part, MPI_BYTE, root, comm_, requests.add()),
            "MPI_Ibcast");
    });
  }

  void send_into(Requests& requests, Bytes data, int to, int tag) {
    const Span span(data.size, largest_);
    check(MPI_Isend(data.data, span.count(), span.type(), to, tag, comm_, requests.add()),
          "MPI_Isend");
  }

  void receive_into(Requests& requests, Bytes data, int from, int tag) {
    const Span span(data.size, largest_);
    check(
        MPI_Irecv(data.data, span.count(), span.type(), from, tag, comm_, requests.add(data.size)),
        "MPI_Irecv");
  }

  MPI_Comm comm_;
  std::int64_t largest_;
  int rank_ = 0;
  int size_ = 1;
  int own_tag_ = 0;
};

class MpiModule final : public Module {
 public:
  std::string_view family() const override {
#ifdef OPEN_MPI
    return "Open MPI";
#else
    return "MPICH";
#endif
  }

  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
    const std::string_view all(text, static_cast<std::size_t>(length));
    std::string line(all.substr(0, all.find_first_of(",\n")));
    std::ranges::replace(line, '\t', ' ');
    return line;
  }

  void begin() override {
    int begun = 0;
    int level = MPI_THREAD_SINGLE;
    check(MPI_Initialized(&begun), "MPI_Initialized");
    if (begun == 0) {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
      begun_here_ = true;
      check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    } else {
      check(MPI_Query_thread(&level), "MPI_Query_thread");
    }
    // We make one call at a time, but do not know which calls the program makes itself.
    const int needed = begun_here_ ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
    if (level >= needed) return;
    throw std::runtime_error(begun_here_ ? "this MPI library was built without support for threads"
                                         : "the program has initialised MPI without "
                                           "MPI_THREAD_MULTIPLE, which is needed here");
  }

  int world_rank() const override {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }

  int world_size() const override {
    int size = 1;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }

  std::unique_ptr<Communicator> connect(std::span<const int> world_ranks,
                                        std::int64_t largest_count) override {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &group),
          "MPI_Group_incl");
    check(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return std::make_unique<MpiCommunicator>(comm, largest_count);
  }

  bool must_end() const override { return begun_here_ && !is_ended(); }

  std::unique_ptr<Request> rendezvous_world() override {
    auto started = std::make_unique<Requests>();
    check(MPI_Ibarrier(MPI_COMM_WORLD, started->add()), "MPI_Ibarrier");
    return started;
  }

  void end() override { check(MPI_Finalize(), "MPI_Finalize"); }

 private:
  bool begun_here_ = false;
};

}  // namespace
}  // namespace trireme::comm::mpi

extern "C" __attribute__((visibility("default"))) trireme::comm::mpi::Module* trireme_mpi_module() {
  static trireme::comm::mpi::MpiModule module;
  return &module;
}
