#include "reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace sluice {

namespace {

// Of the good ones that any policy could serve.
double of_limit(const MeanResult& m) {
  const FluidLimit& limit = m.first->limit;
  return limit.good == 0 ? 1
                         : m.mean.attainment * static_cast<double>(m.first->summary.requests) /
                               static_cast<double>(limit.good);
}

// One line a rate: they do not depend on the policy.
std::string limits_of(const std::vector<MeanResult>& means) {
  std::map<double, const RunResult*> by_rate;
  for (const MeanResult& m : means) by_rate.try_emplace(m.rate, m.first);
  std::string text;
  for (const auto& [rate, run] : by_rate) {
    const double share = static_cast<double>(run->limit.good) /
                         static_cast<double>(std::max<std::size_t>(1, run->summary.requests));
    text += fmt::format("{:<30} {:>5g} {:>8.3f} {:>6.1f}% {:>7.1f}% {:>8.0f}\n",
                        "(limit of any policy)", rate, run->limit.goodput, 100 * share, 100.0,
                        run->limit.output_tokens_per_s);
  }
  return text;
}

// A second table where prefill and decode are apart; else nothing.
std::string handoffs_of(const std::vector<MeanResult>& means) {
  const auto tried = [](const HandoffCounts& h) { return h.moved + h.stayed + h.refused + h.lost; };
  const bool any = std::any_of(means.begin(), means.end(),
                               [&](const MeanResult& m) { return tried(m.mean.handoffs) > 0; });
  if (!any) return {};
  std::string text = fmt::format("{:<30} {:>5} {:>8} {:>7} {:>7} {:>7} {:>7} {:>9} {:>11} {:>8}\n",
                                 "handoffs", "rate", "moved", "refused", "share", "lost", "stayed",
                                 "GB moved", "2nd tok p50", "p99");
  for (const MeanResult& m : means) {
    const HandoffCounts& h = m.mean.handoffs;
    const double asked =
        static_cast<double>(std::max<std::int64_t>(1, h.moved + h.refused + h.lost));
    text += fmt::format(
        "{:<30} {:>5g} {:>8} {:>7} {:>6.2f}% {:>7} {:>7} {:>9.1f} {:>9.1f}ms {:>6.1f}ms\n",
        m.policy, m.rate, h.moved, h.refused, 100 * static_cast<double>(h.refused) / asked, h.lost,
        h.stayed, static_cast<double>(h.bytes) * 1e-9, 1e3 * m.mean.second_s.p50,
        1e3 * m.mean.second_s.p99);
  }
  return text;
}

}  // namespace

std::string table_of(const std::vector<MeanResult>& means) {
  std::string text = fmt::format(
      "{:<30} {:>5} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6} "
      "{:>5}\n",
      "policy", "rate", "good/s", "good", "of limit", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99",
      "cached", "preem.", "failed", "busy", "imb.");
  for (const MeanResult& m : means) {
    const Summary& s = m.mean;
    text += fmt::format(
        "{:<30} {:>5g} {:>8.3f} {:>6.1f}% {:>7.1f}% {:>8.0f} {:>7.3f}s {:>7.3f}s {:>6.1f}ms "
        "{:>6.1f}ms {:>5.1f}% {:>6} {:>6} {:>5.1f}% {:>5.2f}\n",
        m.policy, m.rate, s.goodput, 100 * s.attainment, 100 * of_limit(m), s.output_tokens_per_s,
        s.ttft_s.p50, s.ttft_s.p99, 1e3 * s.tpot_s.p50, 1e3 * s.tpot_s.p99, 100 * s.cached_share,
        s.preemptions, s.refused + s.failed, 100 * s.utilization, s.imbalance);
  }
  return text + limits_of(means) + handoffs_of(means);
}

