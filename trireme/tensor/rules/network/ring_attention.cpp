// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/network/ring_attention.h>

#include <trireme/comm/collectives.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/network/attention_blocks.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <optional>
#include <utility>

namespace trireme::tensor {
namespace {

// Messages of one pair of ranks are told apart by these.
constexpr int kKeysTag = 0x6b65;
constexpr int kGradientsTag = 0x6772;
constexpr int kHomeTag = 0x686f;

// The ranks along the axis that shards the keys, and what each has of the sequences.
class Ring {
 public:
  Ring(c10::IntArrayRef query_sizes, const Layout& query, c10::IntArrayRef key_sizes,
       const Layout& key, bool is_causal)
      : group_(key.mesh().group(key.axes_of(kSequence)[0])),
        ranks_(group_.size()),
        rank_(group_.rank()) {
    const int axis = key.axes_of(kSequence)[0];
    c10::SmallVector<std::int64_t, 4> coordinate(key.mesh().coordinate());
    for (int rank = 0; rank < ranks_; ++rank) {
      coordinate[static_cast<std::size_t>(axis)] = rank;
      const auto extent = [&](c10::IntArrayRef sizes, const Layout& layout) {
        return local_extents(sizes, layout, coordinate)[static_cast<std::size_t>(kSequence)];
      };
      rows_.push_back(extent(query_sizes, query));
      keys_.push_back(extent(key_sizes, key));
    }
    for (int home = 0; home < ranks_; ++home) hops_.push_back(count_hops(home, is_causal));
    is_causal_ = is_causal;
  }

  const comm::Group& group() const { return group_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int next() const { return (rank_ + 1) % ranks_; }
  int previous() const { return (rank_ + ranks_ - 1) % ranks_; }
  // The rank whose keys arrive here after `hops` messages.
  int home(int hops) const { return (rank_ + ranks_ - hops) % ranks_; }

  const Extent& keys_of(int home) const { return keys_[static_cast<std::size_t>(home)]; }
  // The number of messages by which the keys of a rank reach the last rank that sees them.
  int hops_of(int home) const { return hops_[static_cast<std::size_t>(home)]; }
  // The last rank that sees the keys of `home`.
  int end_of(int home) const { return (home + hops_of(home)) % ranks_; }

  AttentionBlock block(int home) const {
    return {.rows = rows_[static_cast<std::size_t>(rank_)], .keys = keys_of(home)};
  }
  bool sees(int home) const { return is_seen(block(home), is_causal_); }

 private:
  int count_hops(int home, bool is_causal) const {
    for (int hops = ranks_ - 1; hops > 0; --hops) {
      const auto rank = static_cast<std::size_t>((home + hops) % ranks_);
      if (is_seen({.rows = rows_[rank], .keys = keys_of(home)}, is_causal)) return hops;
    }
    return 0;
  }

  const comm::Group& group_;
  int ranks_;
  int rank_;
  bool is_causal_ = false;
  std::vector<Extent> rows_;  // of queries, by rank
  std::vector<Extent> keys_;  // by rank
  std::vector<int> hops_;     // by rank
};

// Messages that are under way. They end before their tensors are freed.
class Messages {
 public:
  explicit Messages(const Ring& ring) : ring_(ring) {}

  void send(const at::Tensor& tensor, int rank, int tag) {
    tensors_.push_back(tensor);
    works_.push_back(comm::send_async(tensor, rank, ring_.group(), tag));
  }
  void receive(const at::Tensor& tensor, int rank, int tag) {
    tensors_.push_back(tensor);
    works_.push_back(comm::receive_async(tensor, rank, ring_.group(), tag));
  }
  void wait() {
    for (comm::Work& work : works_) work.wait();
    works_.clear();
    tensors_.clear();
  }

