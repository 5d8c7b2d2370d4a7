#include "tests/cluster/etcd_process.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/check.h"
#include "tests/transport/proxy.h"

namespace ravenstore::cluster {
namespace {

constexpr size_t kLogShown = 4000;

std::string FindEtcd() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  // Where deploy/setup unpacks it is among them.
  std::istringstream folders(variable("PATH") + ":/usr/bin:/usr/local/bin:" +
                             variable("RAVENSTORE_CACHE") + "/etcd/usr/bin");
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    const std::string program = folder + "/etcd";
    if (!folder.empty() && ::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

size_t Append(char* bytes, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(bytes, size * count);
  return size * count;
}

}  // namespace

std::string WhyNoEtcd() {
  return FindEtcd().empty() ? "there is no etcd here (Debian: etcd-server)" : "";
}

EtcdProcess::EtcdProcess(Tls tls) : tls_(std::move(tls)) {
  static int count = 0;
  folder_ =
      testing::TempDir() + "/etcd-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  const std::string scheme = tls_.certificate.empty() ? "http://" : "https://";
  endpoint_ = scheme + transport::FreeAddress();
  peer_ = "http://" + transport::FreeAddress();
  Start();
}

EtcdProcess::~EtcdProcess() {
  Kill();
  std::filesystem::remove_all(folder_);
}

void EtcdProcess::Start() {
  RAVEN_CHECK(process_ == 0);
  std::vector<std::string> words = {
      FindEtcd(), "--data-dir", folder_ + "/data", "--listen-client-urls", endpoint_,
      "--advertise-client-urls", endpoint_, "--listen-peer-urls", peer_,
      "--initial-advertise-peer-urls", peer_, "--initial-cluster", "default=" + peer_,
      // Leases may be as short as this allows.
      "--heartbeat-interval", "10", "--election-timeout", "100"};
  if (!tls_.certificate.empty()) {
    words.insert(words.end(), {"--cert-file", tls_.certificate, "--key-file", tls_.key,
                               "--trusted-ca-file", tls_.authority, "--client-cert-auth"});
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = folder_ + "/log";
  const pid_t parent = ::getpid();
  process_ = ::fork();
  RAVEN_CHECK(process_ >= 0);
  if (process_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  if (::getppid() == parent) ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

void EtcdProcess::Kill() {
  if (process_ == 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = 0;
}

void EtcdProcess::LoseAll() {
  RAVEN_CHECK(process_ == 0);
  std::filesystem::remove_all(folder_ + "/data");
}

void EtcdProcess::Freeze() {
  ::kill(process_, SIGSTOP);
  // Its threads run on until the kernel has stopped each.
  int status = 0;
  RAVEN_CHECK(::waitpid(process_, &status, WUNTRACED) == process_);
  RAVEN_CHECK(WIFSTOPPED(status));
}

void EtcdProcess::Thaw() {
  ::kill(process_, SIGCONT);
}

std::string EtcdProcess::Post(const std::string& path, const std::string& body) const {
  CURL* const easy = curl_easy_init();
  std::string answer;
  curl_easy_setopt(easy, CURLOPT_URL, (endpoint_ + path).c_str());
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Append);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
  EXPECT_EQ(curl_easy_perform(easy), CURLE_OK);
  curl_easy_cleanup(easy);
  return answer;
}

void EtcdProcess::Compact() {
  const std::string answer = Post("/v3/kv/range", R"({"key":"AA=="})");
  const std::string name = R"("revision":")";
  const size_t begin = answer.find(name);
  ASSERT_NE(begin, std::string::npos) << answer;
  const std::string revision = answer.substr(
      begin + name.size(), answer.find('"', begin + name.size()) - begin - name.size());
  const std::string compacted =
      Post("/v3/kv/compaction", R"({"physical":true,"revision":")" + revision + "\"}");
  EXPECT_NE(compacted.find("\"header\""), std::string::npos) << compacted;
}

std::string EtcdProcess::Log() const {
  std::ifstream file(folder_ + "/log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.substr(text.size() - std::min(text.size(), kLogShown));
}

}  // namespace ravenstore::cluster
