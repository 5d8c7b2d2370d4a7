// Who this node is: what its state folder keeps from one start to the next.
//
// The folder has the node's private key (node.key), the incarnations of its last starts
// (incarnations, the newest last) and a lock. Who has the key can prove to be the node of that
// name; who has it not waits until what that node held has expired. A copy of the folder is a copy
// of the identity: never start two nodes from one.
//
// Owns: the folder, by its lock, as long as this lives.
// Threads: one; Verify any.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/ids.h"
#include "core/result.h"
#include "ipc/unique_fd.h"

// OpenSSL's.
struct evp_pkey_st;

namespace ravenstore::cluster {

// Starts that never came so far as to be registered come between the one that is and this one.
inline constexpr size_t kPredecessorsMax = 16;

struct IdentityOptions {
  std::string folder;        // made with mode 0700 if it is missing; its parent is not
  std::string machine = {};  // names the machine where the file does not: tests, containers
  std::string machine_file = "/etc/machine-id";
};

class NodeIdentity {
 public:
  // Takes the folder's lock, makes what it lacks, and writes this start's incarnation down before
  // anybody else can learn it.
  // Errors: kPermission (not this user's folder or key, or open to others), kWrongState (another
  // process has the folder), kCorrupt (a file there that is none of ours), kNotFound (the machine
  // has no id), kInvalidArgument, kSystem.
  static core::Result<NodeIdentity> Open(const IdentityOptions& options);

  const Incarnation& incarnation() const { return incarnation_; }
  // Of this folder's earlier starts, the oldest first. None of them lives.
  const std::vector<Incarnation>& predecessors() const { return predecessors_; }
  // A keyed hash of the machine's id. It reveals nothing about the id.
  const MachineId& machine() const { return machine_; }
  const PublicKey& public_key() const { return public_key_; }

  // What this node proves itself by. Valid as long as this one lives, at its place.
  Identity identity() const;

  Signature Sign(std::string_view message) const;
  static bool Verify(const PublicKey& key, std::string_view message, const Signature& signature);

 private:
  struct FreeKey {
    void operator()(evp_pkey_st* key) const;
  };

  NodeIdentity() = default;
  core::Status TakeFolder(const std::string& folder);
  core::Status ReadOrMakeKey(const std::string& folder);
  core::Status BeginIncarnation(const std::string& folder);

  ipc::UniqueFd folder_;
  ipc::UniqueFd lock_;
  std::unique_ptr<evp_pkey_st, FreeKey> key_;
  PublicKey public_key_{};
  MachineId machine_;
  Incarnation incarnation_;
  std::vector<Incarnation> predecessors_;
};

}  // namespace ravenstore::cluster
