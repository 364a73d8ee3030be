#include <algorithm>
#include <utility>

#include "net/wire.h"
#include "net/wire_reader.h"

namespace sluice {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

constexpr int kMaxTransports = 16;

std::int64_t ns(TimePoint t) {
  return t.time_since_epoch().count();
}

void encode(const HandoffKey& key, proto::HandoffKey& m) {
  m.set_request(key.request.value);
  m.set_attempt(key.attempt);
  m.set_life(key.life);
}

void encode(const ReserveAsk& ask, TimePoint now, proto::ReserveAsk& m) {
  encode(ask.request, now, *m.mutable_request());
  m.mutable_generated()->Add(ask.generated.begin(), ask.generated.end());
  m.set_room_tokens(ask.room_tokens);
  m.set_gateway(ask.request.gateway);
}

void encode(const Granted& granted, proto::Granted& m) {
  m.set_held_tokens(granted.held_tokens);
  for (const BlockId block : granted.blocks) m.add_blocks(block.value);
  m.set_room_tokens(granted.room_tokens);
  m.set_memory(granted.memory);
  m.set_stamp(ns(granted.stamp));
}

void encode(const Refused& refused, proto::Refused& m) {
  m.set_kind(static_cast<std::uint32_t>(refused.kind));
  m.set_after_ns(refused.after.count());
  m.set_error_code(static_cast<std::uint32_t>(refused.error.code));
  m.set_error_message(refused.error.message);
}

void encode(const Commit& commit, proto::Commit& m) {
  m.set_echo(ns(commit.echo));
  m.mutable_generated()->Add(commit.generated.begin(), commit.generated.end());
  m.set_kv_tokens(commit.kv_tokens);
  m.set_cached_tokens(commit.cached_tokens);
  m.set_announced(commit.announced);
}

void encode(const Decision& d, TimePoint now, const ProcessOf& process_of, proto::Decision& m) {
  m.set_request(d.request.value);
  m.set_at_ns((d.at - now).count());
  m.set_role(static_cast<std::uint32_t>(d.role));
  m.set_policy(d.policy);
  m.set_outcome(static_cast<std::uint32_t>(d.outcome));
  if (d.placement) m.set_placed(process_of(d.placement->instance));
  m.set_prompt_tokens(d.prompt_tokens);
  m.set_max_new_tokens(d.max_new_tokens);
  for (const Candidate& c : d.candidates) {
    proto::Candidate& candidate = *m.add_candidates();
    candidate.set_process(process_of(c.instance));
    candidate.set_rejection(static_cast<std::uint32_t>(c.rejection));
    candidate.set_cost(c.cost);
    candidate.set_predicted_ttft_s(c.predicted_ttft_s);
    candidate.set_report_age_ns(c.report_age.count());
  }
  m.set_expected_wait_ns(d.expected_wait.count());
  m.set_needed_blocks(d.needed_blocks);
  m.set_largest_blocks(d.largest_blocks);
}

// --- Decoding --------------------------------------------------------------------

TimePoint stamp(std::int64_t ns) {
  return TimePoint(Duration(ns));
}

template <class List>
std::vector<BlockId> blocks(Reader& in, const char* what, const List& values) {
  std::vector<BlockId> result;
  if (!in.holds(what, static_cast<std::size_t>(values.size()), in.limits().max_sequence)) return {};
  for (const std::int32_t value : values) result.emplace_back(in.count(what, value));
  return result;
}

Error error_of(Reader& in, std::uint32_t code, const std::string& message) {
  return {in.enumeration("error code", code, ErrorCode::kInternal),
          in.text("error message", message), 0};
}

Granted read(Reader& in, const HandoffKey& key, const proto::Granted& m) {
  return {.key = key,
          .held_tokens = in.count("held tokens", m.held_tokens()),
          .blocks = blocks(in, "granted block", m.blocks()),
          .room_tokens = in.count("room", m.room_tokens()),
          .memory = in.text("memory", m.memory()),
          .stamp = stamp(m.stamp())};
}

Refused read(Reader& in, const HandoffKey& key, const proto::Refused& m) {
  return {.key = key,
          .kind = in.enumeration("refusal", m.kind(), RefusalKind::kNever),
          .after = in.span("wait", m.after_ns()),
          .error = error_of(in, m.error_code(), m.error_message())};
}

Commit read(Reader& in, const HandoffKey& key, const proto::Commit& m) {
  return {.key = key,
          .echo = stamp(m.echo()),
          .generated = in.tokens("generated", m.generated()),
          .kv_tokens = in.count("KV tokens", m.kv_tokens()),
          .cached_tokens = in.count("cached tokens", m.cached_tokens()),
          .announced = m.announced()};
}

KvMessage read(Reader& in, const HandoffKey& key, proto::KvPiece& m) {
  KvPiece piece;
  piece.ticket = TransferTicket{m.ticket()};
  piece.key = key;
  piece.to = blocks(in, "block", m.to());
  piece.from = blocks(in, "block", m.from());
  piece.bytes = std::move(*m.mutable_bytes());
  piece.checksum = m.checksum();
  return piece;
}

Decision read(Reader& in, const proto::Decision& m, TimePoint now,
              const PlacementOf& placement_of) {
  Decision d;
  d.request = RequestId{m.request()};
  d.at = now + in.span("time of a decision", m.at_ns());
  d.role = in.enumeration("role", m.role(), Role::kDecode);
  d.policy = in.text("policy", m.policy());
  d.outcome = in.enumeration("outcome", m.outcome(), PlacementOutcome::kNeverFits);
  if (m.placed() != 0) d.placement = placement_of(m.placed());
  d.prompt_tokens = in.count("prompt tokens", m.prompt_tokens());
  d.max_new_tokens = in.count("tokens to generate", m.max_new_tokens());
  if (in.holds("candidates", static_cast<std::size_t>(m.candidates_size()), 64)) {
    for (const proto::Candidate& c : m.candidates()) {
      const auto known = placement_of(c.process());
      const Candidate candidate{
          .instance = known ? known->instance : InstanceId{},
          .rejection = in.enumeration("rejection", c.rejection(), Rejection::kRefused),
          .cost = c.cost(),
          .predicted_ttft_s = c.predicted_ttft_s(),
          .report_age = in.span("report age", c.report_age_ns())};
      if (known) d.candidates.push_back(candidate);
    }
  }
  d.expected_wait = in.span("expected wait", m.expected_wait_ns());
  d.needed_blocks = in.count("needed blocks", m.needed_blocks());
  d.largest_blocks = in.count("largest blocks", m.largest_blocks());
  return d;
}

}  // namespace

