// SPDX-License-Identifier: Apache-2.0
// A scheduler that encrypts, with workers and strangers that connect to it.
#include <trireme/base/error.h>
#include <trireme/launch/tls/tls_session.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/launch/scheduler/running_scheduler.h>
#include <tests/unit/launch/tls/host_files.h>
#include <tests/unit/launch/tls/raw_tls.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

using namespace std::chrono_literals;
using test::around_now;
using test::await_end;
using test::await_request;
using test::end;
using test::HostFiles;
using test::join;
using test::kHour;
using test::kSecretOfRun;
using test::message_of;
using test::RawTls;
using test::RunningScheduler;
using testing::AllOf;
using testing::HasSubstr;

class EncryptedScheduler : public testing::Test {
 protected:
  // Starts a scheduler that encrypts.
  RunningScheduler start(int workers, const std::string& secret = "",
                         std::chrono::milliseconds patience = 60s) const {
    return RunningScheduler(workers, secret, 60s, patience, "127.0.0.1", files_);
  }

  // Lets two workers run under a scheduler of two, after `act` has been called. Returns what the
  // scheduler has printed.
  std::string run_after(const std::function<void(RunningScheduler&)>& act,
                        std::chrono::milliseconds patience = 60s) const {
    testing::internal::CaptureStderr();
    {
      RunningScheduler scheduler = start(2, "", patience);
      act(scheduler);
      {
        auto first = join(scheduler.worker());
        auto second = join(scheduler.worker());
        WorkerConnection one = first.get();
        WorkerConnection other = second.get();
        end(one, 0);
        end(other, 0);
      }
      EXPECT_EQ(scheduler.wait(), 0);
    }
    return testing::internal::GetCapturedStderr();
  }

  const HostFiles& hosts() const { return hosts_; }
  const TlsFiles& files() const { return files_; }

 private:
  HostFiles hosts_;
  TlsFiles files_ = hosts_.make("host");
};

TEST_F(EncryptedScheduler, GivesEachRunASecretOfItsOwn) {
  std::vector<std::string> secrets;
  for (const char* secret : {"", kSecretOfRun}) {
    RunningScheduler scheduler = start(2, secret);
    {
      auto first = join(scheduler.worker("0"));
      auto second = join(scheduler.worker("1"));
      WorkerConnection one = first.get();
      WorkerConnection other = second.get();
      EXPECT_EQ(one.place().first_rank, 0);
      EXPECT_EQ(other.place().first_rank, 1);
      EXPECT_EQ(one.place().secret.size(), 32U);
      EXPECT_EQ(one.place().secret, other.place().secret);
      secrets.push_back(one.place().secret);
      end(one, 0);
      end(other, 0);
    }
    EXPECT_EQ(scheduler.wait(), 0);
    EXPECT_EQ(scheduler.secret_of_store(), secrets.back());
  }
  EXPECT_NE(secrets[0], secrets[1]);
}

TEST_F(EncryptedScheduler, EndsTheOthersWhenAWorkerFails) {
  RunningScheduler scheduler = start(2);
  auto first = join(scheduler.worker());
  auto second = join(scheduler.worker());
  {
    WorkerConnection failing = first.get();
    WorkerConnection waiting = second.get();
    end(failing, 7);
    EXPECT_EQ(await_request(waiting).code, 7);
  }
  EXPECT_EQ(scheduler.wait(), 7);
}

TEST_F(EncryptedScheduler, ComparesTheSecretAsWell) {
  RunningScheduler scheduler = start(1, kSecretOfRun);
  WorkerOptions worker = scheduler.worker();
  worker.secret = "another secret of this run";
  EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
              HasSubstr("has another secret (TRIREME_SECRET) than this worker"));
  {
    auto joined = join(scheduler.worker());
    WorkerConnection only = joined.get();
    end(only, 0);
  }
  EXPECT_EQ(scheduler.wait(), 0);
}

TEST_F(EncryptedScheduler, TellsAWorkerThatDoesNotEncrypt) {
  const std::string printed = run_after([](RunningScheduler& scheduler) {
    WorkerOptions worker = scheduler.worker();
    worker.tls.reset();
    EXPECT_THAT(
        message_of<ConfigError>([&] { WorkerConnection{worker}; }),
        AllOf(HasSubstr("refused this worker: the scheduler encrypts its connections (TLS), "
                        "and the worker at 127.0.0.1 does not"),
              HasSubstr("set TRIREME_TLS to the folder")));
    worker.secret = kSecretOfRun;
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("the scheduler encrypts its connections (TLS)"));
  });
  EXPECT_THAT(printed, HasSubstr("  2 connections: not encrypted\n"));
}

