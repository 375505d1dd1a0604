// SPDX-License-Identifier: Apache-2.0
// What a process without the secret of a run can do to a store: nothing that ranks believe.
#include <trireme/launch/store/sealed_store.h>

#include <trireme/base/error.h>
#include <trireme/launch/hmac.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/store.h>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace trireme::launch {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kSecret = "0123456789abcdef";
constexpr const char* kOtherSecret = "0123456789abcdeF";

template <typename Code>
std::string hexadecimal(const Code& code) {
  std::string text;
  for (const unsigned byte : code) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(Sha256, GivesTheValuesOfTheStandard) {
  // FIPS 180-2, appendix B, and the text without a letter.
  EXPECT_EQ(hexadecimal(sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hexadecimal(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hexadecimal(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hexadecimal(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(HmacSha256, GivesTheValuesOfTheStandard) {
  // RFC 4231, test cases 1, 2 and 6.
  EXPECT_EQ(hexadecimal(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hexadecimal(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hexadecimal(hmac_sha256(std::string(131, '\xaa'),
                                    "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

class Sealed : public ::testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> bare_ = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Store> sealed_ = seal(bare_, kSecret);
};

TEST_F(Sealed, ReturnsWhatWasSetWithTheSameSecret) {
  const auto other = seal(bare_, kSecret);
  for (const std::string& value : {std::string(), std::string("text"), std::string(3, '\0')}) {
    sealed_->set("key", value);
    EXPECT_EQ(other->get_to_str("key"), value);
    EXPECT_EQ(other->clone()->get_to_str("key"), value);
  }
  EXPECT_EQ(sealed_->compareSet("new", "", "first"), "first");
  EXPECT_EQ(other->compareSet("new", "", "second"), "first");
  EXPECT_EQ(other->compareSet("new", "first", "second"), "second");
  EXPECT_EQ(sealed_->add("number", 2), 2);
  EXPECT_EQ(other->add("number", 2), 4);
  EXPECT_TRUE(other->check({"key", "new"}));
  EXPECT_TRUE(other->deleteKey("key"));
  EXPECT_FALSE(sealed_->check({"key"}));
  EXPECT_FALSE(sealed_->hasExtendedApi());
}

TEST_F(Sealed, BelievesNobodyElse) {
  const auto is_refused = [&](const std::string& key) {
    EXPECT_THAT(message_of<CommError>([&] { sealed_->get_to_str(key); }),
                AllOf(HasSubstr("the value of '" + key +
                                "' in the store was set by a process "
                                "without the secret of this run"),
                      HasSubstr("same TRIREME_SECRET")));
  };
  bare_->set("plain", "text");
  is_refused("plain");
  seal(bare_, kOtherSecret)->set("other", "text");
  is_refused("other");
  // One that was set for another key, and one that was changed.
  sealed_->set("one", "text");
  bare_->set("copy", bare_->get_to_str("one"));
  is_refused("copy");
  std::string changed = bare_->get_to_str("one");
  changed.back() = 'T';
  bare_->set("one", changed);
  is_refused("one");
  // A key and its value cannot be parted elsewhere.
  sealed_->set("a", "bc");
  bare_->set("ab", bare_->get_to_str("a"));
  is_refused("ab");
}

TEST(MakeStore, SealsWhatIsReachedOverANetwork) {
  ListeningSocket socket = listen_on(Reach::kLoopback, std::nullopt);
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = static_cast<std::uint16_t>(socket.port);
  options.waitWorkers = false;
  options.masterListenFd = socket.fd.release();
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  Identity identity;
  identity.world_size = 2;
  identity.master_address = "127.0.0.1";
  identity.master_port = socket.port;
  identity.launcher_hosts_store = true;
  identity.secret = kSecret;
  const std::chrono::milliseconds timeout{10'000};
  const auto ours = make_store(identity, 0, timeout);
  ours->set("key", "ours");
  EXPECT_EQ(make_store(identity, 0, timeout)->get_to_str("key"), "ours");

  // Another user of the machine, who can list all keys.
  static_cast<c10d::Store&>(*server).set(key_prefix(0) + "/key", "his");
  EXPECT_THAT(message_of<CommError>([&] { ours->get_to_str("key"); }),
              HasSubstr("without the secret of this run"));

  identity.secret = "short";
  EXPECT_THAT(message_of<ConfigError>([&] { make_store(identity, 0, timeout); }),
              HasSubstr("TRIREME_SECRET has 5 characters, expected 16 or more"));
}

TEST(Rendezvous, TellsThatSecretsDiffer) {
  for (const char* secret : {kOtherSecret, ""}) {
    c10::intrusive_ptr<c10d::Store> bare = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::string> messages(2);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto store = seal(bare, rank == 0 ? kSecret : secret);
        Identity identity;
        identity.rank = rank;
        identity.world_size = 2;
        messages[static_cast<std::size_t>(rank)] = message_of<Error>([&] {
          rendezvous(*store, identity, own_peer_info(identity), std::chrono::seconds(60));
        });
      });
    }
    threads.clear();
    EXPECT_THAT(messages[0], HasSubstr("without the secret of this run"));
    EXPECT_THAT(messages[1],
                AnyOf(HasSubstr("without the secret of this run"),
                      HasSubstr("rank 0 has a secret (TRIREME_SECRET) and rank 1 has none")));
  }
}

TEST(MakeStore, RefusesAFileThatAnotherUserMadeOrMayWriteTo) {
  const test::TemporaryFolder folder;
  const std::string before = std::getenv("TMPDIR") == nullptr ? "" : std::getenv("TMPDIR");
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  Identity identity;
  identity.world_size = 2;
  identity.local_world_size = 2;
  identity.job = "job";
  const std::chrono::milliseconds timeout{1000};
  const auto file = folder / join_message("trireme-", ::getuid(), "-job");
  const auto is_refused = [&] {
    EXPECT_THAT(message_of<ConfigError>([&] { make_store(identity, 0, timeout); }),
                AllOf(HasSubstr(file.string()), HasSubstr("set TMPDIR to a folder")));
  };
  test::write_file(file, "");
  ::chmod(file.c_str(), 0666);
  is_refused();
  std::filesystem::remove(file);
  test::write_file(folder / "target", "");
  std::filesystem::create_symlink(folder / "target", file);
  is_refused();
  std::filesystem::remove(file);
  if (::geteuid() == 0) {
    test::write_file(file, "");
    ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
    is_refused();
    std::filesystem::remove(file);
  }
  {
    const auto store = make_store(identity, 0, timeout);
    struct stat status = {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
    EXPECT_EQ(store->getTimeout(), timeout);
  }
  before.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before.c_str(), 1);
}

}  // namespace
}  // namespace trireme::launch