 private:
  const Ring& ring_;
  std::vector<at::Tensor> tensors_;
  std::vector<comm::Work> works_;
};

// Returns a tensor for the keys and values of a rank, [2, batch, heads, keys, features].
at::Tensor buffer_for(const at::Tensor& own_key, std::int64_t num_keys) {
  return at::empty({2, own_key.size(0), own_key.size(1), num_keys, own_key.size(3)},
                   own_key.options());
}

// Keys and values on their way through the ranks.
class Travel {
 public:
  Travel(const Ring& ring, const at::Tensor& key, const at::Tensor& value)
      : ring_(ring), own_key_(key), messages_(ring), here_(at::stack({key, value})) {}

  // The keys and values that are here; undefined if those of this step do not come here.
  const at::Tensor& here() const { return here_; }

  // Starts to send what is here to the next rank, and to receive what comes after it.
  void start(int hops) {
    const int home = ring_.home(hops);
    if (here_.defined() && hops < ring_.hops_of(home)) {
      messages_.send(here_, ring_.next(), kKeysTag);
    }
    coming_ = at::Tensor();
    if (hops + 1 >= ring_.ranks()) return;
    const int coming = ring_.home(hops + 1);
    if (hops + 1 > ring_.hops_of(coming)) return;
    coming_ = buffer_for(own_key_, ring_.keys_of(coming).size);
    messages_.receive(coming_, ring_.previous(), kKeysTag);
  }

  // Waits for both.
  void arrive() {
    messages_.wait();
    here_ = std::exchange(coming_, at::Tensor());
  }

 private:
  const Ring& ring_;
  at::Tensor own_key_;
  Messages messages_;
  at::Tensor here_;
  at::Tensor coming_;
};

// Gradients of keys and values of other ranks. Each rank adds its own to those that arrive from the
// previous rank. The last rank that sees the keys sends the sum to the rank that has them.
class GradientTravel {
 public:
  // @param of_own_keys has the size of the gradients of this rank's keys and values.
  GradientTravel(const Ring& ring, const at::Tensor& of_own_keys)
      : ring_(ring), arriving_(ring), leaving_(ring), homeward_(ring), returning_(ring) {
    if (ring_.hops_of(ring_.rank()) == 0) return;
    // Received from the beginning, so that the rank that sends it need not wait for this one.
    returned_ = at::empty_like(of_own_keys);
    returning_.receive(returned_, ring_.end_of(ring_.rank()), kHomeTag);
  }

  // Starts to receive the gradients of the step, which the rank before this one has begun.
  void expect(int hops, const at::Tensor& like) {
    arrived_ = at::Tensor();
    if (hops < 2 || !like.defined()) return;
    arrived_ = at::empty_like(like);
    arriving_.receive(arrived_, ring_.previous(), kGradientsTag);
  }

  void add_and_pass_on(int hops, const std::optional<BlockGradients>& own, const at::Tensor& like) {
    if (!like.defined()) return;
    at::Tensor sum =
        own ? at::stack({own->key, own->value}).to(like.scalar_type()) : at::zeros_like(like);
    if (arrived_.defined()) {
      arriving_.wait();
      sum += std::exchange(arrived_, at::Tensor());
    }
    leaving_.wait();
    const int home = ring_.home(hops);
    const bool is_last = hops == ring_.hops_of(home);
    if (is_last) {
      homeward_.wait();
      homeward_.send(sum, home, kHomeTag);
    } else {
      leaving_.send(sum, ring_.next(), kGradientsTag);
    }
  }

  // Adds what other ranks computed for the keys of this rank. Waits for all messages.
  void add_home(at::Tensor& of_own_keys) {
    leaving_.wait();
    homeward_.wait();
    returning_.wait();
    if (returned_.defined()) of_own_keys += returned_;
  }

