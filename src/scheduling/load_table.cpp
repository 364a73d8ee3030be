#include "scheduling/load_table.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

// Below this a prefill token costs nothing that matters; keeps backlogs ordered
// while an instance has no fitted step-time model yet.
constexpr double kLeastTokenSeconds = 1e-7;
// What a request costs beside its own time to first token: the share of each second
// of prefill that every sequence there loses, and the share of the time that its
// answer will take at that instance's pace. Chosen on simulated traces.
constexpr double kNeighbour = 0.02;
constexpr double kPace = 0.1;
// Output tokens that a request is taken to have while nothing is known.
constexpr std::int32_t kUnknownOutput = 256;

bool valid(const LoadReport& r) {
  const double costs[] = {r.step.base, r.step.per_prefill_token, r.step.per_decode_sequence,
                          r.step.per_context_token, r.step.per_prefill_context};
  const bool costs_ok =
      std::all_of(std::begin(costs), std::end(costs), [](double c) { return c >= 0 && c < 1e6; });
  return costs_ok && r.sequence > 0 && r.block_tokens > 0 && r.step_token_budget > 0 &&
         r.waiting_requests >= 0 && r.waiting_tokens >= 0 && r.uncomputed_tokens >= 0 &&
         r.running_sequences >= 0 && r.context_tokens >= 0 && r.total_blocks >= 0 &&
         r.granted_blocks >= 0 && r.free_blocks >= 0 && r.max_running >= 0 && r.step.steps >= 0 &&
         r.step.prefill_steps >= 0;
}

std::uint8_t role_bit(Role role) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(role));
}

std::uint8_t roles_served(Role role) {
  if (role != Role::kUnified) return role_bit(role);
  return static_cast<std::uint8_t>(role_bit(Role::kUnified) | role_bit(Role::kPrefill) |
                                   role_bit(Role::kDecode));
}

void set_points(LoadRow& row, const LoadReport& r) {
  row.num_points = 0;
  const auto add = [&](double after, std::int64_t blocks) {
    if (row.num_points == LoadRow::kMaxPoints) return;
    row.point_s[row.num_points] = after;
    row.point_free[row.num_points++] = blocks;
  };
  add(0, r.free_blocks);
  double last = 0;
  for (const DemandPoint& p : r.outlook) {
    const double after = to_seconds(p.at - r.measured_at);
    if (after < last) continue;  // measured earlier than the report, or not ascending
    last = after;
    add(after, p.free_blocks);
  }
}

void set_load(LoadRow& row, const LoadReport& r) {
  row.role = r.role;
  row.draining = r.draining;
  row.running = r.running_sequences;
  row.waiting = r.waiting_requests;
  row.max_running = r.max_running;
  row.kv_tokens = r.context_tokens + r.waiting_tokens;
  row.uncomputed_tokens = r.uncomputed_tokens;
  row.total_blocks = r.total_blocks;
  row.block_tokens = r.block_tokens;
  row.output_quantiles = r.output_quantiles;
  if (r.output_quantiles[1] <= 0) {
    row.output_quantiles = {kUnknownOutput, kUnknownOutput, kUnknownOutput};
  }
  row.window_end_s = std::max(0.0, to_seconds(r.window_end - r.measured_at));
  row.waiting_blocks = row.blocks_for(
      r.waiting_tokens + static_cast<std::int64_t>(r.waiting_requests) * row.output_quantiles[1]);
  set_points(row, r);
}

// The times that follow from the report, the ledger and what a step costs there.
void set_times(LoadRow& row, const LoadReport& r, const StepCost& step) {
  // Who waits, seen or not, will decode beside those that run.
  const std::int32_t rows =
      row.max_running > 0 ? std::min(row.outstanding(), row.max_running) : row.outstanding();
  row.step_s = step.base + step.per_decode_sequence * rows +
               step.per_context_token * static_cast<double>(row.kv_tokens + row.ledger.tokens);
  // Decode rows take their share of a step first; prefill has what is left.
  const std::int32_t chunk = std::max(1, r.step_token_budget - rows);
  row.token_s = std::max(kLeastTokenSeconds, step.per_prefill_token + row.step_s / chunk);
  row.wait_s =
      row.step_s + row.token_s * static_cast<double>(row.uncomputed_tokens + row.ledger.tokens);
  row.crowd = 1 + kNeighbour * row.outstanding();
  row.decode_s = kPace * row.output_quantiles[1] * row.step_s;
}