TEST_F(EncryptedScheduler, IsNotTakenForOneThatDoesNotEncrypt) {
  testing::internal::CaptureStderr();
  {
    RunningScheduler scheduler(1);
    WorkerOptions worker = scheduler.worker();
    worker.tls = files();
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("does not encrypt its connections (TLS), and this worker does"));
    {
      auto joined = join(scheduler.worker());
      WorkerConnection only = joined.get();
      EXPECT_EQ(only.place().secret, "");
      end(only, 0);
    }
    EXPECT_EQ(scheduler.wait(), 0);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("it encrypts (TLS), and this scheduler does not"),
                    HasSubstr("  1 connection: encrypted\n")));
}

TEST_F(EncryptedScheduler, RefusesStrangersAndCountsThemByTheirCause) {
  const HostFiles others;
  const std::string printed = run_after([&](RunningScheduler& scheduler) {
    const auto talk_as = [&](const std::optional<TlsFiles>& shown) {
      const UniqueFd fd = scheduler.connect();
      ::fcntl(fd.get(), F_SETFL, 0);
      return RawTls(RawTls::Side::kClient, shown).talk(fd.get());
    };
    EXPECT_THAT(talk_as(std::nullopt), HasSubstr("certificate required"));
    EXPECT_THAT(talk_as(others.make("other")), HasSubstr("unknown ca"));
    EXPECT_THAT(talk_as(hosts().make("old", {"host"}, around_now(2 * kHour, -kHour))),
                HasSubstr("certificate expired"));
    EXPECT_THAT(talk_as(hosts().make("early", {"host"}, around_now(-kHour, 2 * kHour))),
                HasSubstr("bad certificate"));
    EXPECT_THAT(talk_as(files()), HasSubstr("\"challenge\""))
        << "the others were no clients of TLS";
    RawTls old(RawTls::Side::kClient, files());
    old.set_newest(TLS1_2_VERSION);
    const UniqueFd fd = scheduler.connect();
    ::fcntl(fd.get(), F_SETFL, 0);
    EXPECT_THAT(old.talk(fd.get()), HasSubstr("protocol version"));
  });
  EXPECT_THAT(printed,
              AllOf(HasSubstr(", encrypted (TLS)\n"), HasSubstr("  1 connection: no certificate\n"),
                    HasSubstr("  1 connection: a certificate of another authority\n"),
                    HasSubstr("  1 connection: an expired certificate\n"),
                    HasSubstr("  1 connection: a certificate that is not valid yet (check the "
                              "clocks)\n"),
                    HasSubstr("  1 connection: broken TLS\n"),
                    HasSubstr("it has another version of TLS than 1.3")));
}

// Serves a worker with files that it must not trust, and returns its error.
std::string error_of_worker(const TlsFiles& shown, const TlsFiles& own) {
  const ListeningSocket listening = listen_on(Reach::kLoopback, std::nullopt);
  const std::jthread server([&] {
    const UniqueFd client(::accept(listening.fd.get(), nullptr, nullptr));
    EXPECT_THAT(RawTls(RawTls::Side::kServer, shown).talk(client.get()), HasSubstr("ended: "));
  });
  WorkerOptions options;
  options.scheduler = {.host = "127.0.0.1", .port = listening.port};
  options.timeout = 60s;
  options.tls = own;
  return message_of<ConfigError>([&] { WorkerConnection{options}; });
}

TEST_F(EncryptedScheduler, IsNotTrustedWithACertificateThatDoesNotFit) {
  const HostFiles others;
  const std::string old =
      error_of_worker(hosts().make("old", {"127.0.0.1"}, around_now(2 * kHour, -kHour)), files());
  EXPECT_THAT(old,
              AllOf(HasSubstr("the encryption (TLS) with the scheduler at 127.0.0.1:"),
                    HasSubstr("has failed: its certificate '127.0.0.1' by 'Trireme authority "),
                    HasSubstr("' was valid until "), HasSubstr(", it is "),
                    HasSubstr("trireme certificates make --replace")));
  EXPECT_THAT(
      error_of_worker(hosts().make("early", {"127.0.0.1"}, around_now(-kHour, 2 * kHour)), files()),
      AllOf(HasSubstr("' is valid from "), HasSubstr("check the clocks of both hosts")));
  EXPECT_THAT(error_of_worker(hosts().make("other", {"host0", "10.0.0.1"}), files()),
              AllOf(HasSubstr("its certificate is for host0, 10.0.0.1, and not for 127.0.0.1"),
                    HasSubstr("use a name or an address that the certificate is for")));
  EXPECT_THAT(error_of_worker(others.make("host"), files()),
              AllOf(HasSubstr("is not by an authority that is trusted here"),
                    HasSubstr("with one authority")));
}

