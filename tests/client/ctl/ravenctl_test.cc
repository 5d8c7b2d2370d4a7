// The program itself, against a scripted daemon: what main.cc wires.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "proto/packet.h"
#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int code;
  std::string output;  // both streams
};

Outcome Ravenctl(const std::string& arguments) {
  FILE* pipe = popen(("client/ctl/ravenctl 2>&1 " + arguments).c_str(), "r");
  RAVEN_CHECK(pipe != nullptr);
  Outcome outcome{};
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(RavenctlTest, ExplainsItself) {
  const Outcome help = Ravenctl("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* command :
       {"status", "top", "ls", "clients", "limits", "sleep", "wake", "doctor"}) {
    EXPECT_THAT(help.output, HasSubstr(command));
    EXPECT_EQ(Ravenctl(std::string(command) + " --help").code, 0) << command;
  }
  EXPECT_EQ(Ravenctl("--version").output, std::string(proto::kVersion) + "\n");
}

TEST(RavenctlTest, OffersShellsCompletions) {
  EXPECT_EQ(Ravenctl("--complete st").output,
            "status\tDevices, tiers, budgets, hits, bytes moved, stalls\n");
  EXPECT_EQ(Ravenctl("--complete ls --sort si").output, "size\t\n");
  const Outcome page = Ravenctl("--manual 1");
  EXPECT_EQ(page.code, 0);
  EXPECT_THAT(page.output, StartsWith(".TH RAVENCTL 1 "));
  EXPECT_THAT(page.output, HasSubstr(".SS limits [OPTIONS]"));
}

TEST(RavenctlTest, WrongUsageHasItsOwnExitCode) {
  for (const char* arguments : {"",
                                "nonsense",
                                "status --nonsense",
                                "top --interval 0",
                                "ls --sort color",
                                "ls --limit x",
                                "top --interval nan",
                                "status --timeout nan",
                                "record x --seconds nan",
                                "limits --user 1 --device-budget ''",
                                "ls --tier ''",
                                "status --socket ''",
                                "ls --limit -1",
                                "ls --client -1",
                                "record x --client -1",
                                "limits",
                                "limits --client 0",
                                "limits --client 1 --user root",
                                "sleep weights",
                                "wake --job ''",
                                "sleep --job x --keep some",
                                "sleep --job x --within long",
                                "status --timeout 0"}) {
    EXPECT_EQ(Ravenctl(arguments).code, 2) << arguments;
  }
}

TEST(RavenctlTest, SuggestsWhatWasMeant) {
  EXPECT_THAT(Ravenctl("statsu").output,
              HasSubstr("there is no command \"statsu\"; did you mean \"status\"?"));
  EXPECT_THAT(Ravenctl("ls --limt 3").output, HasSubstr("did you mean \"--limit\"?"));
  EXPECT_THAT(Ravenctl("ls --limit -1").output, HasSubstr("-1 is negative"));
}

TEST(RavenctlTest, TakesCommonOptionsBeforeAndAfterTheCommand) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  for (const std::string& arguments : {"--socket " + daemon.path() + " --json status",
                                       "status --json --socket " + daemon.path()}) {
    const Outcome status = Ravenctl(arguments);
    EXPECT_EQ(status.code, 0) << status.output;
    EXPECT_THAT(status.output, StartsWith("{\"daemon\""));
  }
}

TEST(RavenctlTest, OutputThatCannotBeWrittenIsAFailure) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  for (const char* command : {"status", "--json ls", "--help"}) {
    // Its errors come through the pipe; what it has to say does not.
    const std::string arguments = "--socket " + daemon.path() + " " + command;
    const Outcome lost = Ravenctl(arguments + " >/dev/full");
    EXPECT_EQ(lost.code, 1) << command;
    EXPECT_THAT(lost.output, HasSubstr("cannot be written")) << command;
  }
}

TEST(RavenctlTest, FindsTheSocketInTheEnvironment) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  setenv("RAVENSTORE_SOCKET", daemon.path().c_str(), 1);
  EXPECT_EQ(Ravenctl("clients").code, 0);
  unsetenv("RAVENSTORE_SOCKET");
}

TEST(RavenctlTest, AnEmptyVariableNamesNoSocket) {
  setenv("RAVENSTORE_SOCKET", "", 1);
  EXPECT_THAT(Ravenctl("--help").output, HasSubstr(proto::kDefaultSocketPath));
  unsetenv("RAVENSTORE_SOCKET");
}

TEST(RavenctlTest, EveryCommandReachesTheDaemon) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  const std::string socket = " --socket " + daemon.path();
  EXPECT_THAT(Ravenctl("clients" + socket).output, HasSubstr("3 clients"));
  EXPECT_THAT(Ravenctl("ls --client 2 --sort size --limit 7" + socket).output,
              HasSubstr("7 tensors"));
  EXPECT_THAT(Ravenctl("ls --tier 'device 0' --limit 0 --sort name" + socket).output,
              HasSubstr("240 tensors"));
  EXPECT_THAT(Ravenctl("limits --client 2 --device-budget 3GiB --host-budget 4GiB" + socket).output,
              HasSubstr("device budget 3.0 GiB on each device, host budget 4.0 GiB"));
  EXPECT_THAT(Ravenctl("limits --user 0 --pool-budget 'file 0=1GiB'" + socket).output,
              HasSubstr("the budget of file 0 was not set"));
  EXPECT_THAT(Ravenctl("limits --user 0" + socket).output, HasSubstr("user 0: "));
  EXPECT_THAT(Ravenctl("sleep --job 2" + socket).output,
              HasSubstr("elastic job 2: gives its device memory up"));
  EXPECT_EQ(Ravenctl("sleep weights --job train.py --keep nothing" + socket).output,
            "job train.py: 3 clients sleep, 1.0 GiB of device memory went back\n");
  EXPECT_EQ(Ravenctl("wake weights --job train.py --within 5s" + socket).output,
            "job train.py: 3 clients are awake\n");
  EXPECT_THAT(Ravenctl("wake --job 2 --json" + socket).output,
              HasSubstr("\"asleep\":false,\"clients\":0,\"bytes\":0,\"elastic_jobs\":[2]"));
  const Outcome unknown = Ravenctl("sleep cache --job train.py" + socket);
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.output, HasSubstr("'train.py' with 'weights'"));
}

TEST(RavenctlTest, ASignalEndsARecordingWhoseFileIsThenThere) {
  for (const std::string signal : {"INT", "TERM"}) {
    GoodDaemon good;
    ScriptedDaemon daemon(std::ref(good));
    const std::string file = testing::TempDir() + "/ended.trace." + signal;
    const std::string said = file + ".said";
    // The first line of its standard error says that it has begun.
    const std::string script =
        "rm -f " + said + "; mkfifo " + said + "; client/ctl/ravenctl record " + file +
        " --seconds 3600 --socket " + daemon.path() + " 2>" + said + " & exec 3<" + said +
        "; read line <&3; kill -" + signal + " $!; wait $!";
    EXPECT_EQ(system(script.c_str()), 0) << signal;
    EXPECT_EQ(system(("test -s " + file).c_str()), 0) << signal;
  }
}

TEST(RavenctlTest, TheDoctorFailsWithoutADaemon) {
  const Outcome doctor = Ravenctl("doctor --json --socket /no/such/socket");
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.output, StartsWith("{\"healthy\":false"));
}

TEST(RavenctlTest, TheDoctorTakesALiveDaemon) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  EXPECT_THAT(Ravenctl("doctor --socket " + daemon.path()).output, HasSubstr("OK    daemon"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
