#include "net/wire.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/rng.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr TimePoint kSent{1h};
constexpr TimePoint kReceived{5h};  // on a clock of its own

// Random values that an honest peer may send.
struct Values {
  Rng rng;
  std::int32_t i32(std::int32_t most = 1 << 20) {
    return static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(most)));
  }
  std::int64_t i64() { return static_cast<std::int64_t>(rng.below(1ULL << 39)); }
  bool flag() { return rng.below(2) == 1; }
  double real() { return rng.uniform() * 100; }
  float small() { return static_cast<float>(rng.uniform()); }
  Duration span() {
    return Duration(static_cast<std::int64_t>(rng.below(1ULL << 40)) - (1LL << 39));
  }
  std::string text() {
    std::string s(rng.below(20), ' ');
    for (char& c : s) c = static_cast<char>('a' + rng.below(26));
    return s;
  }
  std::vector<Token> tokens(std::size_t least = 0) {
    std::vector<Token> result(least + rng.below(30));
    for (Token& t : result) t = i32();
    return result;
  }

  Request request() {
    Request r;
    r.id = RequestId{rng()};
    r.prompt = tokens(1);
    r.max_tokens = 1 + i32();
    r.priority = i32() - 1000;
    r.arrival = kSent - Duration(rng.below(1ULL << 35));
    r.output = tokens();
    r.attempt = i32(5);
    r.trace_id = text();
    r.tenant = text();
    r.length_class = text();
    r.length_hint = i32();
    r.report_progress = flag();
    SamplingParams& s = r.sampling;
    s = {small(), i32(), small(), small(), small(), small() - 1, small() - 1, small(), i32() - 5};
    for (auto n = rng.below(4); n > 0; --n) s.logit_bias.emplace_back(i32(), small());
    s.logit_bias.emplace_back(1, -std::numeric_limits<float>::infinity());
    s.seed = rng();
    s.min_tokens = i32();
    s.ignore_eos = flag();
    s.forced_length = i32();
    s.stop_tokens = tokens();
    s.allowed_tokens = tokens();
    s.banned_sequences = {tokens(1), tokens(1)};
    s.logprob_tokens = tokens();
    s.prompt_logprobs = i32(20) - 1;
    s.num_logprobs = i32(20) - 1;
    if (flag())
      s.grammar = {"root ::= " + text(), text(), flag(), {text()}, {text(), text()}, tokens()};
    return r;
  }
  TokenEvent event() {
    TokenEvent e;
    e.request = RequestId{rng()};
    e.attempt = i32(5);
    e.index = i32();
    e.is_progress = flag();
    if (e.is_progress) {
      e.computed_tokens = i32();
      return e;
    }
    e.has_token = true;
    e.token = {i32(), flag(), -small(), {{i32(), -small()}, {i32(), -small()}}};
    e.finish = static_cast<FinishReason>(rng.below(5));
    e.cached_tokens = i32();
    e.prompt_scores = {{i32(), -small(), 1 + i32(9), {{i32(), -small()}}}};
    e.queued = Duration(rng.below(1ULL << 40));
    if (e.finish == FinishReason::kError) {
      e.error = {static_cast<ErrorCode>(rng.below(10)), text(), i32()};
    }
    return e;
  }
  LoadReport report() {
    LoadReport r;
    r.sequence = 1 + rng();
    r.measured_at = kSent;
    r.role = static_cast<Role>(rng.below(3));
    r.draining = flag();
    r.waiting_requests = i32();
    r.waiting_tokens = i64();
    r.uncomputed_tokens = i64();
    r.running_sequences = i32();
    r.context_tokens = i64();
    r.block_tokens = 1 + i32(256);
    r.total_blocks = i32();
    r.granted_blocks = i64();
    r.free_blocks = i64();
    r.window_number = i64();
    r.window_end = kSent + span();
    for (auto n = rng.below(9); n > 0; --n) r.outlook.push_back({kSent + span(), i64(), i64()});
    r.step = {real(), real(), real(), real(), real(), i64(), i64()};
    r.step_token_budget = 1 + i32();
    r.max_running = i32();
    r.output_quantiles = {i32(), i32(), i32()};
    r.device = {i64(), i64(), static_cast<double>(rng.below(101)) / 100};
    for (auto n = rng.below(9); n > 0; --n) r.seen.push_back(RequestId{rng()});
    return r;
  }
  EngineStats stats() {
    EngineStats s;
    s.kv = {i32(), i32(), i32(), i64(), i32(), i32(), i64(), i64(), i64()};
    s.window.number = i64();
    s.window.begin = kSent + span();
    s.window.end = kSent + span();
    s.window.steps_left = i32();
    s.window.plan.length = span();
    s.window.plan.steps = i32();
    s.window.plan.bound = static_cast<WindowBound>(rng.below(6));
    s.window.plan.demand_blocks = i64();
    s.window.plan.peak_blocks = i64();
    s.window.plan.room_blocks = i64();
    s.window.plan.wanted_room_blocks = i64();
    s.window.plan.grants = {{SequenceId{rng()}, i32(), i32()}, {SequenceId{rng()}, i32(), i32()}};
    s.window.plan.deferred = {SequenceId{rng()}};
    s.windows = {i64(),  i64(), i64(), real(), i64(), i64(), i64(), i64(),
                 real(), i64(), i64(), i64(),  i64(), i64(), i64()};
    s.host = {i32(), i32(), i32(), i64(), real()};
    s.running = {{SequenceId{rng()}, RequestId{rng()}, i32(), i32(), i32(), i32(), i32(), i32()}};
    s.steps = i64();
    s.prompt_tokens = i64();
    s.cached_prompt_tokens = i64();
    s.computed_prefill_tokens = i64();
    s.generated_tokens = i64();
    s.preemptions = i64();
    s.speculation = {i64(), i64(), i64()};
    for (auto& count : s.finished) count = i64();
    s.forecast_error_tokens = real();
    s.step_time_error = real();
    s.busy_seconds = real();
    for (int i = 0; i < 20; ++i) s.step_tokens.observe(real());
    for (int i = 0; i < 20; ++i) s.step_seconds.observe(real());
    return s;
  }
};

