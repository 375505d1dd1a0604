// SPDX-License-Identifier: Apache-2.0
// Which launcher started this process, by variables alone.
#include <trireme/base/error.h>
#include <trireme/comm/engines/mpi/load.h>

#include <gmock/gmock.h>

namespace trireme::comm::mpi {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Variables = std::map<std::string, std::string, std::less<>>;

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}};
const Variables kHydra = {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun = {{"SLURM_PROCID", "0"}, {"PMI_SIZE", "2"}};

Variables both(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

TEST(MpiLauncher, IsAcceptedWhereItIsMpisOwn) {
  EXPECT_NO_THROW(check_launcher("Open MPI", Environment(kOpenMpi)));
  EXPECT_NO_THROW(check_launcher("MPICH", Environment(kHydra)));
}

TEST(MpiLauncher, IsLeftToMpiUnderSlurm) {
  EXPECT_NO_THROW(check_launcher("Open MPI", Environment(kSrun)));
  EXPECT_NO_THROW(check_launcher("MPICH", Environment(kSrun)));
}

TEST(MpiLauncher, IsNamedWhereItIsAnother) {
  const struct {
    std::string family;
    Variables variables;
    std::string launcher;
  } cases[] = {
      {"Open MPI", kHydra, "the mpiexec of MPICH (Hydra)"},
      {"MPICH", kOpenMpi, "the mpirun of Open MPI"},
      {"MPICH", {}, "no launcher of MPI"},
      {"Open MPI", {{"TRIREME_RUN_ID", "1"}}, "trireme run"},
      // Started inside of a rank of mpirun's, whose variables are inherited.
      {"Open MPI", both(kOpenMpi, {{"TRIREME_RUN_ID", "1"}}), "trireme run"},
      {"MPICH", {{"TORCHELASTIC_RUN_ID", "1"}}, "torchrun"},
  };
  for (const auto& [family, variables, launcher] : cases) {
    EXPECT_THAT([&] { check_launcher(family, Environment(variables)); },
                ThrowsMessage<ConfigError>(HasSubstr("was started by " + launcher + ",")));
  }
}

}  // namespace
}  // namespace trireme::comm::mpi
