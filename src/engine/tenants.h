// How much each tenant has been served: the order in which tenants of equal
// priority are admitted ("Fairness in Serving Large Language Models", OSDI 2024:
// a virtual token counter).
//
// A computed prompt token counts 1, a generated one 2. The tenant with the least
// count goes first. One that comes back after a pause starts at the least count
// of those present, so that it cannot save up credit. Belongs to the engine's
// loop; at most kMost tenants are remembered, beyond that the newcomers share the
// count of requests without a tenant.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice {

class Tenants final {
 public:
  static constexpr std::size_t kMost = 1024;
  static constexpr double kPromptToken = 1;
  static constexpr double kGeneratedToken = 2;

  Tenants() { slots_.push_back({}); }

  // A request of this tenant is here, until leave(). Empty: none was named.
  [[nodiscard]] std::size_t enter(const std::string& name);
  void leave(std::size_t tenant);
  void charge(std::size_t tenant, double count) { slots_[tenant].served += count; }

  [[nodiscard]] double served(std::size_t tenant) const { return slots_[tenant].served; }
  // Tenants with a request here; if at most one, their order says nothing.
  [[nodiscard]] std::int32_t present() const { return present_; }
  [[nodiscard]] std::size_t remembered() const { return slots_.size(); }

 private:
  struct Slot {
    std::string name;
    double served = 0;
    std::int32_t requests = 0;  // here now
  };
  [[nodiscard]] std::size_t slot_of(const std::string& name);
  [[nodiscard]] double least_present() const;

  std::vector<Slot> slots_;  // the first is of requests without a tenant
  std::map<std::string, std::size_t> by_name_;
  std::int32_t present_ = 0;
  double floor_ = 0;  // least count of those present, when last looked
};

}  // namespace sluice