bool said_by_source(const PeerWord& word) {
  if (const auto* kv = std::get_if<KvMessage>(&word)) return std::holds_alternative<KvPiece>(*kv);
  const auto& m = std::get<HandoffMessage>(word);
  return std::holds_alternative<ReserveAsk>(m) || std::holds_alternative<Beat>(m) ||
         std::holds_alternative<Commit>(m) || std::holds_alternative<Released>(m) ||
         std::holds_alternative<Abort>(m);
}

std::size_t wire_size(const HandoffMessage& message) {
  if (const auto* ask = std::get_if<ReserveAsk>(&message)) {
    return 512 + 5 * (ask->request.prompt.size() + ask->generated.size()) +
           ask->request.sampling.grammar.gbnf.size();
  }
  if (const auto* granted = std::get_if<Granted>(&message)) return 64 + 5 * granted->blocks.size();
  if (const auto* commit = std::get_if<Commit>(&message)) return 64 + 5 * commit->generated.size();
  return 64;
}

void encode(const HandoffMessage& message, TimePoint now, proto::Word& m) {
  encode(key_of(message), *m.mutable_key());
  std::visit(Overloaded{
                 [&](const ReserveAsk& w) { encode(w, now, *m.mutable_ask()); },
                 [&](const Granted& w) { encode(w, *m.mutable_granted()); },
                 [&](const Refused& w) { encode(w, *m.mutable_refused()); },
                 [&](const Beat& w) { m.set_beat(ns(w.echo)); },
                 [&](const Alive& w) { m.set_alive(ns(w.stamp)); },
                 [&](const Commit& w) { encode(w, *m.mutable_commit()); },
                 [&](const Taken& w) { m.set_taken(w.finished); },
                 [&](const Released&) { m.set_released(true); },
                 [&](const Abort& w) {
                   m.mutable_abort()->set_cancel(w.cancel);
                   m.mutable_abort()->set_superseded(w.superseded);
                 },
                 [&](const Lost&) { m.set_lost(true); },
             },
             message);
}

void encode(KvMessage&& message, proto::Word& m) {
  if (auto* piece = std::get_if<KvPiece>(&message)) {
    encode(piece->key, *m.mutable_key());
    proto::KvPiece& p = *m.mutable_piece();
    p.set_ticket(piece->ticket.value);
    for (const BlockId block : piece->to) p.add_to(block.value);
    for (const BlockId block : piece->from) p.add_from(block.value);
    p.set_bytes(std::move(piece->bytes));
    p.set_checksum(piece->checksum);
    return;
  }
  const auto& receipt = std::get<KvReceipt>(message);
  proto::KvReceipt& r = *m.mutable_receipt();
  r.set_ticket(receipt.ticket.value);
  r.set_ok(receipt.ok);
  if (receipt.ok) return;
  r.set_error_code(static_cast<std::uint32_t>(receipt.error.code));
  r.set_error_message(receipt.error.message);
}

