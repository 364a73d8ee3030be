// What one scheduler has sent that no load report has confirmed yet, so that a
// burst between two reports cannot pile onto one instance.
//
// Belongs to its scheduler's loop. A placement counts from the moment it is
// made; its entry ends when the instance's report names the request, when the
// request has ended, or after a time limit (a report that never comes must not
// make an instance look full for ever).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>

#include "base/ids.h"
#include "base/time.h"
#include "scheduling/load_table.h"

namespace sluice {

class Ledger final {
 public:
  static constexpr Duration kTimeLimit = std::chrono::seconds(10);

  // `table` outlives the ledger, which writes its rows' ledger fields.
  explicit Ledger(LoadTable& table) : table_(table) {}

  void add(RequestId request, InstanceId instance, std::int64_t tokens, std::int64_t blocks,
           TimePoint now);
  // A report has seen the request, or it has ended. Unknown ids are ignored.
  void remove(RequestId request);
  // The instance restarted or is gone: nothing sent to it counts any more.
  void forget(InstanceId instance);
  // Ends entries older than the time limit.
  void expire(TimePoint now);

  [[nodiscard]] LedgerLoad load(InstanceId instance) const;
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    InstanceId instance;
    std::int64_t tokens = 0;
    std::int64_t blocks = 0;
    TimePoint at{};
  };
  struct Added {
    RequestId request;
    TimePoint at{};
  };

  LoadTable& table_;
  std::unordered_map<RequestId, Entry> entries_;
  std::deque<Added> order_;  // by time; ids of ended entries stay until expired
  std::map<InstanceId, LedgerLoad> totals_;
};

}  // namespace sluice