// What was decoded is encoded again, on the receiver's clock: nothing is lost if the bytes agree,
// and nothing is forgotten on the way there if they hold every field (checked below).
template <class Message, class Encode, class Decode>
void expect_round_trip(const Encode& encode_at, const Decode& decode_at) {
  Message first;
  encode_at(first);
  Message parsed;
  ASSERT_TRUE(parsed.ParseFromString(first.SerializeAsString()));
  Message second;
  decode_at(parsed, second);
  EXPECT_EQ(first.DebugString(), second.DebugString());
}

TEST(Wire, EveryValueComesBackAsItWas) {
  Values values{Rng(1)};
  for (int i = 0; i < 500; ++i) {
    const Request request = values.request();
    expect_round_trip<proto::Request>(
        [&](auto& m) { encode(request, kSent, m); },
        [&](const auto& m, auto& again) {
          const auto decoded = decode(m, kReceived, {});
          ASSERT_TRUE(decoded) << decoded.error().message;
          EXPECT_EQ(decoded->prompt, request.prompt);
          EXPECT_EQ(decoded->output, request.output);
          EXPECT_EQ(kReceived - decoded->arrival, kSent - request.arrival);
          EXPECT_EQ(decoded->sampling.logit_bias, request.sampling.logit_bias);
          EXPECT_EQ(decoded->sampling.seed, request.sampling.seed);
          encode(*decoded, kReceived, again);
        });
    const TokenEvent event = values.event();
    expect_round_trip<proto::TokenEvent>([&](auto& m) { encode(event, m); },
                                         [&](const auto& m, auto& again) {
                                           const auto decoded = decode(m, WireLimits{});
                                           ASSERT_TRUE(decoded) << decoded.error().message;
                                           EXPECT_EQ(decoded->request, event.request);
                                           EXPECT_EQ(decoded->finish, event.finish);
                                           EXPECT_EQ(decoded->error.message, event.error.message);
                                           encode(*decoded, again);
                                         });
    const LoadReport report = values.report();
    expect_round_trip<proto::LoadReport>([&](auto& m) { encode(report, m); },
                                         [&](const auto& m, auto& again) {
                                           const auto decoded = decode(m, kReceived, {});
                                           ASSERT_TRUE(decoded) << decoded.error().message;
                                           EXPECT_EQ(decoded->seen, report.seen);
                                           EXPECT_EQ(decoded->window_end - kReceived,
                                                     report.window_end - kSent);
                                           encode(*decoded, again);
                                         });
    const EngineStats stats = values.stats();
    expect_round_trip<proto::EngineStats>([&](auto& m) { encode(stats, kSent, m); },
                                          [&](const auto& m, auto& again) {
                                            const auto decoded = decode(m, kReceived, {});
                                            ASSERT_TRUE(decoded) << decoded.error().message;
                                            EXPECT_EQ(decoded->finished, stats.finished);
                                            EXPECT_EQ(decoded->step_seconds.counts,
                                                      stats.step_seconds.counts);
                                            encode(*decoded, kReceived, again);
                                          });
  }
}

