// Who chooses the decode instance of a sequence, and by which rule: values to
// compare. The default is what serves, the prefill instance's local scheduler.
//
// The other two are what others do: one scheduler for all, with its own load table
// and ledger of decode instances, asked when the prompt is nearly done, or when the
// request is placed. Its round trip is not counted, which flatters it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cluster/local_scheduler.h"
#include "engine/request.h"

namespace sluice {

enum class DecodeChooser : std::uint8_t { kLocal, kCentral, kAtPlacement };

struct DecodeChoice {
  DecodeChooser by = DecodeChooser::kLocal;
  std::string policy = "least-peak";
};

// "local", "central" or "placement", then perhaps "/" and a policy's name.
// kInvalidArgument: says what there is.
[[nodiscard]] Result<DecodeChoice> parse_decode_choice(std::string_view text);

// One scheduler that chooses decode instances for every prefill instance.
class CentralDecode final {
 public:
  using Prompts = std::function<std::vector<Token>(RequestId)>;
  CentralDecode(std::unique_ptr<PlacementPolicy> policy, Prompts prompts)
      : scheduler_(kNobody, std::move(policy)), prompts_(std::move(prompts)) {}

  void on_report(LoadReport report, TimePoint now) {
    if (report.role != Role::kPrefill) scheduler_.on_report(std::move(report), now);
  }
  void instance_gone(InstanceId instance, Incarnation up_to) {
    scheduler_.instance_gone(instance, up_to);
  }
  void tick(TimePoint now) { scheduler_.tick(now); }
  // The request is placed: its decode instance is chosen too, once.
  void choose_early(const Request& request, TimePoint now);
  void forget(RequestId request) { early_.erase(request); }

  // What a local scheduler asks instead of its own rule. Outlived by this.
  [[nodiscard]] std::unique_ptr<PlacementPolicy> make_policy();

 private:
  class Asking;
  static constexpr InstanceId kNobody{~std::uint32_t{0}};

  [[nodiscard]] Decision decide(const PlacementQuery& query);

  LocalScheduler scheduler_;
  const Prompts prompts_;
  std::map<RequestId, Placement> early_;
};

}  // namespace sluice
