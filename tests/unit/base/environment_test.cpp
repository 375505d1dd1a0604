// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/environment.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using std::chrono::seconds;
using test::message_of;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

TEST(Environment, OfTheProcessHoldsItsVariables) {
  ::setenv("TRIREME_TEST_VARIABLE", "a=b", 1);
  const Environment environment = Environment::of_process();
  ::unsetenv("TRIREME_TEST_VARIABLE");
  EXPECT_EQ(environment.find("TRIREME_TEST_VARIABLE"), "a=b");
}

TEST(Environment, TreatsEmptyAsUnset) {
  const Environment environment(Variables{{"EMPTY", ""}});
  EXPECT_EQ(environment.find("EMPTY"), std::nullopt);
  EXPECT_FALSE(environment.has("MISSING"));
}

TEST(Environment, ReadsIntegersInRange) {
  const Environment environment(Variables{{"N", "-5"}});
  EXPECT_EQ(environment.find_integer("N", -5, 5), -5);
  EXPECT_EQ(environment.find_integer("MISSING", 0, 1), std::nullopt);
}

TEST(Environment, RefusesOtherTextForIntegers) {
  for (const char* text :
       {"six", "6x", " 6", "6 ", "1e3", "0x10", "+6", "99999999999999999999", "11", "-1"}) {
    const Environment environment(Variables{{"N", text}});
    const std::string message =
        message_of<ConfigError>([&] { environment.find_integer("N", 0, 10); });
    EXPECT_THAT(message, HasSubstr("environment variable N is '" + std::string(text) +
                                   "', expected an integer from 0 to 10"));
    EXPECT_THAT(message, HasSubstr("hint: correct N or unset it"));
  }
}

TEST(Settings, HaveTheirDocumentedDefaults) {
  const Settings settings = Settings::from(Environment{});
  EXPECT_EQ(settings.timeout, seconds(300));
  EXPECT_EQ(settings.engine, "auto");
  EXPECT_EQ(settings.interface, "");
  EXPECT_EQ(settings.engine_across, "auto");
  EXPECT_EQ(settings.leaders, 0);
  EXPECT_EQ(settings.allreduce_streams, 1);
  EXPECT_EQ(settings.tensor_memory, "auto");
  EXPECT_EQ(settings.cluster, "");
  EXPECT_EQ(settings.steps_between_replica_checks, 0);
}

TEST(Settings, ComeFromTheirVariables) {
  const Settings settings =
      Settings::from(Environment(Variables{{"TRIREME_TIMEOUT", "7"},
                                           {"TRIREME_ENGINE", "gloo"},
                                           {"TRIREME_INTERFACE", "eth0"},
                                           {"TRIREME_ENGINE_ACROSS", "mpi"},
                                           {"TRIREME_LEADERS", "2"},
                                           {"TRIREME_ALLREDUCE_STREAMS", "3"},
                                           {"TRIREME_TENSOR_MEMORY", "libtorch"},
                                           {"TRIREME_CLUSTER", "a100-80"},
                                           {"TRIREME_PLAN", "auto"},
                                           {"TRIREME_GRACE", "8"},
                                           {"TRIREME_MAX_TIME", "9"},
                                           {"TRIREME_RESUME", "latest"},
                                           {"TRIREME_CHECK_REPLICAS", "100"},
                                           {"TRIREME_CHECK", "values"}}));
  EXPECT_EQ(settings.timeout, seconds(7));
  EXPECT_EQ(settings.engine, "gloo");
  EXPECT_EQ(settings.interface, "eth0");
  EXPECT_EQ(settings.engine_across, "mpi");
  EXPECT_EQ(settings.leaders, 2);
  EXPECT_EQ(settings.allreduce_streams, 3);
  EXPECT_EQ(settings.tensor_memory, "libtorch");
  EXPECT_EQ(settings.cluster, "a100-80");
  EXPECT_EQ(settings.plan, "auto");
  EXPECT_EQ(settings.leave_grace, seconds(8));
  EXPECT_EQ(settings.max_time, seconds(9));
  EXPECT_TRUE(settings.resumes);
  EXPECT_TRUE(settings.check_values);
  EXPECT_EQ(settings.steps_between_replica_checks, 100);
}

TEST(Settings, RefuseACheckThatIsNotKnown) {
  EXPECT_FALSE(Settings::from(Environment{}).check_values);
  EXPECT_THAT(
      message_of<ConfigError>([] {
        static_cast<void>(Settings::from(Environment(Variables{{"TRIREME_CHECK", "value"}})));
      }),
      HasSubstr("TRIREME_CHECK is 'value', expected values"));
}

TEST(Settings, RefuseATimeoutOfNothing) {
  for (const char* name : {"TRIREME_TIMEOUT", "TRIREME_GRACE", "TRIREME_MAX_TIME"}) {
    EXPECT_THROW(Settings::from(Environment(Variables{{name, "0"}})), ConfigError) << name;
  }
}

}  // namespace
}  // namespace trireme