// Fields that no value of a hundred ever sets were forgotten in the encoder.
void expect_all_set(const google::protobuf::Message& message,
                    std::map<std::string, bool>& set_fields) {
  const auto* fields = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto* field = fields->field(i);
    bool& set = set_fields[field->full_name()];
    const bool has = field->is_repeated() ? reflection->FieldSize(message, field) > 0
                                          : reflection->HasField(message, field);
    set = set || has;
    if (!has || field->cpp_type() != field->CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      expect_all_set(reflection->GetRepeatedMessage(message, field, 0), set_fields);
    } else {
      expect_all_set(reflection->GetMessage(message, field), set_fields);
    }
  }
}

TEST(Wire, EveryFieldIsWritten) {
  Values values{Rng(2)};
  std::map<std::string, bool> set;
  for (int i = 0; i < 100; ++i) {
    proto::Request request;
    encode(values.request(), kSent, request);
    expect_all_set(request, set);
    proto::TokenEvent event;
    encode(values.event(), event);
    expect_all_set(event, set);
    proto::LoadReport report;
    encode(values.report(), report);
    expect_all_set(report, set);
    proto::EngineStats stats;
    encode(values.stats(), kSent, stats);
    expect_all_set(stats, set);
  }
  for (const auto& [name, was] : set) EXPECT_TRUE(was) << name;
  EXPECT_GT(set.size(), 100U);
}

// A field that is added to one of these values is to be added to cluster.proto, to both
// wire_*.cpp and to Values above; then here.
TEST(Wire, NoValueHasGrown) {
  EXPECT_EQ(sizeof(SamplingParams), 344U);
  EXPECT_EQ(sizeof(Request), 544U);
  EXPECT_EQ(sizeof(TokenEvent), 160U);
  EXPECT_EQ(sizeof(LoadReport), 272U);
  EXPECT_EQ(sizeof(EngineStats), 944U);
}

template <class Message, class Decode>
void expect_refused(const Message& good, const std::function<void(Message&)>& spoil,
                    const Decode& decode_it, const char* words) {
  Message bad = good;
  spoil(bad);
  const auto result = decode_it(bad);
  ASSERT_FALSE(result) << words;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr(words));
}

TEST(Wire, RefusesRequestsThatNoHonestPeerSends) {
  proto::Request good;
  encode(Values{Rng(3)}.request(), kSent, good);
  const WireLimits limits{.vocabulary = 1 << 20, .max_sequence = 1 << 21, .max_text = 5000};
  const auto read = [&](const proto::Request& m) { return decode(m, kReceived, limits); };
  ASSERT_TRUE(read(good));
  using M = proto::Request;
  const std::vector<std::pair<const char*, std::function<void(M&)>>> cases = {
      {"prompt is -1", [](M& m) { m.add_prompt(-1); }},
      {"prompt is 1048576; it must be from 0 to 1048575", [](M& m) { m.add_prompt(1 << 20); }},
      {"(limit 2097152)", [](M& m) { m.mutable_prompt()->Resize((1 << 21) + 1, 0); }},
      {"output is -7", [](M& m) { m.add_output(-7); }},
      {"max_tokens is 0", [](M& m) { m.set_max_tokens(0); }},
      {"max_tokens is -2147483648", [](M& m) { m.set_max_tokens(INT32_MIN); }},
      {"attempt is -1", [](M& m) { m.set_attempt(-1); }},
      {"arrival", [](M& m) { m.set_arrival_ns(INT64_MIN); }},
      {"arrival", [](M& m) { m.set_arrival_ns(INT64_MAX); }},
      {"(limit 5000)", [](M& m) { m.set_trace_id(std::string(5001, 'x')); }},
      {"grammar",
       [](M& m) { m.mutable_sampling()->mutable_grammar()->set_gbnf(std::string(5001, 'x')); }},
      {"biases", [](M& m) { m.mutable_sampling()->add_bias_tokens(1); }},
      {"biased token",
       [](M& m) {
         m.mutable_sampling()->add_bias_tokens(-1);
         m.mutable_sampling()->add_biases(0);
       }},
      {"trigger words has 65537", [](M& m) {
         auto& words = *m.mutable_sampling()->mutable_grammar()->mutable_trigger_words();
         words.Clear();
         for (int i = 0; i < 65537; ++i) words.Add("");
       }}};
  for (const auto& [words, spoil] : cases) expect_refused<M>(good, spoil, read, words);
}

