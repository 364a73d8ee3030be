// Nodes, the links to them, and what goes wrong with either.
#include <algorithm>

#include "base/check.h"
#include "simulation/world.h"
#include "simulation/world_link.h"

namespace sluice {

// --- Nodes -----------------------------------------------------------------------

void World::wake(std::uint32_t node, TimePoint at) {
  Link& link = links_[node];
  if (at >= link.wake_at) return;
  link.wake_at = at;
  queue_.push(at, Kind::kWake, node);
}

void World::run_node(std::uint32_t node) {
  links_[node].wake_at = TimePoint::max();
  const TimePoint again = nodes_[node]->run();
  post_outboxes(node);
  if (after_step) after_step(*nodes_[node]);
  if (again < TimePoint::max()) wake(node, std::max(again, clock_.now()));
}

// --- Links -----------------------------------------------------------------------

// Never before what was sent earlier.
TimePoint World::delivery(TimePoint sent, TimePoint& last_on_link, Duration extra) {
  const auto jitter = static_cast<std::uint64_t>(options_.network.jitter.count());
  const Duration random = jitter == 0 ? Duration{} : Duration(rng_.below(jitter));
  last_on_link = std::max(last_on_link,
                          std::max(sent, clock_.now()) + options_.network.latency + random + extra);
  return last_on_link;
}

void World::post_command(std::uint32_t node, std::unique_ptr<Request> request, RequestId id,
                         Incarnation incarnation) {
  Link& link = links_[node];
  const TimePoint due = delivery(clock_.now(), link.last_command, {});
  link.commands.push_back({due, std::move(request), id, incarnation});
  queue_.push(due, Kind::kCommand, node);
}

void World::post_outboxes(std::uint32_t node) {
  Node& from = *nodes_[node];
  Link& link = links_[node];
  const auto post = [&](auto& outbox, TimePoint& last, Duration extra, Kind kind) {
    auto first = outbox.end();
    while (first != outbox.begin() && std::prev(first)->due == TimePoint{}) --first;
    for (; first != outbox.end(); ++first) {
      first->due = delivery(first->at, last, extra);
      queue_.push(first->due, kind, node);
    }
  };
  post(from.tokens, link.last_tokens, {}, Kind::kTokens);
  // A report is lost on the way: it is not put on it.
  if (!from.reports.empty() && from.reports.back().due == TimePoint{} &&
      options_.network.report_loss > 0 && rng_.uniform() < options_.network.report_loss) {
    from.reports.pop_back();
  }
  post(from.reports, link.last_report, options_.network.report_delay, Kind::kReport);
}

void World::deliver_command(std::uint32_t node) {
  Link& link = links_[node];
  const TimePoint now = clock_.now();
  if (link.partitioned_until > now)
    return queue_.push(link.partitioned_until, Kind::kCommand, node);
  Link::Command command = std::move(link.commands.front());
  link.commands.pop_front();
  if (command.request) {
    nodes_[node]->submit(std::move(command.request), command.incarnation);
  } else {
    nodes_[node]->cancel(command.id);
  }
  wake(node, std::max(now, nodes_[node]->busy_until()));
}

// An incarnation that was given up is told so when it is heard of again, and
// begins anew.
bool World::fenced(std::uint32_t node, Incarnation incarnation) {
  if (incarnation > links_[node].gone) return false;
  if (nodes_[node]->alive() && nodes_[node]->incarnation() == incarnation &&
      links_[node].replace < incarnation) {
    links_[node].replace = incarnation;
    queue_.push(clock_.now() + options_.network.latency, Kind::kRestart, node);
  }
  return true;
}

void World::deliver_tokens(std::uint32_t node) {
  Link& link = links_[node];
  auto& outbox = nodes_[node]->tokens;
  const TimePoint now = clock_.now();
  if (outbox.empty() || outbox.front().due > now || outbox.front().due == TimePoint{}) {
    return;  // it crashed before they left
  }
  if (link.partitioned_until > now) return queue_.push(link.partitioned_until, Kind::kTokens, node);
  auto batch = std::move(outbox.front());
  outbox.pop_front();
  if (fenced(node, batch.incarnation)) return;
  link.heard_at = now;
  scheduler_.on_tokens(std::move(batch.content), now);
}

void World::deliver_report(std::uint32_t node) {
  Link& link = links_[node];
  auto& outbox = nodes_[node]->reports;
  const TimePoint now = clock_.now();
  if (outbox.empty() || outbox.front().due > now || outbox.front().due == TimePoint{}) return;
  auto report = std::move(outbox.front());
  outbox.pop_front();
  if (link.partitioned_until > now || fenced(node, report.incarnation)) return;
  link.heard_at = now;
  // What a former life still had under way comes too late: its requests end now.
  link.gone = std::max(link.gone, Incarnation{report.incarnation.value - 1});
  scheduler_.on_report(std::move(report.content), now);
}

// --- Faults ----------------------------------------------------------------------

void World::strike(const Fault& fault) {
  const TimePoint now = clock_.now();
  const TimePoint until = now + fault.length;
  Node& node = *nodes_[fault.instance];
  Link& link = links_[fault.instance];
  ++faults_done_;
  switch (fault.kind) {
    case FaultKind::kCrash:
      node.crash();
      link.replace = node.incarnation();
      queue_.push(until, Kind::kRestart, fault.instance);
      return;
    case FaultKind::kHang: return node.hang_until(until);
    case FaultKind::kPartition:
      link.partitioned_until = std::max(link.partitioned_until, until);
      return;
    case FaultKind::kDrain:
      node.drain();
      link.replace = node.incarnation();
      queue_.push(until, Kind::kRestart, fault.instance);
      return;
  }
}

// Of one that crashed, was given up, or has been drained: as a deployment does.
void World::restart(std::uint32_t node) {
  Node& n = *nodes_[node];
  if (n.alive() && n.incarnation() > links_[node].replace) return;  // done already
  if (!n.idle() && links_[node].gone < n.incarnation()) {           // it still drains
    return queue_.push(clock_.now() + std::chrono::seconds(1), Kind::kRestart, node);
  }
  n.start();
  links_[node].heard_at = clock_.now() + options_.network.report_delay;
  wake(node, clock_.now());
}

}  // namespace sluice
