// Draws a world from a seed.
#include <fmt/format.h>

#include <algorithm>

#include "checks.h"

namespace sluice::dst {
namespace {

using namespace std::chrono_literals;

Duration between(Rng& rng, Duration least, Duration most) {
  return least + Duration(rng.below(static_cast<std::uint64_t>((most - least).count()) + 1));
}

std::int32_t up_to(Rng& rng, std::int32_t least, std::int32_t most) {
  return least + static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(most - least) + 1));
}

Trace random_trace(Rng& rng, std::int32_t capacity) {
  Trace trace;
  trace.block_tokens = 8;
  const bool shares = rng.below(2) == 0;
  const bool leaves = rng.below(2) == 0;
  const bool ranks = rng.below(2) == 0;
  for (std::uint64_t id = 0; id < 400; ++id) trace.blocks.push_back(id / 2);
  const auto requests = static_cast<std::size_t>(up_to(rng, 30, 160));
  Duration at{};
  for (std::size_t i = 0; i < requests; ++i) {
    TraceRequest r;
    at += between(rng, 0ms, 2 * kFaulty / static_cast<int>(requests));
    r.arrival = at;
    const std::int32_t most = rng.below(20) == 0 ? capacity + 20 : capacity / 3;
    r.prompt_tokens = up_to(rng, 1, most);
    r.max_tokens = up_to(rng, 1, std::max(1, capacity / 3));
    if (shares && rng.below(2) == 0) {
      r.first_block = static_cast<std::uint32_t>(rng.below(40) * 8);
      r.num_blocks = static_cast<std::uint32_t>(r.prompt_tokens / 8 % 8);
    }
    if (leaves && rng.below(4) == 0) r.cancel_after = between(rng, 1ms, 5s);
    if (ranks) r.priority = up_to(rng, 0, 2);
    if (i > 0 && rng.below(6) == 0) {
      r.after = static_cast<std::int32_t>(rng.below(i));
      r.arrival = between(rng, 0ms, 2s);
    }
    trace.requests.push_back(r);
  }
  put_in_order(trace);
  return trace;
}

// All unified, prefill and decode apart, or any of the three; somebody prefills.
void draw_roles(Rng& rng, std::vector<NodeOptions>& nodes) {
  const auto kind = rng.below(4);
  if (kind == 0) return;
  const auto prefill = 1 + rng.below(std::max<std::uint64_t>(1, nodes.size() / 2));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto role = kind < 3 ? (i < prefill ? 1U : 2U) : rng.below(i == 0 ? 2 : 3);
    nodes[i].role = static_cast<Role>(role);
  }
}

// Deadlines near to what the network needs, so that they are missed too.
HandoffOptions random_handoff(Rng& rng) {
  HandoffOptions handoff;
  handoff.max_tries = up_to(rng, 1, 4);
  handoff.least_left_tokens = up_to(rng, 1, 6);
  handoff.spare_tokens = up_to(rng, 0, 40);
  handoff.lease = between(rng, 500ms, 6s);
  handoff.reserve_timeout = between(rng, 50ms, 2s);
  handoff.send_timeout = between(rng, 100ms, 10s);
  handoff.patience = between(rng, 100ms, 12s);
  return handoff;
}

DecodeChoice random_choice(Rng& rng) {
  DecodeChoice choice;
  if (rng.below(3) == 0) choice.by = static_cast<DecodeChooser>(rng.below(3));
  const auto policies = policy_names();
  if (rng.below(3) == 0) choice.policy = policies[rng.below(policies.size())];
  return choice;
}

// Every state of a handoff, on both sides, with whatever can happen in it.
std::vector<Ambush> random_ambushes(Rng& rng) {
  std::vector<Ambush> ambushes(rng.below(3) == 0 ? 0 : 1 + rng.below(12));
  for (Ambush& a : ambushes) {
    a.of_target = rng.below(3) == 0;
    a.stage = static_cast<std::uint8_t>(rng.below(a.of_target ? 4 : 5));
    a.times = up_to(rng, 1, 40);
    a.at_peer = rng.below(2) == 0;
    a.leaves = rng.below(5) == 0;
    a.fault.kind = static_cast<FaultKind>(rng.below(4));
    a.fault.length = between(rng, 1ms, rng.below(2) == 0 ? Duration(500ms) : Duration(12s));
  }
  return ambushes;
}

std::vector<Fault> random_faults(Rng& rng, std::size_t nodes) {
  std::vector<Fault> faults;
  if (rng.below(5) == 0) return faults;
  const std::uint64_t kinds = 1 + rng.below(15);  // a set of the four
  for (std::int32_t n = up_to(rng, 1, 14); n > 0; --n) {
    const auto kind = rng.below(4);
    if ((kinds >> kind & 1) == 0) continue;
    faults.push_back({.at = between(rng, 0s, kFaulty),
                      .kind = static_cast<FaultKind>(kind),
                      .instance = static_cast<std::uint32_t>(rng.below(nodes)),
                      .length = between(rng, 10ms, 15s)});
  }
  return faults;
}

}  // namespace