TEST(Wire, RefusesEventsAndReportsThatNoHonestPeerSends) {
  const WireLimits limits;
  {
    using M = proto::TokenEvent;
    proto::TokenEvent good;
    encode(Values{Rng(4)}.event(), good);
    const auto read = [&](const M& m) { return decode(m, limits); };
    ASSERT_TRUE(read(good));
    const std::vector<std::pair<const char*, std::function<void(M&)>>> cases = {
        {"finish reason is 5", [](M& m) { m.set_finish(5); }},
        {"error code is 4294967295", [](M& m) { m.set_error_code(UINT32_MAX); }},
        {"index is -1", [](M& m) { m.set_index(-1); }},
        {"token is -1", [](M& m) { m.set_token(-1); }},
        {"top token", [](M& m) { m.add_top()->set_token(1 << 30); }},
        {"computed tokens is -1", [](M& m) { m.set_computed_tokens(-1); }},
        {"says two things",
         [](M& m) {
           m.set_is_progress(true);
           m.set_has_token(true);
         }},
        {"says nothing", [](M& m) {
           m.set_is_progress(false);
           m.set_has_token(false);
           m.set_finish(0);
         }}};
    for (const auto& [words, spoil] : cases) expect_refused<M>(good, spoil, read, words);
  }
  using M = proto::LoadReport;
  proto::LoadReport good;
  encode(Values{Rng(5)}.report(), good);
  const auto read = [&](const M& m) { return decode(m, kReceived, limits); };
  ASSERT_TRUE(read(good));
  const std::vector<std::pair<const char*, std::function<void(M&)>>> cases = {
      {"role is 3", [](M& m) { m.set_role(3); }},
      {"waiting requests is -1", [](M& m) { m.set_waiting_requests(-1); }},
      {"context tokens", [](M& m) { m.set_context_tokens(INT64_MAX); }},
      {"block tokens is 0", [](M& m) { m.set_block_tokens(0); }},
      {"total blocks is -5", [](M& m) { m.set_total_blocks(-5); }},
      {"window end", [](M& m) { m.set_window_end_ns(INT64_MIN); }},
      {"step cost is nan", [](M& m) { m.set_step_base(std::nan("")); }},
      {"step cost is -1", [](M& m) { m.set_step_per_context_token(-1); }},
      {"step cost is -2", [](M& m) { m.set_step_per_prefill_context(-2); }},
      {"steps observed is -1", [](M& m) { m.set_steps_observed(-1); }},
      {"step cost is inf", [](M& m) { m.set_step_base(HUGE_VAL); }},
      {"4 output quantiles; 3 were due", [](M& m) { m.add_output_quantiles(1); }},
      {"outlook has 65 entries (limit 64)",
       [](M& m) {
         m.clear_outlook();
         for (int i = 0; i < 65; ++i) m.add_outlook();
       }},
      {"seen has 65537 entries", [](M& m) { m.mutable_seen()->Resize(65537, 1); }}};
  for (const auto& [words, spoil] : cases) expect_refused<M>(good, spoil, read, words);
}

// --- Between instances -------------------------------------------------------------

constexpr KvIdentity kKv{.model = 5, .layout = {.num_layers = 3}};

std::vector<HandoffMessage> all_words(Values& values) {
  const HandoffKey key{RequestId{values.rng()}, 1 + static_cast<std::uint32_t>(values.i32(9)),
                       1 + values.i32(5)};
  const TimePoint stamp{values.span()};
  Request request = values.request();
  request.gateway = values.rng() | 1;
  return {ReserveAsk{key, request, values.tokens(1), 1 + values.i32(), kKv},
          Granted{key, 1 + values.i32(), {BlockId{1 + values.i32()}}, 1 + values.i32(), "x", stamp},
          Refused{key, RefusalKind::kNever, 1s, {ErrorCode::kBusy, "full", 0}},
          Beat{key, stamp},
          Alive{key, stamp},
          Commit{key, stamp, values.tokens(1), 1 + values.i32(), 1 + values.i32(), true},
          Taken{key, values.flag()},
          Released{key},
          Abort{key, true, true},
          Lost{key}};
}

