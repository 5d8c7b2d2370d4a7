#include "core/decide/page_shares.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core::decide {

namespace {

// The pages of a client at this level, which is the pages for a weight of 1.
uint32_t AtLevel(double level, double weight, uint32_t has, uint32_t most) {
  const double pages = level * weight;
  if (pages >= most) return std::max(has, most);
  return std::max(has, static_cast<uint32_t>(pages));
}

class Division {
 public:
  Division(std::span<const PageDemand> demands, uint32_t pages)
      : demands_(demands), most_(demands.size()), shares_(demands.size()), left_(pages) {}

  // Raises the shares to `most_of(demand)`, evenly by weight, until no page is left.
  template <typename MostOf>
  void Raise(MostOf most_of) {
    for (size_t i = 0; i < demands_.size(); ++i) most_[i] = most_of(demands_[i]);
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
    for (size_t i = 0; i < demands_.size(); ++i)
      shares_[i] = AtLevel(low, demands_[i].weight, shares_[i], most_[i]);
    for (size_t i = 0; i < demands_.size() && left_ > 0; ++i) {
      if (shares_[i] >= most_[i]) continue;
      ++shares_[i];
      --left_;
    }
  }
  std::vector<uint32_t> Take() { return std::move(shares_); }

 private:
  static constexpr int kHalvings = 64;

  // Pages beyond the shares.
  uint64_t Needed(double level) const {
    uint64_t needed = 0;
    for (size_t i = 0; i < demands_.size(); ++i)
      needed += AtLevel(level, demands_[i].weight, shares_[i], most_[i]) - shares_[i];
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
  uint32_t left_;
};

}  // namespace

std::vector<uint32_t> SharePages(std::span<const PageDemand> demands, uint32_t pages) {
  for (const PageDemand& demand : demands) RAVEN_CHECK(demand.weight > 0);
  uint64_t in_use = 0;
  for (const PageDemand& demand : demands) in_use += demand.in_use;
  const auto waits = [](const PageDemand& of) { return of.waits_for > 0; };
  auto waiting = std::find_if(demands.begin(), demands.end(), [&](const PageDemand& of) {
    return waits(of) && in_use - of.in_use + of.waits_for <= pages;
  });
  if (waiting == demands.end()) waiting = std::find_if(demands.begin(), demands.end(), waits);
  Division division(demands, pages);
  division.Raise([](const PageDemand& of) { return of.in_use; });
  division.Raise([&](const PageDemand& of) {
    return waiting != demands.end() && &of == &*waiting ? of.waits_for : 0;
  });
  division.Raise([](const PageDemand& of) { return of.expected; });
  division.Raise([](const PageDemand& of) {
    return of.has_turn ? of.alive : std::min(of.alive, of.guarantee);
  });
  division.Raise([](const PageDemand& of) { return of.alive; });
  division.Raise([](const PageDemand& of) { return of.held; });
  division.Raise([pages](const PageDemand&) { return pages; });
  return division.Take();
}

bool NeedsPlan(uint32_t planned, uint32_t share) {
  const uint32_t change = std::max(planned, share) - std::min(planned, share);
  return change > 0 && change >= planned / 2;
}

}  // namespace ravenstore::core::decide
