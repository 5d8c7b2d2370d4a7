// Named sets: tensors that a process has handed over, which other processes of its user open by
// name (docs/share.md).
//
// A set is a client that is sealed (daemon/sealed_clients.h). It has a name and a version, and ends
// when no process has it open. While a process uses it, its pages stay on their devices and are
// mapped there. Else they may leave, as those of other clients do.
//
// A name and its sets belong to one user. Sets without an open end, but for the newest ones of
// their names within `kept`.
//
// Owns: names, sets and opens. Threads: the control thread. Errors: sent as answers. Cost: O(opens
// of a connection) for its end, O(all opens) for a list, else O(log sets).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/clients.h"
#include "daemon/connections.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/sealed_clients.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class NamedSets {
 public:
  static constexpr size_t kNameBytesMax = 255;
  // Of one connection: sets that are open, and those that it waits for.
  static constexpr size_t kOpensMost = 4096;
  static constexpr size_t kWaitsMost = 64;

  // `kept`: bytes of sets without an open that stay. `mailbox`: the control thread's. All that is
  // pointed to outlives this.
  NamedSets(core::Bytes kept, Clients* clients, Loop* loop, Mailbox* mailbox,
            Connections* connections)
      : kept_(kept),
        clients_(*clients),
        loop_(*loop),
        mailbox_(*mailbox),
        connections_(*connections) {}

  // False when it is no message of sets: nothing was done.
  bool Handle(const Caller& caller, const proto::ClientPacket& packet);
  // The connection's process has ended, or says nothing more.
  void Forget(uint64_t key);

  // When OnTime() has something to do; kNever: when a message comes.
  core::Tick due() const;
  // Answers the waits whose deadline is over.
  void OnTime(core::Tick now);

 private:
  using Name = std::pair<uid_t, std::string>;
  // A request that is not answered yet.
  struct Question {
    uint64_t key = 0;
    uint64_t request = 0;
  };
  struct Set {
    Name name;
    uint64_t version = 0;
    core::ClientId client{};
    core::Bytes bytes;
    uint64_t layout = 0;
    std::vector<SealedClients::Tensor> tensors;
    uint32_t opens = 0;
    uint32_t uses = 0;        // opens that use it, and those in `users`
    bool is_dropped = false;  // it is not opened any more
    enum class State : uint8_t { kUnused, kFetching, kUsed } state = State::kUnused;
    std::vector<std::pair<Question, uint64_t>> users{};  // with their opens, while it comes
  };
  struct Open {
    uint64_t key = 0;
    Set* set = nullptr;
    bool is_used = false;
  };
  struct Wait {
    Question question;
    Name name;
    proto::OpenSet wanted;
    core::Tick deadline{};
  };
  struct Names {
    uint64_t last_version = 0;
    uint64_t load = 0;     // a process loads the next version; 0: none
    uint64_t load_by = 0;  // its connection
    uint32_t sets = 0;
  };

  void HandleSeal(const Caller& caller, uint64_t request, const proto::SealSet& seal);
  void Sealed(const Question& question, core::ClientId client, const Name& name,
              const proto::SealSet& seal, core::Result<std::vector<SealedClients::Tensor>> tensors);
  void HandleOpen(const Caller& caller, uint64_t request, const proto::OpenSet& wanted);
  // Returns false if the set is to be waited for.
  bool TryOpen(const Question& question, const Name& name, const proto::OpenSet& wanted);
  void HandleUse(const Caller& caller, uint64_t request, const proto::UseSet& use);
  void UseBegun(core::ClientId client, const core::Status& status);
  void HandlePages(const Caller& caller, uint64_t request, const proto::SetPages& pages);
  void HandleEndUse(const Caller& caller, uint64_t request, const proto::EndUseOfSet& end);
  void HandleDrop(const Caller& caller, uint64_t request, const proto::DropSet& drop);
  void AddPids(const Set& set, proto::SetRow* row);
  void HandleList(const Caller& caller, uint64_t request, const proto::ListSets& list);

  // Errors: kPermission, for processes whose user is not known for certain; kInvalidArgument.
  static core::Status CheckName(const Caller& caller, const std::string& name);
  // Null, after it has been refused: the caller has no such open.
  Open* Find(const Caller& caller, uint64_t request, uint64_t open);
  Set* FindSet(const Name& name, const proto::OpenSet& wanted);
  uint64_t AddOpen(uint64_t key, Set* set);
  void EndUse(uint64_t open);
  void Close(uint64_t open);
  // Ends the set, if it is not to stay.
  void EndIfUnopened(Set* set);
  void End(Set* set);
  void ForgetName(const Name& name);
  // Sets of the name have come, or its loader has ended.
  void Retry(const Name& name);
  void Answer(const Question& question, proto::DaemonPacket packet);
  void Fail(const Question& question, const core::Error& why) {
    connections_.Fail(question.key, question.request, why);
  }

  const core::Bytes kept_;
  Clients& clients_;
  Loop& loop_;
  Mailbox& mailbox_;
  Connections& connections_;
  std::map<Name, Names> names_;
  std::map<std::pair<Name, uint64_t>, Set> sets_;  // by name and version
  std::map<core::ClientId, Set*> by_client_;
  std::map<uint64_t, Open> opens_;
  std::map<uint64_t, std::vector<uint64_t>> of_connection_;  // opens by connection
  std::list<Set*> unopened_;                                 // that are kept, the oldest first
  std::list<Wait> waits_;
  uint64_t next_ = 1;  // open or load
};

}  // namespace ravenstore::daemon
