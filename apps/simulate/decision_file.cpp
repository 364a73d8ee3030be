#include "decision_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr double kMost = 1e15;  // of any number: sums of 64 of them stay exact enough
// Ages are counted back from here.
constexpr TimePoint kNow{std::chrono::hours(24 * 365 * 100)};

struct Wrong {
  std::string what;
};

// A value and where it stands. What is asked of it and is not so is thrown as Wrong,
// which does not leave this file.
class Place {
 public:
  Place(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  [[noreturn]] void wrong(const std::string& wanted) const {
    throw Wrong{fmt::format("{}: {}", name_.empty() ? "the whole" : name_, wanted)};
  }
  [[nodiscard]] Place at(const char* key) const {
    if (!json_.is_object()) wrong("an object is wanted");
    const auto it = json_.find(key);
    if (it == json_.end()) wrong(fmt::format("has no \"{}\"", key));
    return {*it, name_.empty() ? key : name_ + "." + key};
  }
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] bool is_null() const { return json_.is_null(); }
  [[nodiscard]] bool is_text() const { return json_.is_string(); }

  [[nodiscard]] std::vector<Place> items(std::size_t least, std::size_t most) const {
    if (!json_.is_array() || json_.size() < least || json_.size() > most) {
      wrong(fmt::format("an array of {} to {} is wanted", least, most));
    }
    std::vector<Place> all;
    for (std::size_t i = 0; i < json_.size(); ++i) {
      all.emplace_back(json_[i], fmt::format("{}[{}]", name_, i));
    }
    return all;
  }
  [[nodiscard]] double number(double least = 0, double most = kMost) const {
    const double value = json_.is_number() ? json_.get<double>() : least - 1;
    if (!(value >= least && value <= most)) {
      wrong(fmt::format("a number of {} to {} is wanted", least, most));
    }
    return value;
  }
  template <class Int>
  [[nodiscard]] Int whole(std::int64_t least = 0,
                          std::int64_t most = std::numeric_limits<std::int32_t>::max()) const {
    const bool unsigned_fits = !json_.is_number_unsigned() ||
                               json_.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!json_.is_number_integer() || !unsigned_fits || json_.get<std::int64_t>() < least ||
        json_.get<std::int64_t>() > most) {
      wrong(fmt::format("a whole number of {} to {} is wanted", least, most));
    }
    return static_cast<Int>(json_.get<std::int64_t>());
  }
  [[nodiscard]] std::uint64_t hex() const {
    const std::string digits = text();
    std::uint64_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.empty() || error != std::errc() || stop != end) {
      wrong("a hexadecimal number of 64 bits is wanted, as text");
    }
    return value;
  }
  [[nodiscard]] bool flag() const {
    if (!json_.is_boolean()) wrong("true or false is wanted");
    return json_.get<bool>();
  }
  [[nodiscard]] std::string text() const {
    if (!json_.is_string()) wrong("text is wanted");
    return json_.get<std::string>();
  }
  [[nodiscard]] InstanceId instance() const {
    return InstanceId{whole<std::uint32_t>(0, std::numeric_limits<std::uint32_t>::max())};
  }
  [[nodiscard]] Role role() const {
    const std::string name = text();
    for (const Role role : {Role::kUnified, Role::kPrefill, Role::kDecode}) {
      if (name == role_name(role)) return role;
    }
    wrong("unified, prefill or decode is wanted");
  }

 private:
  const Json& json_;
  std::string name_;
};

constexpr auto kMostBlocks = static_cast<std::int64_t>(kMost);

void read_free_blocks(const Place& points, LoadRow& row) {
  for (const Place& point : points.items(0, LoadRow::kMaxPoints)) {
    const auto pair = point.items(2, 2);
    const double least = row.num_points == 0 ? 0 : row.point_s[row.num_points - 1];
    row.point_s[row.num_points] = pair[0].number(least);
    row.point_free[row.num_points++] = pair[1].whole<std::int64_t>(-kMostBlocks, kMostBlocks);
  }
}

