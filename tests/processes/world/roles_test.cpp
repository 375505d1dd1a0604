// SPDX-License-Identifier: Apache-2.0
// init() with a role: scripts in the way of MindSpore start one program several times.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/processes/free_port.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::free_port;
using test::read_file;
using test::TemporaryFolder;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = variable("WORLD_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

// A folder in which scripts run, and from which the logs are read.
class Roles : public ::testing::Test {
 protected:
  Finished script(const std::string& text) const {
    return test::shell("cd " + folder_.path().string() + " && export TMPDIR=$PWD; program=" +
                       kProgram + "; port=" + free_port() + "\n" + text);
  }
  std::string log(const std::string& name) const { return read_file(folder_ / (name + ".log")); }

 private:
  TemporaryFolder folder_;
};

// The variables of MindSpore's run script, for `count` workers, and a function that waits until a
// file has a text: `await waits first.log`.
std::string mind_spore(const std::string& count) {
  return R"(await() {
  for attempt in $(seq 2400); do
    if grep -q "$1" $2; then return; fi
    sleep 0.05
  done
  echo "no $1 came in $2"
  kill $scheduler
  exit 1
}
export MS_WORKER_NUM=)" +
         count + " MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=$port TRIREME_TIMEOUT=100\n";
}

TEST_F(Roles, TrainInAWorldOfFourUnderMindSporesScript) {
  const Finished finished = script("export port program; bash <<'end'\n" + mind_spore("4") + R"(
for ((i = 0; i < 4; i++)); do
  MS_ROLE=MS_WORKER MS_NODE_ID=$i $program >worker_$i.log 2>&1 &
done
MS_ROLE=MS_SCHED $program >scheduler.log 2>&1 &
scheduler=$!
wait $scheduler
echo "scheduler ended with $?"
wait
end
)");
  EXPECT_THAT(finished.output, HasSubstr("scheduler ended with 0")) << log("scheduler");
  for (const std::string rank : {"0", "1", "2", "3"}) {
    EXPECT_EQ(log("worker_" + rank),
              "rank " + rank + " of 4, local " + rank + " of 4, by trireme, sum 6, same 1\n");
  }
  EXPECT_THAT(log("scheduler"), AllOf(HasSubstr("the world is complete: 4 ranks on 1 host"),
                                      HasSubstr("all 4 ranks exited with code 0"),
                                      Not(HasSubstr("by trireme, sum"))));
}

TEST_F(Roles, EncryptUnderMindSporesScript) {
  const Finished finished = script(kTrireme + R"( certificates make --ca-folder ca 127.0.0.1
export port program; bash <<'end'
)" + mind_spore("2") + R"(
export MS_ENABLE_SSL=true TRIREME_TLS=$PWD/127.0.0.1
for ((i = 0; i < 2; i++)); do
  MS_ROLE=MS_WORKER MS_NODE_ID=$i $program >worker_$i.log 2>&1 &
done
MS_ROLE=MS_SCHED $program >scheduler.log 2>&1 &
wait $!
echo "scheduler ended with $?"
wait
MS_ENABLE_SSL=false MS_ROLE=MS_WORKER $program
TRIREME_TLS= MS_ROLE=MS_WORKER $program
end
)");
  EXPECT_THAT(finished.output, HasSubstr("scheduler ended with 0")) << log("scheduler");
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(log("worker_" + rank),
              "rank " + rank + " of 2, local " + rank + " of 2, by trireme, sum 1, same 1\n");
  }
  EXPECT_THAT(log("scheduler"), AllOf(HasSubstr(", encrypted (TLS)"), Not(HasSubstr("warning")),
                                      HasSubstr("all 2 ranks exited with code 0")));
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("MS_ENABLE_SSL is 'false' but TRIREME_TLS or its single files"),
                    HasSubstr("MS_ENABLE_SSL is 'true', but nothing names the certificate")));
}

