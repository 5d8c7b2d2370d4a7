#include "core/decide/page_shares.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core::decide {

namespace {

class Division {
 public:
  Division(std::span<const PageDemand> demands, uint32_t pages)
      : demands_(demands),
        most_(demands.size()),
        shares_(demands.size()),
        base_(demands.size()),
        left_(pages) {}

  // Raises the shares to `most_of(demand)`, evenly by weight, until no page is left.
  template <typename MostOf>
  void Raise(MostOf most_of) {
    for (size_t i = 0; i < demands_.size(); ++i)
      most_[i] = std::min(most_of(demands_[i]), demands_[i].most);
    // The highest level that the pages suffice for; the rest goes one by one.
    double low = 0;
    double high = 1;
    while (Needed(high) <= left_ && Needed(high) < NeededForAll()) high *= 2;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (Needed(middle) <= left_ ? low : high) = middle;
    }
    if (NeededForAll() <= left_) low = high;
    left_ -= static_cast<uint32_t>(Needed(low));
    for (size_t i = 0; i < demands_.size(); ++i) shares_[i] = AtLevel(low, i);
    for (size_t i = 0; i < demands_.size() && left_ > 0; ++i) {
      if (shares_[i] >= most_[i]) continue;
      ++shares_[i];
      --left_;
    }
  }
  // Levels count beyond the guarantees from now on, and `kept` pages are no one's.
  void EndGuarantees(uint32_t kept) {
    left_ -= std::min(left_, kept);
    for (size_t i = 0; i < demands_.size(); ++i)
      base_[i] = std::min(shares_[i], demands_[i].guarantee);
  }
  std::vector<uint32_t> Take() { return std::move(shares_); }

 private:
  static constexpr int kHalvings = 64;

  // The pages of a client at this level, which is the pages for a weight of 1.
  uint32_t AtLevel(double level, size_t i) const {
    const double pages = base_[i] + level * demands_[i].weight.value_or(1);
    if (pages >= most_[i]) return std::max(shares_[i], most_[i]);
    return std::max(shares_[i], static_cast<uint32_t>(pages));
  }
  // Pages beyond the shares.
  uint64_t Needed(double level) const {
    uint64_t needed = 0;
    for (size_t i = 0; i < demands_.size(); ++i) needed += AtLevel(level, i) - shares_[i];
    return needed;
  }
  uint64_t NeededForAll() const {
    uint64_t needed = 0;
    for (size_t i = 0; i < demands_.size(); ++i)
      needed += std::max(shares_[i], most_[i]) - shares_[i];
    return needed;
  }

  std::span<const PageDemand> demands_;
  std::vector<uint32_t> most_;
  std::vector<uint32_t> shares_;
  std::vector<uint32_t> base_;
  uint32_t left_;
};

// The priorities that there are, the highest first.
std::vector<int> PrioritiesOf(std::span<const PageDemand> demands) {
  std::vector<int> priorities;
  for (const PageDemand& demand : demands) priorities.push_back(demand.priority);
  std::sort(priorities.rbegin(), priorities.rend());
  priorities.erase(std::unique(priorities.begin(), priorities.end()), priorities.end());
  return priorities;
}

}  // namespace

std::vector<uint32_t> SharePages(std::span<const PageDemand> demands, uint32_t pages,
                                 uint32_t kept) {
  bool weighted = false;
  for (const PageDemand& demand : demands) {
    RAVEN_CHECK(demand.weight.value_or(1) > 0);
    weighted |= demand.weight.has_value();
  }
  Division division(demands, pages);
  division.Raise([](const PageDemand& of) { return std::min(of.in_use, of.guarantee); });
  division.Raise([](const PageDemand& of) { return of.in_use; });
  division.Raise([](const PageDemand& of) { return std::min(of.needed(), of.guarantee); });
  division.EndGuarantees(kept);
  for (const int priority : PrioritiesOf(demands)) {
    const auto raise = [&](auto most_of) {
      division.Raise([&](const PageDemand& of) -> uint32_t {
        return of.priority == priority ? most_of(of) : 0;
      });
    };
    if (weighted) raise([](const PageDemand& of) { return of.needed(); });
    raise([](const PageDemand& of) { return of.waits_for; });
    raise([](const PageDemand& of) { return of.expected; });
    raise([](const PageDemand& of) { return of.has_turn ? of.alive : 0; });
    raise([](const PageDemand& of) { return of.alive; });
  }
  division.Raise([](const PageDemand& of) { return of.held; });
  division.Raise([pages](const PageDemand&) { return pages; });
  return division.Take();
}

bool NeedsPlan(uint32_t planned, uint32_t share) {
  const uint32_t change = std::max(planned, share) - std::min(planned, share);
  return change > 0 && change >= planned / 2;
}

}  // namespace ravenstore::core::decide