Plan::Plan(std::uint64_t s) : seed(s) {
  Rng rng(seed);
  const auto policies = policy_names();
  world.policy = policies[rng.below(policies.size())];
  FakeModelOptions model;
  model.block_tokens = 1 << up_to(rng, 1, 4);
  const std::int32_t capacity = up_to(rng, 60, 400);  // tokens
  model.num_blocks = std::max(4, capacity / model.block_tokens);
  model.end_one_in = rng.below(2) == 0 ? 0 : 1 + rng.below(60);
  trace = random_trace(rng, model.num_blocks * model.block_tokens);
  NodeOptions node;
  node.engine.max_running = up_to(rng, 1, 12);
  node.engine.max_waiting = up_to(rng, 2, 60);
  node.engine.batch.max_step_tokens = up_to(rng, 1, 200);
  node.engine.batch.min_chunk_tokens = up_to(rng, 1, 16);
  node.engine.kv.num_blocks = model.num_blocks;
  node.engine.kv.prefix_cache = rng.below(3) != 0;
  node.engine.kv.window.block_tokens = model.block_tokens;
  node.engine.kv.window.step_token_budget = node.engine.batch.max_step_tokens;
  node.engine.kv.window.min_steps = up_to(rng, 1, 8);
  node.engine.kv.window.max_steps = up_to(rng, 8, 64);
  node.report_interval = between(rng, 1ms, 300ms);
  const std::int32_t bytes_a_token = 1 << up_to(rng, 0, 14);  // by a link of 1 MB/s
  node.kv_token_bytes = bytes_a_token;
  world.nodes.assign(static_cast<std::size_t>(up_to(rng, 1, 6)), node);
  models.assign(world.nodes.size(), model);
  draw_roles(rng, world.nodes);
  // Some have less memory, or blocks that nobody else can read.
  for (std::size_t i = 1; i < models.size() && rng.below(3) == 0; ++i) {
    if (rng.below(6) == 0) models[i].block_tokens *= 2;
    models[i].num_blocks = std::max(4, model.num_blocks / up_to(rng, 1, 3));
    world.nodes[i].engine.kv.num_blocks = models[i].num_blocks;
    world.nodes[i].engine.kv.window.block_tokens = models[i].block_tokens;
  }
  world.handoff = random_handoff(rng);
  world.decode = random_choice(rng);
  world.network.kv_bytes_per_s = 1e6;
  world.scheduler.queue_limit = up_to(rng, 0, 200);
  world.scheduler.ledger = rng.below(8) != 0;
  world.limits.max_waiting = up_to(rng, 1, 64);
  const bool near = rng.below(2) == 0;
  world.network.latency = between(rng, 10us, near ? Duration(1ms) : Duration(50ms));
  world.network.jitter = between(rng, 0us, rng.below(2) == 0 ? Duration(1ms) : Duration(200ms));
  if (rng.below(2) == 0) world.network.report_delay = between(rng, 0ms, 2s);
  if (rng.below(3) == 0) world.network.report_loss = 0.3 * rng.uniform();
  if (rng.below(2) == 0) world.network.mail_loss = 0.3 * rng.uniform();
  world.gone_after = 4s + world.network.report_delay + between(rng, 0s, 4s);
  world.limits.max_report_age += world.network.report_delay;
  world.faults = random_faults(rng, world.nodes.size());
  ambushes = random_ambushes(rng);
  world.seed = seed;
  world.time_limit = 1h;
  world.keep_tokens = true;
  if (rng.below(3) != 0) return;
  // Speculation, with so few tokens that guesses are right now and then.
  const std::int32_t vocabulary = up_to(rng, 1, 4);
  for (FakeModelOptions& each : models) each.vocabulary = vocabulary;
  for (NodeOptions& each : world.nodes) each.engine.draft_tokens = up_to(rng, 0, 8);
}

bool Plan::only(std::initializer_list<FaultKind> kinds) const {
  const auto is_one = [&](const Fault& f) {
    return std::ranges::find(kinds, f.kind) != kinds.end();
  };
  return world.network.report_loss == 0 && std::ranges::all_of(world.faults, is_one) &&
         std::ranges::all_of(ambushes,
                             [&](const Ambush& a) { return a.leaves || is_one(a.fault); });
}

bool Plan::all_is_heard() const {
  return world.network.mail_loss == 0 && only({FaultKind::kCrash, FaultKind::kDrain});
}

bool Plan::nobody_is_lost() const {
  return only({FaultKind::kDrain});
}

std::string Plan::describe() const {
  std::string roles;
  for (const NodeOptions& node : world.nodes) roles += role_name(node.role)[0];
  return fmt::format(
      "seed {}: {} ({} blocks of {} tokens), policy {}, decode by {}, {} requests, {} faults, {} "
      "ambushes, reports {:.0f} ms late, {:.0f} % of mail lost",
      seed, roles, models[0].num_blocks, models[0].block_tokens, world.policy, world.decode.policy,
      trace.requests.size(), world.faults.size(), ambushes.size(),
      1e3 * to_seconds(world.network.report_delay), 100 * world.network.mail_loss);
}

}  // namespace sluice::dst