 private:
  const Ring& ring_;
  Messages arriving_;
  Messages leaving_;
  Messages homeward_;
  Messages returning_;
  at::Tensor arrived_;
  at::Tensor returned_;
};

at::Tensor key_of(const at::Tensor& both) { return both.select(0, 0); }
at::Tensor value_of(const at::Tensor& both) { return both.select(0, 1); }

}  // namespace

void ring_attention(LocalCall& call) {
  const AttentionSettings settings = attention_settings(call);
  const at::Tensor query = call.tensor(0);
  const Ring ring(call.input_sizes(0), call.input_layout(0), call.input_sizes(1),
                  call.input_layout(1), settings.is_causal);
  Travel keys(ring, call.tensor(1), call.tensor(2));
  BlockSum sum;
  for (int hops = 0; hops < ring.ranks(); ++hops) {
    keys.start(hops);
    const int home = ring.home(hops);
    if (keys.here().defined() && ring.sees(home)) {
      sum.add(
          attend(query, key_of(keys.here()), value_of(keys.here()), ring.block(home), settings));
    }
    keys.arrive();
  }
  const BlockResult result = sum.result(query);
  call.give({result.output, result.logsumexp});
}

void ring_attention_backward(LocalCall& call) {
  const AttentionSettings settings = attention_settings(call);
  const QuerySide side = {.grad_output = call.tensor(0),
                          .query = call.tensor(1),
                          .output = call.tensor(4),
                          .logsumexp = call.tensor(5)};
  const Ring ring(call.input_sizes(1), call.input_layout(1), call.input_sizes(2),
                  call.input_layout(2), settings.is_causal);
  Travel keys(ring, call.tensor(2), call.tensor(3));
  at::Tensor of_query = widened(at::zeros_like(side.query));
  at::Tensor of_own_keys = at::zeros_like(keys.here());
  GradientTravel gradients(ring, of_own_keys);
  for (int hops = 0; hops < ring.ranks(); ++hops) {
    keys.start(hops);
    gradients.expect(hops, keys.here());
    const int home = ring.home(hops);
    std::optional<BlockGradients> own;
    if (keys.here().defined() && ring.sees(home)) {
      own = attend_backward(side, key_of(keys.here()), value_of(keys.here()), ring.block(home),
                            settings);
      of_query += own->query;
    }
    if (hops > 0) {
      gradients.add_and_pass_on(hops, own, keys.here());
    } else if (own) {
      of_own_keys = at::stack({own->key, own->value});
    }
    keys.arrive();
  }
  gradients.add_home(of_own_keys);
  call.give({of_query.to(side.query.scalar_type()), key_of(of_own_keys), value_of(of_own_keys)});
}

double ring_seconds(const DeviceMesh& mesh, int axis, double key_bytes, double value_bytes,
                    bool is_backward) {
  const double bytes = key_bytes + value_bytes;
  const DeviceMesh::State& state = *mesh.state();
  const cluster::LocalCopy copy = copy_along(state, axis, kCopyOfProcessor);
  const auto ranks = static_cast<double>(mesh.size(axis));
  const double of_keys = copy.seconds + bytes / ranks / copy.bytes_per_second +
                         seconds_along(state, axis, Collective::kAllGather, bytes);
  if (!is_backward) return of_keys;
  return of_keys + (ranks - 1) * (copy.seconds + bytes / ranks / copy.bytes_per_second) +
         seconds_along(state, axis, Collective::kReduceScatter, bytes);
}

void add_ring_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const bool is_backward = decided.kernel == ring_attention_backward;
  const int key = is_backward ? 2 : 1;
  const Layout& layout = decided.inputs[static_cast<std::size_t>(key)];
  const int axis = layout.axes_of(kSequence)[0];
  const DeviceMesh mesh = layout.mesh();
  // Messages are as long as the longest part. The rank that sends most sends one of each other
  // part.
  const auto sizes = local_sizes(decided.call.input(key).sizes(), layout, decided.coordinate);
  const double bytes = 2 * static_cast<double>(c10::multiply_integers(sizes)) *
                       static_cast<double>(decided.call.input(key).element_size()) *
                       static_cast<double>(mesh.size(axis));
  const std::size_t first = exchanges.size();
  add_exchange(mesh, axis, Collective::kAllGather, bytes, exchanges);
  if (is_backward) add_exchange(mesh, axis, Collective::kReduceScatter, bytes, exchanges);
  for (std::size_t i = first; i < exchanges.size(); ++i) {
    exchanges[i].overlaps = true;
    exchanges[i].reason = i == first ? "keys and values travel while blocks are computed"
                                     : "gradients of keys and values travel behind them";
  }
}

}  // namespace trireme::tensor