LoadBounds bounds_of(const LoadRow& row) {
  if (!row.present || row.draining) return {};
  LoadBounds bounds;
  bounds.set_cost(row.cost_of(row.wait_s, 0), row.token_s * row.crowd);
  bounds.wait_s = static_cast<float>(row.wait_s * (1 - 1e-6));
  if (row.idle()) {
    bounds.free_tokens = row.capacity_tokens();
    bounds.output = 0;
  } else if (row.has_slot()) {
    bounds.free_tokens = row.headroom(row.num_points - 1) * row.block_tokens;
    bounds.output = row.role == Role::kPrefill ? 1 : row.output_quantiles[2];
  }
  bounds.newest = row.received_at;
  bounds.waiting = row.queue_length();
  bounds.roles = roles_served(row.role);
  return bounds;
}

}  // namespace

ReportOutcome LoadTable::update(LoadReport report, TimePoint now) {
  if (!valid(report)) return ReportOutcome::kInvalid;
  const std::size_t at = row_of(report.instance);
  LoadRow& row = rows_[at];
  const LoadReport& last = reports_[at];
  const bool known = last.sequence > 0;
  const bool restarted = known && report.incarnation > row.incarnation;
  if (known && !restarted) {
    if (report.incarnation < row.incarnation || !row.present) return ReportOutcome::kOld;
    if (report.sequence <= last.sequence) return ReportOutcome::kOld;
  }
  if (restarted) row.ledger = {};
  if (row.present) peers_.remove(last.role, last.step);
  peers_.add(report.role, report.step);
  count_capacity(row, -1);
  row.incarnation = report.incarnation;
  row.received_at = now;
  row.present = true;
  set_load(row, report);
  reports_[at] = std::move(report);
  count_capacity(row, +1);
  derive(at);
  if (peers_.learned()) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].present) derive(i);
    }
  }
  return restarted ? ReportOutcome::kRestarted : ReportOutcome::kApplied;
}

void LoadTable::remove(InstanceId instance) {
  const auto it = row_of_.find(instance);
  if (it == row_of_.end()) return;
  if (const LoadReport& last = reports_[it->second]; rows_[it->second].present) {
    peers_.remove(last.role, last.step);
  }
  count_capacity(rows_[it->second], -1);
  rows_[it->second].present = false;
  rows_[it->second].ledger = {};
  derive(it->second);
}

void LoadTable::hold(InstanceId instance) {
  const auto it = row_of_.find(instance);
  if (it == row_of_.end()) return;
  rows_[it->second].draining = true;
  derive(it->second);
}

void LoadTable::set_ledger(InstanceId instance, const LedgerLoad& ledger) {
  const auto it = row_of_.find(instance);
  if (it == row_of_.end() || !rows_[it->second].present) return;
  rows_[it->second].ledger = ledger;
  derive(it->second);
}

void LoadTable::restore(const LoadRow& row) {
  const std::size_t at = row_of(row.instance);
  count_capacity(rows_[at], -1);
  rows_[at] = row;
  count_capacity(rows_[at], +1);
  index_.set(at, bounds_of(row));
}

const LoadRow* LoadTable::find(InstanceId instance) const {
  const auto it = row_of_.find(instance);
  if (it == row_of_.end() || !rows_[it->second].present) return nullptr;
  return &rows_[it->second];
}

const LoadReport* LoadTable::report(InstanceId instance) const {
  const auto it = row_of_.find(instance);
  if (it == row_of_.end() || !rows_[it->second].present) return nullptr;
  return &reports_[it->second];
}

std::optional<LoadTable::Capacity> LoadTable::largest(Role wanted) const {
  std::optional<Capacity> best;
  for (const Role role : {Role::kUnified, wanted}) {
    const auto& known = capacities_[static_cast<std::size_t>(role)];
    if (!known.empty() && (!best || *best < known.rbegin()->first)) best = known.rbegin()->first;
  }
  return best;
}

void LoadTable::count_capacity(const LoadRow& row, int by) {
  if (!row.present) return;
  auto& known = capacities_[static_cast<std::size_t>(row.role)];
  const auto it = known.try_emplace({row.capacity_tokens(), row.block_tokens}, 0).first;
  it->second += by;
  if (it->second == 0) known.erase(it);
}

std::vector<InstanceId> LoadTable::instances() const {
  std::vector<InstanceId> ids;
  for (const LoadRow& row : rows_) {
    if (row.present) ids.push_back(row.instance);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::size_t LoadTable::row_of(InstanceId instance) {
  const auto [it, added] = row_of_.try_emplace(instance, rows_.size());
  if (added) {
    rows_.emplace_back().instance = instance;
    reports_.emplace_back();
    index_.resize(rows_.size());
  }
  return it->second;
}

// The load used is own ledger + report: never below what the instance says.
void LoadTable::derive(std::size_t at) {
  LoadRow& row = rows_[at];
  set_times(row, reports_[at], peers_.judge(reports_[at].role, reports_[at].step));
  index_.set(at, bounds_of(row));
}

}  // namespace sluice