LoadRow read_row(const Place& p) {
  LoadRow row;
  row.instance = p.at("instance").instance();
  row.incarnation = Incarnation{p.at("incarnation").hex()};
  row.present = p.at("present").flag();
  row.role = p.at("role").role();
  row.draining = p.at("draining").flag();
  row.received_at =
      kNow - Duration(p.at("age_ns").whole<std::int64_t>(0, kNow.time_since_epoch().count()));
  row.step_s = p.at("step_s").number();
  row.token_s = p.at("token_s").number();
  row.wait_s = p.at("wait_s").number();
  row.window_end_s = p.at("window_end_s").number();
  row.crowd = p.at("crowd").number();
  row.decode_s = p.at("decode_s").number();
  row.running = p.at("running").whole<std::int32_t>();
  row.waiting = p.at("waiting").whole<std::int32_t>();
  row.max_running = p.at("max_running").whole<std::int32_t>();
  row.kv_tokens = p.at("kv_tokens").whole<std::int64_t>(0, kMostBlocks);
  row.uncomputed_tokens = p.at("uncomputed_tokens").whole<std::int64_t>(0, kMostBlocks);
  row.waiting_blocks = p.at("waiting_blocks").whole<std::int64_t>(0, kMostBlocks);
  row.total_blocks = p.at("total_blocks").whole<std::int64_t>(0, 1LL << 40);
  row.block_tokens = p.at("block_tokens").whole<std::int32_t>(1, 1 << 20);
  const auto quantiles = p.at("output_quantiles").items(3, 3);
  for (std::size_t i = 0; i < 3; ++i) row.output_quantiles[i] = quantiles[i].whole<std::int32_t>();
  read_free_blocks(p.at("free_blocks"), row);
  const Place ledger = p.at("ledger");
  row.ledger.tokens = ledger.at("tokens").whole<std::int64_t>(0, kMostBlocks);
  row.ledger.blocks = ledger.at("blocks").whole<std::int64_t>(0, kMostBlocks);
  row.ledger.requests = ledger.at("requests").whole<std::int32_t>(0, 1 << 24);
  return row;
}

std::shared_ptr<const DecisionInputs> read_inputs(const Place& decision) {
  constexpr std::size_t kMostRows = 1 << 16;
  const Place p = decision.at("inputs");
  auto inputs = std::make_shared<DecisionInputs>();
  PlacementQuery& query = inputs->query;
  query.request = RequestId{decision.at("request").hex()};
  query.role = decision.at("role").role();
  query.prompt_tokens = decision.at("prompt_tokens").whole<std::int32_t>(1, 1 << 30);
  query.max_new_tokens = decision.at("max_new_tokens").whole<std::int32_t>(0, 1 << 30);
  query.now = kNow;
  for (const Place& prefix : p.at("cached").items(0, kMostRows)) {
    query.cached.push_back(
        {prefix.at("instance").instance(), prefix.at("tokens").whole<std::int32_t>()});
  }
  for (const Place& id : p.at("refused").items(0, kMostRows))
    query.refused.push_back(id.instance());
  Rng::State words{};
  const auto rng = p.at("rng").items(words.size(), words.size());
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = rng[i].hex();
  inputs->state.rng.resume(words);
  inputs->state.turn = p.at("turn").whole<std::uint64_t>();
  inputs->table_rows = p.at("table_rows").whole<std::size_t>();
  std::set<InstanceId> known;
  for (const Place& load : p.at("loads").items(0, kMostRows)) {
    inputs->rows.push_back(read_row(load));
    if (!known.insert(inputs->rows.back().instance).second)
      load.wrong("its instance is there twice");
  }
  return inputs;
}

DecisionFile read_all(const Place& root) {
  constexpr std::size_t kMostDecisions = 1 << 20;
  DecisionFile file;
  for (const Place& p : root.at("decisions").items(0, kMostDecisions)) {
    if (!p.has("inputs")) {
      ++file.without_inputs;
      continue;
    }
    RecordedDecision recorded;
    recorded.inputs = read_inputs(p);
    recorded.request = p.at("request").text();
    recorded.policy = p.at("policy").text();
    const Place by = p.at("by");
    recorded.by = by.is_text() ? by.text() : fmt::format("{}", by.instance().value);
    if (const Place chosen = p.at("instance"); !chosen.is_null()) {
      recorded.chosen = chosen.instance();
      if (std::ranges::find(recorded.inputs->rows, *recorded.chosen, &LoadRow::instance) ==
          recorded.inputs->rows.end()) {
        chosen.wrong("an instance of which there is no load");
      }
    }
    file.decisions.push_back(std::move(recorded));
  }
  std::reverse(file.decisions.begin(), file.decisions.end());
  return file;
}

}  // namespace

Result<DecisionFile> parse_decisions(const std::string& path, const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is not JSON", path));
  }
  try {
    return read_all({json, ""});
  } catch (const Wrong& wrong) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, wrong.what));
  }
}

}  // namespace sluice
