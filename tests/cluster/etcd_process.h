// An etcd of its own for a test, on the loopback, with its data in a folder of the test's.
#pragma once

#include <sys/types.h>
#include <memory>
#include <string>
#include <vector>

namespace ravenstore::cluster {

// Why no etcd can be started here; empty where one can.
std::string WhyNoEtcd();

class EtcdProcess {
 public:
  // Files in PEM: the server's, and the authority that clients' certificates are to be of.
  struct Tls {
    std::string certificate;
    std::string key;
    std::string authority;
  };

  explicit EtcdProcess(Tls tls = {});
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  // With what it had before, at the same endpoint. Whether it answers is another question.
  void Start();
  void Kill();
  // What it had. REQUIRES: it was killed.
  void LoseAll();
  void Freeze();
  void Thaw();
  // Forgets the changes before now. REQUIRES: it answers, and without TLS.
  void Compact();

  const std::string& endpoint() const { return endpoint_; }
  // The end of its log, for a test that failed.
  std::string Log() const;

 private:
  std::string Post(const std::string& path, const std::string& body) const;

  Tls tls_;
  std::string folder_;
  std::string endpoint_;
  std::string peer_;
  pid_t process_ = 0;
};

}  // namespace ravenstore::cluster
