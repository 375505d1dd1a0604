// SPDX-License-Identifier: Apache-2.0
// TRIREME_TLS_DATA, which makes Gloo use TLS if LibTorch has it.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif

#include <trireme/comm/adapter/data_encryption.h>

#include <trireme/base/error.h>
#include <trireme/comm/engine.h>

#include <gmock/gmock.h>
#include <tests/ranks/fake_hosts.h>
#include <tests/temporary_folder.h>
#include <torch/csrc/distributed/c10d/GlooDeviceFactory.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace trireme::comm {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DataEncryption : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TRIREME_TLS_DATA", "1", 1);
    ::setenv("TRIREME_TLS", "/files", 1);
  }
  void TearDown() override {
    ::unsetenv("TRIREME_TLS_DATA");
    ::unsetenv("TRIREME_TLS");
  }
};

void connect_gloo() {
  static_cast<void>(connect(
      choose_engine("gloo", true),
      {.store = c10::make_intrusive<c10d::HashStore>(), .timeout = std::chrono::seconds(60)}));
}

bool gloo_has_tls() { return c10d::GlooDeviceRegistry()->Has("TCP_TLS"); }

TEST_F(DataEncryption, IsRefusedIfLibTorchDoesNotHaveIt) {
  if (gloo_has_tls()) GTEST_SKIP() << "this LibTorch has it";
  const std::string message = message_of<ConfigError>(connect_gloo);
  EXPECT_THAT(message, AllOf(HasSubstr("TRIREME_TLS_DATA is '1', but the Gloo in this LibTorch was "
                                       "built without TLS"),
                             HasSubstr("unset TRIREME_TLS_DATA")));
  for (const auto& thrown : run_catching({"", {0, 0, 1}, 0, 0, "shm"}, [](c10d::Backend&) {})) {
    ASSERT_TRUE(thrown);
    EXPECT_THAT(message_of<ConfigError>([&] { std::rethrow_exception(thrown); }),
                HasSubstr("built without TLS"));
  }
}

TEST_F(DataEncryption, NeedsFiles) {
  ::unsetenv("TRIREME_TLS");
  EXPECT_THAT(message_of<ConfigError>(connect_gloo),
              HasSubstr("TRIREME_TLS_DATA is '1', but nothing names the certificate"));
}

TEST_F(DataEncryption, IsRefusedByEnginesThatDoNotHaveIt) {
  for (const Engine& engine : engines()) {
    if (engine.name == "mpi" || engine.name == "nccl") {
      EXPECT_THAT(message_of<ConfigError>([&] { check_encryption(engine); }),
                  HasSubstr("does not encrypt what it sends"));
    } else {
      EXPECT_NO_THROW(check_encryption(engine));
    }
  }
}

TEST_F(DataEncryption, IsOffUnlessItIsAskedFor) {
  for (const char* off : {"", "0"}) {
    ::setenv("TRIREME_TLS_DATA", off, 1);
    EXPECT_FALSE(must_encrypt_data());
    EXPECT_NO_THROW(check_encryption(choose_engine("gloo", true)));
  }
  ::setenv("TRIREME_TLS_DATA", "yes", 1);
  EXPECT_THAT(message_of<ConfigError>(must_encrypt_data), HasSubstr("TRIREME_TLS_DATA"));
}

// Takes the place of Gloo's own transport, and ends the process with what that would be given.
std::shared_ptr<::gloo::transport::Device> show_variables(const std::string& /*interface*/,
                                                          const std::string& /*host*/,
                                                          bool /*is_lazy*/) {
  for (const char* name :
       {"GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE"}) {
    const char* const value = std::getenv(name);
    const std::string text = std::string(value == nullptr ? "none" : value) + " ";
    static_cast<void>(::write(2, text.data(), text.size()));
  }
  ::_exit(7);
}

using DataEncryptionDeathTest = DataEncryption;

// c10d reads its variables once, so this runs in a process of its own from the start.
TEST_F(DataEncryptionDeathTest, ChoosesTheTransportAndGivesItTheFiles) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto act = [] {
    if (!gloo_has_tls()) c10d::GlooDeviceRegistry()->Register("TCP_TLS", show_variables);
    connect_gloo();
  };
  if (gloo_has_tls()) GTEST_SKIP() << "this LibTorch has a transport of its own";
  EXPECT_EXIT(act(), ::testing::ExitedWithCode(7),
              "/files/key.pem /files/certificate.pem /files/ca.pem");
}

}  // namespace
}  // namespace trireme::comm
