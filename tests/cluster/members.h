// Nodes that find each other in a simulated store, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cluster/fake_key_values.h"
#include "cluster/membership.h"

namespace ravenstore::cluster {

// Keeps events as words: "+name", "~name", "-name", "!name".
class MemberEvents : public MembershipListener {
 public:
  void OnJoined(const NodeRecord& node) override {
    EXPECT_TRUE(known.emplace(node.name, node).second) << node.name << " joined twice";
    Keep("+" + node.name);
  }
  void OnChanged(const NodeRecord& before, const NodeRecord& now) override {
    EXPECT_EQ(known.at(before.name), before);
    known.at(before.name) = now;
    Keep("~" + now.name);
  }
  void OnLeft(const NodeRecord& node) override {
    EXPECT_EQ(known.erase(node.name), 1u) << node.name << " left without being there";
    Keep("-" + node.name);
  }
  void OnRefused(std::string_view name, const core::Error&) override {
    Keep("!" + std::string(name));
  }
  void OnStatus(const MembershipStatus& status) override { statuses.push_back(status); }

  std::vector<std::string> Take() { return std::exchange(all, {}); }

  std::vector<std::string> all;
  std::map<std::string, size_t> count;  // by the node's name
  std::map<std::string, NodeRecord> known;
  std::vector<MembershipStatus> statuses;

 private:
  void Keep(std::string word) {
    ++count[word.substr(1)];
    all.push_back(std::move(word));
  }
};

// What of a node survives its process.
struct Member {
  std::string id;    // of its client
  std::string name;  // which another may have, too
  std::vector<Incarnation> incarnations = {};
  std::unique_ptr<MemberEvents> events = {};
  std::unique_ptr<KeyValues> client = {};
  std::unique_ptr<Membership> membership = {};

  bool lives() const { return membership != nullptr; }
};

class Members {
 public:
  explicit Members(uint64_t seed) : store(seed), random(seed) {}
  ~Members() {
    for (const auto& member : all) Stop(member.get());
  }

  Member& Add(const std::string& id, const std::string& name) {
    all.push_back(std::make_unique<Member>(Member{.id = id, .name = name}));
    Start(all.back().get());
    return *all.back();
  }
  Member& Add(const std::string& name) { return Add(name, name); }

  // A process begins, with what its state folder knows. `forgets`: with a new one.
  void Start(Member* member, bool forgets = false) {
    if (forgets) member->incarnations.clear();
    const Incarnation incarnation{.high = random(), .low = random()};
    MembershipOptions options = base;
    options.self = {.name = member->name,
                    .address = "127.0.0.1:" + std::to_string(random() % 50000 + 1),
                    .incarnation = incarnation};
    options.predecessors = member->incarnations;
    options.seed = random();
    member->incarnations.push_back(incarnation);
    predecessors[incarnation] = options.predecessors;
    member->events = std::make_unique<MemberEvents>();
    member->client = store.Connect(member->id);
    if (wrap) member->client = wrap(std::move(member->client));
    member->membership =
        std::make_unique<Membership>(options, member->client.get(), member->events.get());
    ++starts[member->name];
  }
  void Stop(Member* member) {
    member->membership.reset();
    member->client.reset();
  }

  // Each node does what is due when it is due.
  void RunFor(core::Duration duration) {
    const core::Tick end = store.Now() + duration;
    while (true) {
      core::Tick next = std::min(store.Next(), end);
      for (const auto& member : all) {
        if (member->lives()) next = std::min(next, member->membership->NextTick());
      }
      next = std::max(next, store.Now());
      if (!store.RunNext(next)) store.RunUntil(next);
      for (const auto& member : all) {
        if (member->lives()) member->membership->Tick(store.Now());
      }
      if (store.Now() >= end && store.Next() > end && AllDone(end)) return;
    }
  }
  bool Registered(const Member& member) const { return member.membership->status().registered; }

  FakeStore store;
  std::mt19937_64 random;
  MembershipOptions base = {.self = {}};
  // A wrapper between a node and its client of the store, or none.
  std::function<std::unique_ptr<KeyValues>(std::unique_ptr<KeyValues>)> wrap = {};
  std::vector<std::unique_ptr<Member>> all;
  std::map<Incarnation, std::vector<Incarnation>> predecessors;
  std::map<std::string, size_t> starts;  // by name

 private:
  bool AllDone(core::Tick end) const {
    return std::ranges::all_of(all, [&](const auto& member) {
      return !member->lives() || member->membership->NextTick() > end;
    });
  }
};

}  // namespace ravenstore::cluster
