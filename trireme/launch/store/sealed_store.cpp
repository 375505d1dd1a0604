// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/sealed_store.h>

#include <trireme/base/error.h>
#include <trireme/launch/hmac.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

constexpr std::string_view kMark = "trireme sealed 1\n";
constexpr std::size_t kHead = kMark.size() + std::tuple_size_v<MessageCode>;

using Bytes = std::vector<std::uint8_t>;

// A store whose values are preceded by a mark and an authentication code.
class SealedStore final : public c10d::Store {
 public:
  SealedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret)
      : store_(std::move(store)), secret_(std::move(secret)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<SealedStore>(store_->clone(), secret_);
  }

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override {
    store_->set(key, sealed(key, value));
  }
  Bytes get(const std::string& key) override { return opened(key, store_->get(key)); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return opened(key, store_->compareSet(key, expected.empty() ? expected : sealed(key, expected),
                                          sealed(key, desired)));
  }

  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override {
    return store_->getTimeout();
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    store_->setTimeout(timeout);
  }
  // Appending to a value is not supported, because it would change the value under its code.
  bool hasExtendedApi() const override { return false; }

 private:
  // The length separates key and value unambiguously.
  MessageCode code_of(const std::string& key, std::string_view value) const {
    std::string text = join_message(key.size(), ':', key);
    return hmac_sha256(secret_, text.append(value));
  }

  Bytes sealed(const std::string& key, const Bytes& value) const {
    const MessageCode code =
        code_of(key, {reinterpret_cast<const char*>(value.data()), value.size()});
    Bytes all(kHead + value.size());
    auto place = std::ranges::copy(kMark, all.begin()).out;
    place = std::ranges::copy(code, place).out;
    std::ranges::copy(value, place);
    return all;
  }

  Bytes opened(const std::string& key, const Bytes& all) const {
    const std::string_view text(reinterpret_cast<const char*>(all.data()), all.size());
    if (is_sealed(text)) {
      const std::string_view code = text.substr(kMark.size(), kHead - kMark.size());
      if (is_code(code_of(key, text.substr(kHead)), code)) return {all.begin() + kHead, all.end()};
    }
    throw CommError(
        join_message("the value of '", key,
                     "' in the store was set by a process without the secret of this run"),
        "start all ranks with the same TRIREME_SECRET; where they have it, another program writes "
        "into the store: use another MASTER_PORT, and keep others from reaching it");
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string secret_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> seal(c10::intrusive_ptr<c10d::Store> store, std::string secret) {
  if (secret.empty()) return store;
  return c10::make_intrusive<SealedStore>(std::move(store), std::move(secret));
}

bool is_sealed(std::string_view value) { return value.size() >= kHead && value.starts_with(kMark); }

}  // namespace trireme::launch