std::vector<KvMessage> all_pieces(Values& values) {
  const HandoffKey key{RequestId{values.rng()}, 2, 3};
  const TransferTicket ticket{1 + values.rng.below(1000)};
  return {KvPiece{ticket, key, {BlockId{1}, BlockId{9}}, {BlockId{3}, BlockId{4}}, "", 0},
          KvPiece{ticket, key, {BlockId{1}, BlockId{9}}, {}, std::string(50, 'k'), values.rng()},
          KvReceipt{ticket, {}, true},
          KvReceipt{ticket, {ErrorCode::kNotFound, "nothing is reserved", 0}, false}};
}

TEST(HandoffWire, EveryWordComesBackAsItWas) {
  Values values{Rng(11)};
  std::map<std::string, bool> set;
  for (int i = 0; i < 100; ++i) {
    for (const HandoffMessage& said : all_words(values)) {
      expect_round_trip<proto::Word>([&](auto& m) { encode(said, kSent, m); },
                                     [&](auto& m, auto& again) {
                                       expect_all_set(m, set);
                                       auto heard = decode(m, kReceived, kKv, {});
                                       ASSERT_TRUE(heard) << heard.error().message;
                                       const auto& word = std::get<HandoffMessage>(*heard);
                                       EXPECT_EQ(word.index(), said.index());
                                       EXPECT_EQ(key_of(word), key_of(said));
                                       if (const auto* ask = std::get_if<ReserveAsk>(&word)) {
                                         EXPECT_EQ(ask->kv, kKv);
                                       }
                                       encode(word, kReceived, again);
                                     });
    }
    for (const KvMessage& said : all_pieces(values)) {
      expect_round_trip<proto::Word>([&](auto& m) { encode(KvMessage(said), m); },
                                     [&](auto& m, auto& again) {
                                       expect_all_set(m, set);
                                       auto heard = decode(m, kReceived, kKv, {});
                                       ASSERT_TRUE(heard) << heard.error().message;
                                       encode(std::get<KvMessage>(std::move(*heard)), again);
                                     });
    }
  }
  for (const auto& [name, was] : set) EXPECT_TRUE(was) << name;
  EXPECT_EQ(sizeof(ReserveAsk), 624U);  // a field more is to be added to the wire
  EXPECT_EQ(sizeof(Granted), 96U);
  EXPECT_EQ(sizeof(Commit), 64U);
}

HandoffReport some_report(Values& values) {
  HandoffReport report;
  HandoffStats& s = report.stats;
  s.source.outcomes = {{"shm", {values.i64(), values.i64(), values.i64(), 1}},
                       {kNoTransport, {0, values.i64(), 2, 0}}};
  for (StageSeconds& stage : s.source.stages) stage.observe(values.real());
  s.source.not_before = 1 + values.i64();
  s.source.never = 1 + values.i64();
  s.source.targets_lost = 1 + values.i64();
  s.transfer = {{{"shm", values.i64()}, {"grpc", values.i64()}}, 0, 1 + values.i64(), 3};
  s.leaving = 1 + values.i32();
  s.reservations = 1 + values.i32();
  s.taken = 1 + values.i64();
  s.expired = 1 + values.i64();
  Decision d;
  d.request = RequestId{values.rng()};
  d.at = kSent - 1s;
  d.role = Role::kDecode;
  d.policy = "least-peak";
  d.outcome = PlacementOutcome::kPlacedRelaxed;
  d.placement = Placement{InstanceId{4}, Incarnation{9}};
  d.prompt_tokens = 1 + values.i32();
  d.max_new_tokens = 1 + values.i32();
  d.candidates = {{InstanceId{4}, Rejection::kMemory, 0.5, 0.25, 3ms}};
  d.expected_wait = 5ms;
  d.needed_blocks = 6;
  d.largest_blocks = 7;
  report.decisions = {d};
  return report;
}