Result<PeerWord> decode(proto::Word& m, TimePoint now, const KvIdentity& kv,
                        const WireLimits& limits) {
  Reader in(limits);
  const HandoffKey key{RequestId{m.key().request()}, m.key().attempt(),
                       in.count("life", m.key().life())};
  PeerWord word = HandoffMessage(Lost{key});
  switch (m.word_case()) {
    case proto::Word::kAsk: {
      TRY(Request request, decode(m.ask().request(), now, limits));
      request.gateway = m.ask().gateway();
      word = HandoffMessage(ReserveAsk{.key = key,
                                       .request = std::move(request),
                                       .generated = in.tokens("generated", m.ask().generated()),
                                       .room_tokens = in.count("room", m.ask().room_tokens()),
                                       .kv = kv});
      break;
    }
    case proto::Word::kGranted: word = HandoffMessage(read(in, key, m.granted())); break;
    case proto::Word::kRefused: word = HandoffMessage(read(in, key, m.refused())); break;
    case proto::Word::kBeat: word = HandoffMessage(Beat{key, stamp(m.beat())}); break;
    case proto::Word::kAlive: word = HandoffMessage(Alive{key, stamp(m.alive())}); break;
    case proto::Word::kCommit: word = HandoffMessage(read(in, key, m.commit())); break;
    case proto::Word::kTaken: word = HandoffMessage(Taken{key, m.taken()}); break;
    case proto::Word::kReleased: word = HandoffMessage(Released{key}); break;
    case proto::Word::kAbort:
      word = HandoffMessage(Abort{key, m.abort().cancel(), m.abort().superseded()});
      break;
    case proto::Word::kLost: break;
    case proto::Word::kPiece: word = read(in, key, *m.mutable_piece()); break;
    case proto::Word::kReceipt:
      word = KvMessage(KvReceipt{
          TransferTicket{m.receipt().ticket()},
          error_of(in, m.receipt().error_code(), m.receipt().error_message()), m.receipt().ok()});
      break;
    case proto::Word::WORD_NOT_SET: in.refuse("a word between instances says nothing"); break;
  }
  return in.result(std::move(word));
}

void encode(const HandoffReport& report, TimePoint now, const ProcessOf& process_of,
            proto::HandoffReport& m) {
  const HandoffStats& s = report.stats;
  for (const auto& [transport, counts] : s.source.outcomes) {
    (*m.mutable_outcomes())[transport].mutable_counts()->Add(counts.begin(), counts.end());
  }
  for (const StageSeconds& stage : s.source.stages) encode(stage, *m.add_stages());
  m.set_not_before(s.source.not_before);
  m.set_never(s.source.never);
  m.set_targets_lost(s.source.targets_lost);
  m.mutable_bytes()->insert(s.transfer.bytes.begin(), s.transfer.bytes.end());
  m.set_blocks_held(s.transfer.blocks_held);
  m.set_transfers_failed(s.transfer.failed);
  m.set_leaving(s.leaving);
  m.set_reservations(s.reservations);
  m.set_taken(s.taken);
  m.set_expired(s.expired);
  for (const Decision& d : report.decisions) encode(d, now, process_of, *m.add_decisions());
}

Result<HandoffReport> decode(const proto::HandoffReport& m, TimePoint now, InstanceId from,
                             const PlacementOf& placement_of, const WireLimits& limits) {
  Reader in(limits);
  HandoffReport report;
  HandoffStats& s = report.stats;
  if (m.stages_size() != std::ssize(s.source.stages) ||
      std::max(m.outcomes_size(), m.bytes_size()) > kMaxTransports) {
    in.refuse(fmt::format("{} stages of handoffs and {} transports; {} were due, and at most {}",
                          m.stages_size(), std::max(m.outcomes_size(), m.bytes_size()),
                          s.source.stages.size(), kMaxTransports));
    return in.result(std::move(report));
  }
  for (const auto& [transport, outcomes] : m.outcomes()) {
    OutcomeCounts& counts = s.source.outcomes[in.text("transport", transport)];
    if (outcomes.counts_size() != std::ssize(counts)) {
      in.refuse(fmt::format("{} outcomes of handoffs; {} were due", outcomes.counts_size(),
                            counts.size()));
      return in.result(std::move(report));
    }
    for (int i = 0; i < outcomes.counts_size(); ++i) {
      counts[static_cast<std::size_t>(i)] = in.count("handoffs", outcomes.counts(i), kMaxCounter);
    }
  }
  for (int i = 0; i < m.stages_size(); ++i) {
    read(in, m.stages(i), s.source.stages[static_cast<std::size_t>(i)]);
  }
  s.source.not_before = in.count("refusals", m.not_before(), kMaxCounter);
  s.source.never = in.count("refusals", m.never(), kMaxCounter);
  s.source.targets_lost = in.count("lost targets", m.targets_lost(), kMaxCounter);
  for (const auto& [by, bytes] : m.bytes()) {
    s.transfer.bytes[in.text("transport", by)] = in.count("bytes", bytes, kMaxCounter);
  }
  s.transfer.blocks_held = in.count("held blocks", m.blocks_held(), kMaxCounter);
  s.transfer.failed = in.count("failed transfers", m.transfers_failed(), kMaxCounter);
  s.leaving = in.count("leaving", m.leaving());
  s.reservations = in.count("reservations", m.reservations());
  s.taken = in.count("taken", m.taken(), kMaxCounter);
  s.expired = in.count("expired", m.expired(), kMaxCounter);
  if (in.holds("decisions", static_cast<std::size_t>(m.decisions_size()), 256)) {
    for (const proto::Decision& d : m.decisions()) {
      report.decisions.push_back(read(in, d, now, placement_of));
      report.decisions.back().by = from;
    }
  }
  return in.result(std::move(report));
}

}  // namespace sluice
