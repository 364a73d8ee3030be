// Nodes, the links to them, and what goes wrong with either.
#include <algorithm>

#include "base/check.h"
#include "simulation/world.h"
#include "simulation/world_link.h"

namespace sluice {
namespace {

// False: its sender crashed before it left, or it goes with a later event.
template <class T>
bool has_arrived(const std::deque<Sent<T>>& outbox, TimePoint now) {
  return !outbox.empty() && outbox.front().due <= now && outbox.front().due != TimePoint{};
}

template <class T>
Sent<T> take_front(std::deque<Sent<T>>& outbox) {
  Sent<T> first = std::move(outbox.front());
  outbox.pop_front();
  return first;
}

}  // namespace

// --- Nodes -----------------------------------------------------------------------

void World::wake(std::uint32_t node, TimePoint at) {
  Link& link = links_[node];
  if (at >= link.wake_at) return;
  link.wake_at = at;
  queue_.push(at, Kind::kWake, node);
}

// Something has arrived: it looks at it when its step is over.
void World::rouse(std::uint32_t node) {
  wake(node, std::max(clock_.now(), nodes_[node]->busy_until()));
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

bool World::cut_off(std::uint32_t node) const {
  return links_[node].partitioned_until > clock_.now();
}

void World::post_command(std::uint32_t node, Wanted what, Incarnation incarnation) {
  Link& link = links_[node];
  const TimePoint due = delivery(clock_.now(), link.last_command, {});
  link.commands.push_back({due, std::move(what), incarnation});
  queue_.push(due, Kind::kCommand, node);
}

void World::post_outboxes(std::uint32_t node) {
  Node& from = *nodes_[node];
  Link& link = links_[node];
  const auto post = [&](auto& outbox, TimePoint& last, Duration extra, double loss, Kind kind) {
    auto first = outbox.end();
    while (first != outbox.begin() && std::prev(first)->due == TimePoint{}) --first;
    // What is lost on the way is not put on it.
    if (loss > 0) {
      first = outbox.erase(
          std::remove_if(first, outbox.end(), [&](const auto&) { return rng_.uniform() < loss; }),
          outbox.end());
      while (first != outbox.begin() && std::prev(first)->due == TimePoint{}) --first;
    }
    for (; first != outbox.end(); ++first) {
      first->due = delivery(first->at, last, extra);
      queue_.push(first->due, kind, node);
    }
  };
  const NetworkOptions& network = options_.network;
  const Duration late = network.report_delay;
  post(from.words, link.last_words, {}, 0, Kind::kWords);
  post(from.reports, link.last_report, late, network.report_loss, Kind::kReport);
  post(from.shared, link.last_shared, late, network.report_loss, Kind::kShared);
  post(from.mail, link.last_mail, {}, network.mail_loss, Kind::kMail);
}

void World::deliver_command(std::uint32_t node) {
  Link& link = links_[node];
  if (cut_off(node)) return queue_.push(link.partitioned_until, Kind::kCommand, node);
  Link::Command command = std::move(link.commands.front());
  link.commands.pop_front();
  if (auto* request = std::get_if<std::unique_ptr<Request>>(&command.what)) {
    nodes_[node]->submit(std::move(*request), command.incarnation);
  } else if (const auto* id = std::get_if<RequestId>(&command.what)) {
    nodes_[node]->cancel(*id);
  } else {
    nodes_[node]->peer_gone(std::get<Placement>(command.what));
  }
  rouse(node);
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

void World::deliver_words(std::uint32_t node) {
  Link& link = links_[node];
  auto& outbox = nodes_[node]->words;
  const TimePoint now = clock_.now();
  if (!has_arrived(outbox, now)) return;
  if (cut_off(node)) return queue_.push(link.partitioned_until, Kind::kWords, node);
  Sent<Word> word = take_front(outbox);
  if (fenced(node, word.incarnation)) return;
  link.heard_at = now;
  if (auto* events = std::get_if<std::vector<TokenEvent>>(&word.content)) {
    return scheduler_.on_tokens(std::move(*events), now);
  }
  const RunsAt& move = std::get<RunsAt>(word.content);
  answers_[move.request.value - 1].instance = move.placement.instance;
  scheduler_.runs_at(move.request, move.attempt, move.placement, now);
}

void World::deliver_report(std::uint32_t node) {
  Link& link = links_[node];
  auto& outbox = nodes_[node]->reports;
  const TimePoint now = clock_.now();
  if (!has_arrived(outbox, now)) return;
  Sent<LoadReport> report = take_front(outbox);
  if (cut_off(node) || fenced(node, report.incarnation)) return;
  link.heard_at = now;
  // What a former life still had under way comes too late: its requests end now.
  link.gone = std::max(link.gone, Incarnation{report.incarnation.value - 1});
  if (central_) central_->on_report(report.content, now);
  scheduler_.on_report(std::move(report.content), now);
}

// --- Among instances -------------------------------------------------------------

// To all that may hand sequences over to it. One event, as of a multicast.
void World::deliver_shared(std::uint32_t node) {
  auto& outbox = nodes_[node]->shared;
  if (!has_arrived(outbox, clock_.now())) return;
  const Sent<LoadReport> report = take_front(outbox);
  if (cut_off(node)) return;
  for (std::uint32_t to = 0; to < nodes_.size(); ++to) {
    if (to == node || !nodes_[to]->seeks_targets() || cut_off(to)) continue;
    nodes_[to]->hear(report.content);
    rouse(to);
  }
}

// Lost where one of the two is cut off: the protocol says it again.
void World::deliver_mail(std::uint32_t node) {
  auto& outbox = nodes_[node]->mail;
  if (!has_arrived(outbox, clock_.now())) return;
  Sent<HandoffMail> letter = take_front(outbox);
  const std::uint32_t to = letter.content.to.instance.value;
  if (cut_off(node) || cut_off(to)) return;
  nodes_[to]->deliver(std::move(letter.content));
  rouse(to);
}

void World::tell_peers(const Placement& gone) {
  if (!peers_) return;
  for (std::uint32_t to = 0; to < nodes_.size(); ++to) {
    if (to != gone.instance.value) post_command(to, gone, {});
  }
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
      if (peers_) peers_->fabric.cut(node.id(), until);
      return;
    case FaultKind::kDrain:
      node.drain();
      rouse(fault.instance);
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