TEST_F(Roles, HaveNativeNamesAndMayUseTheCommands) {
  // One worker by its environment, and two by trireme worker, under trireme scheduler.
  const Finished finished = script(R"(
export TRIREME_SCHEDULER=127.0.0.1:$port TRIREME_TIMEOUT=100 TRIREME_SECRET=0123456789abcdef
TRIREME_ROLE=worker TRIREME_NODE_ID=0 $program >one.log 2>&1 &
)" + kTrireme + R"( worker -n 2 --node-id 1 --output all -- $program >two.log 2>&1 &
)" + kTrireme + R"( scheduler --workers 3
echo "scheduler ended with $?"
wait
)");
  EXPECT_THAT(finished.output, HasSubstr("scheduler ended with 0"));
  EXPECT_EQ(log("one"), "rank 0 of 3, local 0 of 3, by trireme, sum 3, same 1\n");
  EXPECT_THAT(log("two"),
              AllOf(HasSubstr("[rank 1] rank 1 of 3, local 1 of 3, by trireme, sum 3"),
                    HasSubstr("[rank 2] rank 2 of 3, local 2 of 3, by trireme, sum 3")));
}

// Starts two workers, of which the first waits for ever once the world is complete, and the second
// does as `second` says. Then `act` runs, and the exit codes are printed.
std::string two_workers(const std::string& second, const std::string& act = "") {
  return mind_spore("2") + R"(
MS_ROLE=MS_SCHED $program 2>scheduler.log & scheduler=$!
MS_ROLE=MS_WORKER MS_NODE_ID=0 $program --waits >first.log 2>&1 & first=$!
MS_ROLE=MS_WORKER MS_NODE_ID=1 $program )" +
         second + R"( >second.log 2>&1 & second=$!
)" + act +
         R"(
wait $second; echo "second ended with $?"
wait $first; echo "first ended with $?"
wait $scheduler; echo "scheduler ended with $?"
)";
}

TEST_F(Roles, EndWithTheCodeOfTheWorkerThatFailedFirst) {
  const Finished finished = script(two_workers("--exits-with-5"));
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("second ended with 5\n"), HasSubstr("first ended with 143\n"),
                    HasSubstr("scheduler ended with 5\n")));
  EXPECT_THAT(
      log("scheduler"),
      AllOf(HasSubstr("rank 1 failed first: "), HasSubstr("world_program (process "),
            HasSubstr(", 127.0.0.1) exited with code 5"), HasSubstr("1 other rank was ended")));
  EXPECT_THAT(log("first"), AllOf(HasSubstr("rank 0 is ended by its scheduler at 127.0.0.1:"),
                                  HasSubstr("rank 1 failed first: ")));
}

TEST_F(Roles, TellTheExceptionThatEndedAWorker) {
  const Finished finished = script(two_workers("--uncaught"));
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("second ended with 134\n"), HasSubstr("first ended with 143\n"),
                    HasSubstr("scheduler ended with 134\n")));
  for (const char* name : {"scheduler", "first"})
    EXPECT_THAT(log(name), HasSubstr(", 127.0.0.1) ended by an exception: The size of tensor a"));
  EXPECT_THAT(log("second"), HasSubstr("world_program: uncaught c10::Error: The size of tensor"));
}

TEST_F(Roles, EndWhenAWorkerIsKilled) {
  const Finished finished =
      script(two_workers("--waits", "await waits second.log; kill -KILL $second"));
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("second ended with 137\n"), HasSubstr("first ended with 143\n"),
                    HasSubstr("scheduler ended with 1\n")));
  EXPECT_THAT(log("scheduler"),
              AllOf(HasSubstr("rank 1 failed first: "),
                    HasSubstr("closed its connection without saying that it ends")));
}

TEST_F(Roles, EndWhenTheSchedulerIsKilled) {
  const Finished finished = script(two_workers(
      "--waits", "await waits first.log; await waits second.log; kill -KILL $scheduler"));
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("second ended with 143\n"), HasSubstr("first ended with 143\n")));
  for (const char* worker : {"first", "second"}) {
    EXPECT_THAT(log(worker), AllOf(HasSubstr("is ended by its scheduler at 127.0.0.1:"),
                                   HasSubstr("has ended or cannot be reached any more")));
  }
}

TEST_F(Roles, EndWhenAWorkerDiesWhoseChildLives) {
  // The child used to keep the connection open.
  const Finished finished =
      script(two_workers("--forks-and-waits", "await waits second.log; kill -KILL $second"));
  EXPECT_THAT(finished.output, HasSubstr("scheduler ended with 1\n"));
  EXPECT_THAT(log("scheduler"), HasSubstr("rank 1 failed first: "));
}