TEST_F(EncryptedScheduler, TellsAWorkerWhoseCertificateItDoesNotTrust) {
  // The worker trusts the authority of the scheduler, but the scheduler does not trust its own.
  const HostFiles others;
  TlsFiles mixed = others.make("mixed");
  test::write_file(mixed.authority,
                   hosts().authority().certificate + others.authority().certificate);
  const std::string printed = run_after([&](RunningScheduler& scheduler) {
    WorkerOptions worker = scheduler.worker();
    worker.tls = mixed;
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                AllOf(HasSubstr("it has refused the certificate of this side, because it does not "
                                "trust the authority"),
                      HasSubstr("trireme certificates check")));
    worker.tls = hosts().make("elsewhere");
    worker.scheduler.host = "localhost";
    EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
                HasSubstr("its certificate is for 127.0.0.1, and not for localhost"));
  });
  EXPECT_THAT(printed,
              AllOf(HasSubstr("  1 connection: a certificate of another authority\n"),
                    HasSubstr("  1 connection: the certificate of this side was refused\n")));
}

TEST_F(EncryptedScheduler, FindsOutThatItsFilesCannotBeUsed) {
  TlsFiles wrong = files();
  wrong.key = hosts().make("other").key;
  SchedulerOptions options;
  options.tls = wrong;
  EXPECT_THAT(message_of<ConfigError>([&] { run_scheduler(options); }),
              HasSubstr("other/key.pem is not that of the certificate "));
  WorkerOptions worker;
  worker.tls = wrong;
  EXPECT_THAT(message_of<ConfigError>([&] { WorkerConnection{worker}; }),
              HasSubstr("other/key.pem is not that of the certificate "));
}

TEST_F(EncryptedScheduler, WarnsIfItsCertificateIsForOtherHosts) {
  testing::internal::CaptureStderr();
  {
    RunningScheduler scheduler(1, "", 60s, 60s, "127.0.0.1", hosts().make("other", {"localhost"}));
    WorkerOptions worker = scheduler.worker();
    worker.scheduler.host = "localhost";
    {
      auto joined = join(worker);
      WorkerConnection only = joined.get();
      end(only, 0);
    }
    EXPECT_EQ(scheduler.wait(), 0);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("other/certificate.pem is for localhost, and not for 127.0.0.1, where this "
                        "scheduler listens"));
}

// Returns the beginning of what a worker sends first.
std::string half_a_hello(const TlsFiles& files) {
  const std::string all = TlsContext(files).connect("127.0.0.1")->take_unsent();
  return all.substr(0, all.size() / 2);
}

TEST_F(EncryptedScheduler, DropsAHandshakeThatStopsHalfWay) {
  const std::string printed = run_after(
      [&](RunningScheduler& scheduler) {
        std::vector<UniqueFd> strangers;
        for (const std::string& bytes :
             {std::string(), std::string("\x16"), half_a_hello(files())}) {
          strangers.push_back(scheduler.connect());
          ::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        }
        for (const UniqueFd& stranger : strangers) EXPECT_TRUE(await_end(stranger));
      },
      1s);
  EXPECT_THAT(printed, AllOf(HasSubstr("  3 connections: no introduction in time\n"),
                             HasSubstr("it did not introduce itself within 1000 ms")));
}

// A stranger that connects a thousand times, and says nothing, rubbish, or half of a handshake.
TEST_F(EncryptedScheduler, IsNotDelayedByAThousandStrangers) {
  constexpr int kMany = 1000;
  std::vector<UniqueFd> strangers;
  const std::string half = half_a_hello(files());
  const std::string printed = run_after([&](RunningScheduler& scheduler) {
    for (int i = 0; i < kMany; ++i) {
      strangers.push_back(scheduler.connect());
      const std::vector<std::string> said{
          "", "GET / HTTP/1.1\r\n\r\n", half,
          std::string("\x16\x03\x01\x01\x00", 5) + std::string(9'000, 'x')};
      const std::string& bytes = said.at(static_cast<std::size_t>(i) % said.size());
      ::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  });
  EXPECT_THAT(printed, AllOf(HasSubstr(" connections: another protocol\n"),
                             HasSubstr(" connections: broken TLS\n"),
                             HasSubstr(" connections: too many at once\n"),
                             HasSubstr("all 2 ranks exited with code 0")));
}

}  // namespace
}  // namespace trireme::launch