std::string csv_of(const std::vector<RunResult>& runs) {
  std::string text =
      "policy,memory,decode,rate,seed,requests,completed,refused,failed,good,seconds,offered_per_s,"
      "goodput_per_s,"
      "attainment,ttft_mean_s,ttft_p50_s,ttft_p90_s,ttft_p99_s,tpot_mean_s,tpot_p50_s,tpot_p90_s,"
      "tpot_p99_s,gap_p50_s,gap_p90_s,gap_p99_s,longest_gap_p50_s,longest_gap_p90_s,longest_gap_"
      "p99_s,"
      "e2e_mean_s,e2e_p50_s,e2e_p99_s,output_tokens_per_s,cached_share,preemptions,"
      "steps,utilization,imbalance,moved,refused_reservations,lost_targets,stayed,kv_bytes,"
      "second_p50_s,second_p99_s,limit_good,limit_goodput_per_s,limit_tokens_per_s,wall_s,events,"
      "hash\n";
  for (const RunResult& r : runs) {
    const Summary& s = r.summary;
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},"
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:016x}\n",
        r.key.policy, r.key.memory, r.key.decode, r.key.rate, r.key.seed, s.requests, s.completed,
        s.refused, s.failed, s.good, s.seconds, s.offered, s.goodput, s.attainment, s.ttft_s.mean,
        s.ttft_s.p50, s.ttft_s.p90, s.ttft_s.p99, s.tpot_s.mean, s.tpot_s.p50, s.tpot_s.p90,
        s.tpot_s.p99, s.gap_s.p50, s.gap_s.p90, s.gap_s.p99, s.longest_gap_s.p50,
        s.longest_gap_s.p90, s.longest_gap_s.p99, s.e2e_s.mean, s.e2e_s.p50, s.e2e_s.p99,
        s.output_tokens_per_s, s.cached_share, s.preemptions, s.steps, s.utilization, s.imbalance,
        s.handoffs.moved, s.handoffs.refused, s.handoffs.lost, s.handoffs.stayed, s.handoffs.bytes,
        s.second_s.p50, s.second_s.p99, r.limit.good, r.limit.goodput, r.limit.output_tokens_per_s,
        r.wall_s, r.events, s.hash);
  }
  return text;
}

std::string json_of(const SimulateOptions& options, const std::vector<RunResult>& runs) {
  const auto quantiles = [](const Quantiles& q) {
    return nlohmann::json{{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}};
  };
  nlohmann::json root{{"trace", options.trace},
                      {"cluster", options.cluster},
                      {"slo", options.slo},
                      {"ledger", options.ledger},
                      {"runs", nlohmann::json::array()}};
  for (const RunResult& r : runs) {
    const Summary& s = r.summary;
    root["runs"].push_back({{"policy", r.key.policy},
                            {"memory", r.key.memory},
                            {"decode", r.key.decode},
                            {"rate", r.key.rate},
                            {"seed", r.key.seed},
                            {"requests", s.requests},
                            {"completed", s.completed},
                            {"refused", s.refused},
                            {"failed", s.failed},
                            {"good", s.good},
                            {"goodput_per_s", s.goodput},
                            {"offered_per_s", s.offered},
                            {"attainment", s.attainment},
                            {"ttft_s", quantiles(s.ttft_s)},
                            {"tpot_s", quantiles(s.tpot_s)},
                            {"gap_s", quantiles(s.gap_s)},
                            {"longest_gap_s", quantiles(s.longest_gap_s)},
                            {"e2e_s", quantiles(s.e2e_s)},
                            {"output_tokens_per_s", s.output_tokens_per_s},
                            {"cached_share", s.cached_share},
                            {"preemptions", s.preemptions},
                            {"utilization", s.utilization},
                            {"imbalance", s.imbalance},
                            {"second_token_s", quantiles(s.second_s)},
                            {"handoffs",
                             {{"moved", s.handoffs.moved},
                              {"refused", s.handoffs.refused},
                              {"lost", s.handoffs.lost},
                              {"stayed", s.handoffs.stayed},
                              {"expired", s.handoffs.expired},
                              {"bytes", s.handoffs.bytes}}},
                            {"limit",
                             {{"good", r.limit.good},
                              {"goodput_per_s", r.limit.goodput},
                              {"output_tokens_per_s", r.limit.output_tokens_per_s}}},
                            {"wall_s", r.wall_s},
                            {"events", r.events},
                            {"hash", fmt::format("{:016x}", s.hash)},
                            {"violations", r.violations}});
  }
  return root.dump(1) + "\n";
}

}  // namespace sluice
