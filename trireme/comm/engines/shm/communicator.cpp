// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/communicator.h>

#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/calibration.h>
#include <trireme/comm/engines/shm/fold.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

namespace trireme::shm {
namespace {

// With slots of this size, the working set of a chunked operation stays in the caches of the cores.
constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
// The limit of all mailboxes of a group together.
constexpr std::size_t kMailboxBytes = std::size_t{8} << 20;

Layout make_layout(int size) {
  Layout layout;
  layout.size = size;
  layout.slot_bytes = kSlotBytes;
  layout.num_slots = 4;
  const auto pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  layout.mailbox_bytes =
      std::clamp(std::bit_floor(kMailboxBytes / pairs), std::size_t{2048}, std::size_t{1} << 18);
  return layout;
}

// Adds a value to a digest. A change of either changes the result.
constexpr std::uint64_t mix(std::uint64_t digest, std::uint64_t value) {
  digest = (digest ^ value) * 0x9e3779b97f4a7c15U;
  return digest ^ (digest >> 32);
}

std::uint64_t digest_of(std::span<const std::size_t> values) {
  std::uint64_t digest = 0;
  for (const std::size_t value : values) digest = mix(digest, value);
  return digest;
}

std::uint64_t digest_of(Reduction reduction) {
  return reduction.op == ReduceOp::kPreMultipliedSum
             ? std::bit_cast<std::uint64_t>(reduction.factor)
             : 0;
}

Operation all_reduce_of(std::size_t count, DataType type, Reduction reduction) {
  return {.kind = Kind::kAllReduce, .type = type, .op = reduction.op, .count = count};
}

}  // namespace

Call Communicator::begin(Operation operation, std::string_view label, std::uint64_t arguments) {
  operation.sequence = ++sequence_;
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(operation);
  history_ = mix(mix(mix(history_, words[0]), words[1]), arguments);
  Call call = member_.begin(operation, label);
  call.history = history_;
  member_.show_history(call);
  return call;
}

template <typename Body>
void Communicator::run(Operation operation, std::string_view label, const Body& body,
                       std::uint64_t arguments) {
  member_.check_process(name_of(operation.kind));  // in a fork the queue may be busy for ever
  collectives_.run([&] {
    const Call call = begin(operation, label, arguments);
    body(call);
    member_.end(call);
  });
}

std::shared_ptr<Communicator> Communicator::connect(int rank, int size, RendezvousStore& store,
                                                    Options options,
                                                    std::shared_ptr<SharedPages> pages) {
  if (size < 1 || size > kMaximumRanks || rank < 0 || rank >= size) {
    throw UsageError(join_message("a shared-memory group has 1 to ", kMaximumRanks,
                                  " ranks; this is rank ", rank, " of ", size),
                     "use another engine for more ranks on one host");
  }
  Rendezvous call(store, rank, size, options);
  if (!options.yields) options.yields = have_more_ranks_than_cores(call);
  const Layout layout = make_layout(size);
  Segment segment = share_memory(call, layout.bytes());
  std::shared_ptr<Communicator> communicator(
      new Communicator(std::move(segment), layout, rank, options, std::move(pages)));
  // A rank that holds no lock counts as dead. So nobody may check locks before all ranks have
  // joined.
  const bool can_share = communicator->in_place_.is_possible();
  const auto answers = call.exchange_answers("joined", can_share ? "yes" : "without shared pages");
  if (size > 1 && std::ranges::all_of(answers, [](const auto& text) { return text == "yes"; })) {
    communicator->in_place_.enable();
  }
  if (size > 1) {
    // The call has number 0 and no record, because the program did not make it.
    const Call first{{.kind = Kind::kBarrier}, std::chrono::steady_clock::now(), nullptr};
    communicator->thresholds_ =
        calibrate(communicator->steps_, first, communicator->member_.options());
  }
  return communicator;
}

Communicator::Communicator(Segment segment, const Layout& layout, int rank, Options options,
                           std::shared_ptr<SharedPages> pages)
    : member_(std::move(segment), layout, rank, std::move(options)),
      steps_(member_),
      in_place_(std::move(pages), layout.size),
      point_to_point_(member_),
      end_of_collectives_{*this} {}

Communicator::~Communicator() {
  if (member_.is_fork()) return;  // the parent is the rank
  // Running operations may need ranks that wait for the next call of this one, which does not come.
  if (std::uncaught_exceptions() > num_exceptions_ &&
      (point_to_point_.is_busy() || collectives_.is_busy())) {
    member_.abort(join_message(member_.name_of_rank(rank()),
                               " left the group by an exception, before what it had started "
                               "there was done"));
  }
}

Communicator::EndOfCollectives::~EndOfCollectives() {
  if (owner.member_.is_fork()) return;
  owner.point_to_point_.stop_receiving();
  owner.member_.begin_to_leave();
}

void Communicator::check_root(Kind kind, int root) const {
  if (root >= 0 && root < member_.size()) return;
  throw UsageError(
      join_message(name_of(kind), " with root ", root, " in group '", member_.options().name,
                   "', which has ranks 0 to ", member_.size() - 1),
      "give a root that is in the group");
}

void Communicator::check_lengths(Kind kind, std::initializer_list<std::size_t> lengths) const {
  for (const std::size_t length : lengths) {
    if (length == static_cast<std::size_t>(member_.size())) continue;
    throw UsageError(join_message(name_of(kind), " was given ", length, " pieces for the ",
                                  member_.size(), " ranks of group '", member_.options().name, "'"),
                     "give one piece for each rank");
  }
}

void Communicator::check_reduction(Kind kind, ReduceOp op, DataType type) const {
  if (is_defined(op, type)) return;
  throw UsageError(
      join_message(name_of(kind), " by ", name_of(op), " is not defined for ", name_of(type)),
      "and, or, xor are for integers and bool; minimum and maximum for all but "
      "complex; average for all but bool; a pre-multiplied sum for floating point");
}

void Communicator::all_reduce(const void* input, void* output, std::size_t count, DataType type,
                              Reduction reduction, std::string_view label) {
  check_reduction(Kind::kAllReduce, reduction.op, type);
  run(
      all_reduce_of(count, type, reduction), label,
      [&](const Call& call) {
        const std::size_t bytes = count * size_of(type);
        if (may_be_registered(bytes)) {
          const RegisteredBuffers buffers =
              exchange_places(steps_, call, allocations_, input == output ? input : nullptr, bytes);
          if (!buffers.empty()) {
            return all_reduce_registered(steps_, call, buffers, count, type, reduction);
          }
        }
        if (in_place_.may_apply(bytes, thresholds_)) {
          const std::vector<std::size_t> lengths(static_cast<std::size_t>(size()), bytes);
          if (auto buffers =
                  in_place_.meet(steps_, call, input == output ? input : nullptr, lengths)) {
            all_reduce_in_place(steps_, call, *buffers, count, type, reduction);
            return buffers->finish();
          }
        }
        shm::all_reduce(steps_, call, input, output, count, type, reduction, thresholds_);
      },
      digest_of(reduction));
}

std::shared_ptr<Job> Communicator::start_all_reduce(const void* input, void* output,
                                                    std::size_t count, DataType type,
                                                    Reduction reduction, std::string_view label,
                                                    std::function<void(std::exception_ptr)> then) {
  check_reduction(Kind::kAllReduce, reduction.op, type);
  member_.check_process(name_of(Kind::kAllReduce));
  struct Started {
    const void* input;
    void* output;
    std::size_t count;
    DataType type;
    Reduction reduction;
    std::string label;
    std::function<void(std::exception_ptr)> then;
    std::optional<Call> call;  // where it was shown
    std::uint64_t step;
  };
  const auto started = std::make_shared<Started>(
      Started{input, output, count, type, reduction, std::string(label), std::move(then), {}, 0});
  const auto show = [this, started] {
    const std::size_t bytes = started->count * size_of(started->type);
    if (bytes > thresholds_.one_shot_bytes || may_be_registered(bytes) ||
        in_place_.may_apply(bytes, thresholds_) || !steps_.can_write()) {
      return false;
    }
    started->call = begin(all_reduce_of(started->count, started->type, started->reduction),
                          started->label, digest_of(started->reduction));
    started->step = show_for_all_reduce(steps_, *started->call, started->input, bytes);
    return true;
  };
  const auto finish = [this, started] {
    const auto& [from, to, elements, element_type, by, text, after, call, step] = *started;
    std::exception_ptr error;
    try {
      if (call) {
        member_.check_process(name_of(Kind::kAllReduce));
        // The deadline applies to waiting, which begins only now.
        started->call->started = recent_time();
        fold_shown(steps_, *call, step, from, to, elements, element_type, by);
        member_.end(*call);
      } else {
        all_reduce(from, to, elements, element_type, by, text);
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (after) after(error);
    if (error) std::rethrow_exception(error);
  };
  return collectives_.submit(finish, show);
}

void Communicator::reduce(const void* input, void* output, std::size_t count, DataType type,
                          Reduction reduction, int root, std::string_view label) {
  check_root(Kind::kReduce, root);
  check_reduction(Kind::kReduce, reduction.op, type);
  run(
      {.kind = Kind::kReduce,
       .type = type,
       .op = reduction.op,
       .root = static_cast<std::int8_t>(root),
       .count = count},
      label,
      [&](const Call& call) {
        shm::reduce(steps_, call, input, output, count, type, reduction, root);
      },
      digest_of(reduction));
}

void Communicator::broadcast(void* data, std::size_t bytes, int root, std::string_view label,
                             DataType type) {
  check_root(Kind::kBroadcast, root);
  run({.kind = Kind::kBroadcast,
       .type = type,
       .root = static_cast<std::int8_t>(root),
       .count = bytes / size_of(type)},
      label, [&](const Call& call) {
        if (in_place_.may_apply(bytes, thresholds_)) {
          std::vector<std::size_t> lengths(static_cast<std::size_t>(size()));
          lengths[static_cast<std::size_t>(root)] = bytes;  // nobody needs the memory of the others
          if (auto buffers = in_place_.meet(steps_, call, data, lengths)) {
            broadcast_in_place(steps_, call, *buffers, data, bytes, root);
            return buffers->finish();
          }
        }
        shm::broadcast(steps_, call, data, bytes, root);
      });
}

void Communicator::all_gather(const void* input, std::span<void* const> outputs,
                              std::span<const std::size_t> bytes, std::string_view label,
                              DataType type) {
  check_lengths(Kind::kAllGather, {outputs.size(), bytes.size()});
  run(
      {.kind = Kind::kAllGather,
       .type = type,
       .count = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) / size_of(type)},
      label,
      [&](const Call& call) {
        if (!bytes.empty() && in_place_.may_apply(*std::ranges::max_element(bytes), thresholds_)) {
          if (auto inputs = in_place_.meet(steps_, call, input, bytes)) {
            all_gather_in_place(steps_, call, *inputs, outputs, bytes);
            return inputs->finish();
          }
        }
        shm::all_gather(steps_, call, input, outputs, bytes);
      },
      digest_of(bytes));
}

void Communicator::gather(const void* input, std::span<void* const> outputs,
                          std::span<const std::size_t> bytes, int root, std::string_view label,
                          DataType type) {
  check_root(Kind::kGather, root);
  check_lengths(Kind::kGather, {bytes.size()});
  if (rank() == root) check_lengths(Kind::kGather, {outputs.size()});
  run(
      {.kind = Kind::kGather,
       .type = type,
       .root = static_cast<std::int8_t>(root),
       .count = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) / size_of(type)},
      label, [&](const Call& call) { shm::all_gather(steps_, call, input, outputs, bytes, root); },
      digest_of(bytes));
}

void Communicator::scatter(std::span<const void* const> inputs, void* output, std::size_t bytes,
                           int root, std::string_view label, DataType type) {
  check_root(Kind::kScatter, root);
  if (rank() == root) check_lengths(Kind::kScatter, {inputs.size()});
  run({.kind = Kind::kScatter,
       .type = type,
       .root = static_cast<std::int8_t>(root),
       .count = bytes / size_of(type)},
      label, [&](const Call& call) { shm::scatter(steps_, call, inputs, output, bytes, root); });
}

void Communicator::reduce_scatter(const void* input, void* output,
                                  std::span<const std::size_t> counts, DataType type,
                                  Reduction reduction, std::string_view label) {
  check_reduction(Kind::kReduceScatter, reduction.op, type);
  check_lengths(Kind::kReduceScatter, {counts.size()});
  run(
      {.kind = Kind::kReduceScatter,
       .type = type,
       .op = reduction.op,
       .count = std::accumulate(counts.begin(), counts.end(), std::size_t{0})},
      label,
      [&](const Call& call) {
        const std::size_t bytes = call.operation.count * size_of(type);
        if (may_be_registered(bytes)) {
          const RegisteredBuffers inputs =
              exchange_places(steps_, call, allocations_, input, bytes);
          if (!inputs.empty()) {
            return reduce_scatter_registered(steps_, call, inputs, output, counts, type, reduction);
          }
        }
        if (in_place_.may_apply(bytes, thresholds_)) {
          const std::vector<std::size_t> lengths(static_cast<std::size_t>(size()), bytes);
          if (auto inputs = in_place_.meet(steps_, call, input, lengths)) {
            reduce_scatter_in_place(steps_, call, *inputs, output, counts, type, reduction);
            return inputs->finish();
          }
        }
        shm::reduce_scatter(steps_, call, input, output, counts, type, reduction);
      },
      mix(digest_of(counts), digest_of(reduction)));
}

void Communicator::all_to_all(std::span<const void* const> inputs,
                              std::span<const std::size_t> input_bytes,
                              std::span<void* const> outputs,
                              std::span<const std::size_t> output_bytes, std::string_view label,
                              DataType type) {
  check_lengths(Kind::kAllToAll,
                {inputs.size(), input_bytes.size(), outputs.size(), output_bytes.size()});
  run({.kind = Kind::kAllToAll, .type = type}, label, [&](const Call& call) {
    shm::all_to_all(steps_, call, inputs, input_bytes, outputs, output_bytes);
  });
}

void Communicator::barrier(std::string_view label) {
  run({.kind = Kind::kBarrier}, label, [&](const Call& call) { shm::barrier(steps_, call); });
}

std::shared_ptr<Allocation> Communicator::allocate(std::size_t bytes) {
  std::shared_ptr<Allocation> allocation;
  member_.check_process("allocation of registered memory");
  collectives_.run([&] {
    // Exchanged over the group itself, in texts of fixed size: first where the memory is, then
    // whether all ranks have mapped it.
    struct Text {
      char data[512] = {};
    };
    const auto to_text = [](const std::string& string) {
      Text text;
      std::memcpy(text.data, string.data(), std::min(string.size(), sizeof(text) - 1));
      return text;
    };
    const auto ranks = static_cast<std::size_t>(size());
    // A length beyond all memory must stay so, even if its product with the number of ranks
    // overflows.
    const std::size_t all_bytes = bytes < SIZE_MAX / 2 / ranks
                                      ? Allocation::stride(std::max<std::size_t>(bytes, 1)) * ranks
                                      : SIZE_MAX;
    std::vector<Text> answers(ranks);
    std::vector<void*> outputs;
    for (Text& answer : answers) outputs.push_back(&answer);
    const std::vector<std::size_t> lengths(ranks, sizeof(Text));
    Segment segment;
    std::string problem;
    std::string reasons;
    for (const Segment::Kind kind : {Segment::Kind::kAnonymous, Segment::Kind::kNamed}) {
      Text path;
      problem.clear();
      try {
        if (rank() == 0) {
          segment = Segment::create(kind, all_bytes);
          path = to_text(segment.address());
        }
      } catch (const ConfigError& error) {
        problem = error.what();
      }
      // A rank that asks for another length has made another call, which this detects.
      run({.kind = Kind::kAllocate, .count = bytes}, {},
          [&](const Call& call) { shm::broadcast(steps_, call, &path, sizeof(path), 0); });
      path.data[sizeof(path) - 1] = '\0';
      try {
        if (rank() != 0 && path.data[0] != '\0') segment = open_memory(path.data, all_bytes);
      } catch (const ConfigError& error) {
        problem = error.what();
      }
      const Text answer = to_text(problem);
      all_gather(&answer, outputs, lengths, "registered memory");
      segment.unlink();
      for (Text& theirs : answers) {
        theirs.data[sizeof(theirs) - 1] = '\0';
        if (problem.empty()) problem = theirs.data;
      }
      if (problem.empty()) break;
      reasons += join_message(reasons.empty() ? "" : "; then by name: ", problem);
    }
    if (!problem.empty()) {
      throw ConfigError(join_message("no registered memory of ", bytes, " bytes a rank: ", reasons),
                        "use ordinary memory, or free some");
    }
    segment.close();
    allocation =
        std::make_shared<Allocation>(std::move(segment), ++num_allocations_, rank(), bytes);
    allocations_.add(allocation);
  });
  return allocation;
}

}  // namespace trireme::shm
