// The scheduler of a prefill instance: which instance decodes what it has
// prefilled (CN119512748A).
//
// Its load table is its own, fed by the instances that can decode, not through
// the global scheduler; so is its ledger. Belongs to the instance's loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "scheduling/ledger.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"
#include "scheduling/prefix_directory.h"

namespace sluice {

class LocalScheduler final {
 public:
  // `keep_inputs`: of its decisions, so that they can be made again.
  LocalScheduler(InstanceId self, std::unique_ptr<PlacementPolicy> policy,
                 bool keep_inputs = false);

  // What the table made of it; kRestarted: earlier incarnations are gone.
  ReportOutcome on_report(LoadReport report, TimePoint now);
  // False: it was not known.
  bool instance_gone(InstanceId instance, Incarnation up_to);

  struct Wish {
    RequestId request;
    std::span<const Token> prompt;
    std::int32_t known_tokens = 0;  // prompt and output so far
    std::int32_t left_tokens = 0;   // at most still to be generated
    const std::set<InstanceId>* refused = nullptr;
  };
  // Places it in the ledger too, if there is a place.
  [[nodiscard]] Decision choose(const Wish& wish, TimePoint now);
  // It did not get there, or came to its end.
  void forget(RequestId request) { ledger_.remove(request); }
  void tick(TimePoint now) { ledger_.expire(now); }

  // Made since the last call, newest last, at most 256.
  [[nodiscard]] std::vector<Decision> take_decisions();
  [[nodiscard]] const LoadTable& loads() const { return table_; }

 private:
  const InstanceId self_;
  const std::unique_ptr<PlacementPolicy> policy_;
  const bool keep_inputs_;
  LoadTable table_;
  Ledger ledger_{table_};
  PrefixDirectory prefixes_{1U << 14U};
  std::vector<Decision> decisions_;
};

}  // namespace sluice