TEST(HandoffWire, ReportsNameInstancesByTheirProcesses) {
  Values values{Rng(12)};
  std::map<std::string, bool> set;
  const ProcessOf process_of = [](InstanceId id) { return std::uint64_t{1000} + id.value; };
  const PlacementOf placement_of = [](std::uint64_t process) -> std::optional<Placement> {
    if (process < 1000) return std::nullopt;
    return Placement{InstanceId{static_cast<std::uint32_t>(process - 1000)}, Incarnation{3}};
  };
  for (int i = 0; i < 50; ++i) {
    const HandoffReport report = some_report(values);
    proto::HandoffReport first;
    encode(report, kSent, process_of, first);
    expect_all_set(first, set);
    const auto read = decode(first, kReceived, InstanceId{8}, placement_of, {});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->decisions.at(0).by, InstanceId{8});
    EXPECT_EQ(read->decisions[0].placement, (Placement{InstanceId{4}, Incarnation{3}}));
    EXPECT_EQ(read->stats.transfer.bytes, report.stats.transfer.bytes);
    EXPECT_EQ(read->stats.source.outcomes, report.stats.source.outcomes);
    proto::HandoffReport second;
    encode(*read, kReceived, process_of, second);
    EXPECT_EQ(first.stages_size(), 5);
    EXPECT_EQ(first.ByteSizeLong(), second.ByteSizeLong());
    // Who is not known here any more is left out.
    first.mutable_decisions(0)->mutable_candidates(0)->set_process(3);
    EXPECT_TRUE(
        decode(first, kReceived, InstanceId{8}, placement_of, {})->decisions[0].candidates.empty());
    auto& counts = *(*first.mutable_outcomes())["shm"].mutable_counts();
    counts.Add(1);
    EXPECT_FALSE(decode(first, kReceived, InstanceId{8}, placement_of, {}));
    counts.RemoveLast();
    EXPECT_TRUE(decode(first, kReceived, InstanceId{8}, placement_of, {}));
    for (int way = 0; way < 15; ++way) {
      (*first.mutable_outcomes())[fmt::format("way {}", way)] = first.outcomes().at("shm");
    }
    EXPECT_FALSE(decode(first, kReceived, InstanceId{8}, placement_of, {})) << "17 transports";
  }
  for (const auto& [name, was] : set) EXPECT_TRUE(was) << name;
}

TEST(HandoffWire, RefusesWhatNoHonestPeerSays) {
  using M = proto::Word;
  Values values{Rng(13)};
  const WireLimits limits{.vocabulary = 1 << 20, .max_sequence = 1 << 21, .max_text = 5000};
  const auto read = [&](M m) { return decode(m, kReceived, kKv, limits); };
  const auto words = all_words(values);
  const auto word = [&](std::size_t i) {
    M m;
    encode(words[i], kSent, m);
    return m;
  };
  EXPECT_FALSE(read(M{}));
  expect_refused<M>(
      word(0), [](M& m) { m.mutable_ask()->set_room_tokens(-1); }, read, "room");
  expect_refused<M>(
      word(0), [](M& m) { m.mutable_ask()->add_generated(-1); }, read, "generated");
  expect_refused<M>(
      word(0), [](M& m) { m.mutable_ask()->mutable_request()->set_max_tokens(0); }, read,
      "max_tokens");
  expect_refused<M>(
      word(1), [](M& m) { m.mutable_granted()->add_blocks(-4); }, read, "block");
  expect_refused<M>(
      word(1), [](M& m) { m.mutable_granted()->mutable_blocks()->Resize((1 << 21) + 1, 0); }, read,
      "limit 2097152");
  expect_refused<M>(
      word(2), [](M& m) { m.mutable_refused()->set_kind(2); }, read, "refusal is 2");
  expect_refused<M>(
      word(2), [](M& m) { m.mutable_refused()->set_after_ns(INT64_MAX); }, read, "wait");
  expect_refused<M>(
      word(3), [](M& m) { m.mutable_key()->set_life(-1); }, read, "life is -1");
  expect_refused<M>(
      word(5), [](M& m) { m.mutable_commit()->set_kv_tokens(-1); }, read, "KV tokens");
}

// Whatever bytes come: an error or a value, and nothing else happens.
TEST(Wire, BytesThatAreNoMessageDoNoHarm) {
  Values values{Rng(6)};
  proto::FromInstance message;
  encode(values.event(), *message.add_events());
  encode(values.report(), *message.mutable_report());
  encode(values.stats(), kSent, *message.mutable_stats());
  const std::string bytes = message.SerializeAsString();
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = bytes;
    for (auto n = 1 + values.rng.below(4); n > 0; --n) {
      damaged[values.rng.below(damaged.size())] = static_cast<char>(values.rng());
    }
    proto::FromInstance parsed;
    if (!parsed.ParseFromString(damaged)) continue;
    ++read;
    for (const auto& event : parsed.events()) (void)decode(event, WireLimits{});
    (void)decode(parsed.report(), kReceived, {});
    (void)decode(parsed.stats(), kReceived, {});
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace sluice