TEST_F(Roles, LetChildrenOfChildrenKeepTheirFiles) {
  const Finished finished = script(mind_spore("1") + R"(
MS_ROLE=MS_SCHED $program 2>scheduler.log & scheduler=$!
MS_ROLE=MS_WORKER $program --forks-twice
wait $scheduler; echo "scheduler ended with $?"
)");
  EXPECT_THAT(finished.output, AllOf(HasSubstr("forks of rank 0 ended with 0\n"),
                                     HasSubstr("scheduler ended with 0")));
  EXPECT_THAT(log("scheduler"), HasSubstr("the rank exited with code 0"));
}

TEST_F(Roles, AreRefusedWithOneNodeIdTwice) {
  const Finished finished = script(mind_spore("2") + R"(
MS_ROLE=MS_SCHED $program 2>scheduler.log & scheduler=$!
for i in 1 2; do MS_ROLE=MS_WORKER MS_NODE_ID=7 $program >worker_$i.log 2>&1 & done
await "refused a worker" scheduler.log
kill $scheduler; wait
)");
  EXPECT_THAT(log("worker_1") + log("worker_2"),
              AllOf(HasSubstr("has the node id '7', which is already that of process "),
                    HasSubstr("give each worker its own TRIREME_NODE_ID or MS_NODE_ID")));
  EXPECT_EQ(finished.code, 0);
}

TEST_F(Roles, AreRefusedWithAnotherNumberOfWorkers) {
  const Finished finished = script(mind_spore("2") + R"(
MS_ROLE=MS_SCHED $program 2>scheduler.log & scheduler=$!
MS_ROLE=MS_WORKER MS_WORKER_NUM=8 $program; echo "worker ended with $?"
kill $scheduler; wait $scheduler
)");
  EXPECT_THAT(finished.output, AllOf(HasSubstr("expects 8 workers, the scheduler has 2"),
                                     HasSubstr("worker ended with 1")));
}

TEST_F(Roles, TellFewerWorkersThanSaidAtTheDeadline) {
  const Finished finished = script(mind_spore("3") + R"(
export TRIREME_TIMEOUT=20
MS_ROLE=MS_WORKER MS_NODE_ID=5 $program >worker.log 2>&1 &
MS_ROLE=MS_SCHED $program; echo "scheduler ended with $?"
wait
)");
  EXPECT_THAT(finished.output, AllOf(HasSubstr("waited 20 s for 3 ranks, 1 came:\n  process "),
                                     HasSubstr("node id 5)"), HasSubstr("scheduler ended with 1")));
  EXPECT_THAT(log("worker"), HasSubstr("has ended the run: waited 20 s for 3 ranks, 1 came:"));
}

TEST_F(Roles, SayThatNoSchedulerAnswers) {
  const Finished finished =
      script(mind_spore("2") + "TRIREME_TIMEOUT=1 MS_ROLE=MS_WORKER $program");
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("no scheduler answered at 127.0.0.1:"),
                    HasSubstr("Connection refused"), HasSubstr("MS_ROLE=MS_SCHED")));
}

TEST_F(Roles, NameVariablesThatAreWrong) {
  const auto output = [&](const std::string& variables) {
    return script("env " + variables + " $program").output;
  };
  EXPECT_THAT(output("MS_ROLE=MS_PSERVER"), HasSubstr("Trireme has no parameter servers"));
  EXPECT_THAT(output("MS_ROLE=MS_WORKER MS_SCHED_HOST=h"), HasSubstr("MS_SCHED_PORT is not set"));
  EXPECT_THAT(output("MS_ROLE=MS_WORKER TRIREME_ROLE=scheduler"),
              HasSubstr("TRIREME_ROLE is 'scheduler' but MS_ROLE is 'MS_WORKER'"));
  EXPECT_THAT(output("TRIREME_ROLE=worker RANK=0 WORLD_SIZE=1"),
              HasSubstr("TRIREME_ROLE and RANK are 'worker' and '0', expected one of them"));
  EXPECT_THAT(output("RANK_TABLE_FILE=/hccl.json"), HasSubstr("Trireme does not read rank tables"));
  EXPECT_THAT(output("MS_WORKER_NUM=8"), HasSubstr("this process would train alone"));
}

}  // namespace
}  // namespace trireme
