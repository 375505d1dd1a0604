// SPDX-License-Identifier: Apache-2.0
// A toy engine: every rank writes what it gives into the c10d store and reads what the others gave.
// It is slow, and shows all that a new transport has to write (docs/design/engines.md).
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/host_fold.h>
#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/adapter/worker.h>
#include <trireme/comm/engine.h>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>
#include <map>
#include <thread>

namespace trireme::testing {

class StoreConnection final : public comm::EngineConnection {
 public:
  explicit StoreConnection(const comm::EngineContext& context)
      : EngineConnection("store", context.rank, context.size), store_(context.store) {}
  ~StoreConnection() override {
    worker_.reset();  // ends what was started
    store_->set(join_message("left/", rank()), "");
  }

  // Pieces one after the other in memory are the easiest to copy.
  comm::TensorForm form() const override { return comm::TensorForm::kBlock; }

  // Operations run in the order of the calls, on a thread of the connection.
  WorkPtr submit(comm::Operation operation) override {
    auto pending = c10::make_intrusive<comm::PendingOperation>(std::move(operation), rank());
    const std::string key = key_of(pending->operation());
    worker_->submit([this, pending, key] {
      std::exception_ptr failure;
      try {
        run(pending->operation(), key);
      } catch (...) {
        failure = std::current_exception();
      }
      pending->complete(failure);
    });
    return pending;
  }

  void abort(const std::string& reason) override { store_->set("aborted", reason); }

 private:
  using Kind = comm::OperationKind;

  // The same on all ranks of an operation, and another one for each.
  std::string key_of(const comm::Operation& operation) {
    if (!comm::is_message(operation.kind)) return join_message("operation/", ++num_collectives_);
    const bool sends = operation.kind == Kind::kSend;
    const int from = sends ? rank() : operation.peer;
    const int to = sends ? operation.peer : rank();
    const std::string channel = join_message("message/", from, "/", to, "/", operation.tag, "/");
    return join_message(channel, ++num_messages_[channel]);
  }

  void run(const comm::Operation& operation, const std::string& key) {
    const comm::Buffer& input = operation.input;
    const comm::Buffer& output = operation.output;
    const int root = operation.peer;
    const bool is_root = root == rank();
    const auto timeout = operation.timeout;
    switch (operation.kind) {
      case Kind::kSend:
        return give(key, input);
      case Kind::kReceive:
        return take(key, root, 0, output, 0, timeout);
      case Kind::kBroadcast:
        if (is_root) return give(key, output);
        return take(key, root, 0, output, 0, timeout);
      case Kind::kScatter:
        if (is_root) give(key, input);
        return take(key, root, rank(), output, 0, timeout);
      case Kind::kGather:
        give(key, input);
        for (int from = 0; is_root && from < size(); ++from) {
          take(key, from, 0, output, from, timeout);
        }
        return;
      case Kind::kAllGather:
      case Kind::kAllToAll:
        give(key, input);
        for (int from = 0; from < size(); ++from) {
          const int piece = operation.kind == Kind::kAllToAll ? rank() : 0;
          take(key, from, piece, output, from, timeout);
        }
        return;
      case Kind::kAllReduce:
      case Kind::kReduce:
        give(key, output);
        if (operation.kind == Kind::kReduce && !is_root) return;
        return fold(key, 0, operation);
      case Kind::kReduceScatter:
        give(key, input);
        return fold(key, rank(), operation);
      case Kind::kBarrier:
        store_->set(join_message(key, "/", rank(), "/0"), "");
        for (int from = 0; from < size(); ++from) read(key, from, 0, timeout);
    }
  }

  // Shows the others every piece that this rank gives.
  void give(const std::string& key, const comm::Buffer& buffer) {
    for (int piece = 0; piece < buffer.num_pieces(); ++piece) {
      const auto* data = reinterpret_cast<const char*>(buffer.data(piece));
      store_->set(join_message(key, "/", rank(), "/", piece),
                  std::string(data, buffer.num_bytes(piece)));
    }
  }

  // Returns a piece of another rank once it is there.
  std::string read(const std::string& key, int from, int piece, std::chrono::milliseconds timeout) {
    const std::string name = join_message(key, "/", from, "/", piece);
    const std::string left = join_message("left/", from);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!store_->check({name})) {
      if (store_->check({"aborted"})) throw CommError(store_->get_to_str("aborted"), "");
      // What a rank gave before it left is there.
      if (store_->check({left}) && !store_->check({name})) {
        throw std::runtime_error(join_message("rank ", from, " left the group"));
      }
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error(join_message("rank ", from, " did not come within ",
                                              static_cast<double>(timeout.count()) / 1000, " s"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return store_->get_to_str(name);
  }

  void take(const std::string& key, int from, int piece, const comm::Buffer& into, int into_piece,
            std::chrono::milliseconds timeout) {
    const std::string bytes = read(key, from, piece, timeout);
    if (bytes.size() != into.num_bytes(into_piece)) {
      throw std::runtime_error(join_message("rank ", from, " sent ", bytes.size(),
                                            " bytes, expected ", into.num_bytes(into_piece)));
    }
    std::memcpy(into.data(into_piece), bytes.data(), bytes.size());
  }

  // Folds that piece of all ranks in rank order.
  void fold(const std::string& key, int piece, const comm::Operation& operation) {
    const at::Tensor result = operation.output.piece();
    const at::Tensor parts = at::empty({size(), result.numel()}, result.options());
    const comm::Buffer by_rank(parts, size());
    for (int from = 0; from < size(); ++from) {
      take(key, from, piece, by_rank, from, operation.timeout);
    }
    comm::scale_before(parts.flatten(), operation.reduction, size());
    comm::fold(parts, operation.reduction, size(), result);
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  int num_collectives_ = 0;
  std::map<std::string, int> num_messages_;
  std::unique_ptr<comm::Worker> worker_ = std::make_unique<comm::Worker>();
};

inline comm::Engine store_engine() {
  return {
      .name = "store",
      .unavailable_because = []() -> std::string { return ""; },
      .connect = [](const comm::EngineContext& context) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<comm::AdapterBackend>(std::make_shared<StoreConnection>(context),
                                                         context.timeout);
      },
      .summation_order = [](const comm::EngineContext&) { return comm::SummationOrder::kRank; }};
}

}  // namespace trireme::testing
