// The placement rules that other systems publish, as baselines in one world.
//
// Each is a function from the load of the eligible instances to a cost; the least
// cost wins, at random among equals. They read what ours reads: the reports and
// this scheduler's ledger, which most of them have in some form. Constants are
// the published defaults of autumn 2026.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "scheduling/simple_policy.h"

namespace sluice {
namespace {

using Pool = std::span<const LoadRow* const>;
using Costs = std::vector<double>;  // of the pool's rows, in order; all 0 at first

double kv_tokens(const LoadRow& row) {
  return static_cast<double>(row.kv_tokens + row.ledger.tokens);
}
double kv_share(const LoadRow& row) {
  return kv_tokens(row) / static_cast<double>(std::max<std::int64_t>(1, row.capacity_tokens()));
}
double prefill_backlog(const LoadRow& row) {
  return static_cast<double>(row.uncomputed_tokens + row.ledger.tokens);
}
double uncached(const PlacementQuery& query, const LoadRow& row) {
  return query.prompt_tokens - cached_tokens(query, row.instance);
}

// SGLang's router, cache_aware: the longest prefix, unless that is short or the
// numbers of requests lie too far apart.
void prefix_affinity(const PlacementQuery& query, Pool pool, Costs& costs) {
  constexpr int kAbsolute = 64;
  constexpr double kRelative = 1.5;
  constexpr double kMatch = 0.3;
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  std::int32_t most = 0;
  std::int32_t match = 0;
  for (const LoadRow* row : pool) {
    least = std::min(least, row->outstanding());
    most = std::max(most, row->outstanding());
    match = std::max(match, cached_tokens(query, row->instance));
  }
  const bool unbalanced = most - least > kAbsolute && most > kRelative * least;
  const bool matches = match > kMatch * query.prompt_tokens;
  for (std::size_t i = 0; i < pool.size(); ++i) {
    if (unbalanced) {
      costs[i] = pool[i]->outstanding();
    } else if (matches) {
      costs[i] = -cached_tokens(query, pool[i]->instance);
    } else {
      costs[i] = kv_tokens(*pool[i]);  // the most free cache
    }
  }
}

// vLLM's balancer of data-parallel engines (0.33).
void vllm_dp(const PlacementQuery&, Pool pool, Costs& costs) {
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const LoadRow& row = *pool[i];
    costs[i] = row.outstanding() + row.queue_length() * 6 * std::max(0.0, kv_share(row) - 0.5);
  }
}

// llm-d's endpoint picker with its default scorers: prefix 3, queue 2, KV use 2.
void llm_d(const PlacementQuery& query, Pool pool, Costs& costs) {
  std::int32_t shortest = std::numeric_limits<std::int32_t>::max();
  std::int32_t longest = 0;
  for (const LoadRow* row : pool) {
    shortest = std::min(shortest, row->queue_length());
    longest = std::max(longest, row->queue_length());
  }
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const LoadRow& row = *pool[i];
    const double prefix = 1.0 * cached_tokens(query, row.instance) / query.prompt_tokens;
    const double queue =
        longest == shortest ? 1.0 : 1.0 * (longest - row.queue_length()) / (longest - shortest);
    costs[i] = -(3 * prefix + 2 * queue + 2 * (1 - kv_share(row)));
  }
}

// Dynamo's KV router: blocks to prefill there, this request's included and its
// hits taken off, plus blocks held there.
void dynamo(const PlacementQuery& query, Pool pool, Costs& costs) {
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const LoadRow& row = *pool[i];
    const double prefill = prefill_backlog(row) + uncached(query, row);
    costs[i] = (prefill + kv_tokens(row) + query.prompt_tokens) / row.block_tokens;
  }
}

// LMetric: tokens to prefill times sequences in the batch.
void lmetric(const PlacementQuery& query, Pool pool, Costs& costs) {
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const LoadRow& row = *pool[i];
    costs[i] = (prefill_backlog(row) + uncached(query, row)) * (row.outstanding() + 1);
  }
}

// Mooncake's conductor: the least time in the queue and in prefill.
void mooncake(const PlacementQuery& query, Pool pool, Costs& costs) {
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const LoadRow& row = *pool[i];
    costs[i] = row.wait_s + uncached(query, row) * row.token_s;
  }
}

// Llumnix: the freest by projected KV among those below both thresholds; if
// there is none, the least to prefill.
void llumnix(const PlacementQuery& query, Pool pool, Costs& costs) {
  constexpr double kBacklog = 2048;
  constexpr double kProjected = 1.0;
  const auto projected = [&](const LoadRow& row) {
    return kv_share(row) + query.prompt_tokens / static_cast<double>(std::max<std::int64_t>(
                                                     1, row.capacity_tokens()));
  };
  const auto passes = [&](const LoadRow* row) {
    return prefill_backlog(*row) <= kBacklog && projected(*row) <= kProjected;
  };
  const bool some = std::any_of(pool.begin(), pool.end(), passes);
  for (std::size_t i = 0; i < pool.size(); ++i) {
    if (!some) {
      costs[i] = prefill_backlog(*pool[i]);
    } else {
      costs[i] = passes(pool[i]) ? projected(*pool[i]) : std::numeric_limits<double>::infinity();
    }
  }
}

// PolyServe: the most loaded that still meets the objectives, so that others stay
// empty; if none does, the least loaded.
void polyserve(const PlacementQuery& query, Pool pool, Costs& costs) {
  constexpr double kTtft = 2;
  constexpr double kTpot = 0.05;
  constexpr double kHeadroom = 0.85;  // of an objective
  const auto meets = [&](const LoadRow* row) {
    const double ttft = row->wait_s + uncached(query, *row) * row->token_s;
    const double room = 1 - kv_share(*row) -
                        query.prompt_tokens /
                            static_cast<double>(std::max<std::int64_t>(1, row->capacity_tokens()));
    return ttft <= kTtft * kHeadroom && row->step_s <= kTpot * kHeadroom && room > 0;
  };
  const bool some = std::any_of(pool.begin(), pool.end(), meets);
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const double load = kv_tokens(*pool[i]);
    if (!some) {
      costs[i] = load;
    } else {
      costs[i] = meets(pool[i]) ? -load : std::numeric_limits<double>::infinity();
    }
  }
}

struct Rule {
  const char* name;
  void (*costs)(const PlacementQuery& query, Pool pool, Costs& costs);
};
constexpr std::array<Rule, 8> kRules = {{{"prefix-affinity", prefix_affinity},
                                         {"vllm-dp", vllm_dp},
                                         {"llm-d", llm_d},
                                         {"dynamo", dynamo},
                                         {"lmetric", lmetric},
                                         {"mooncake", mooncake},
                                         {"llumnix", llumnix},
                                         {"polyserve", polyserve}}};

class RulePolicy final : public SimplePolicy {
 public:
  RulePolicy(const Rule& rule, PlacementLimits limits, Rng rng)
      : SimplePolicy(limits, rng), rule_(rule) {}
  [[nodiscard]] const char* name() const override { return rule_.name; }

 private:
  std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                    Decision& decision) override {
    pool_.clear();
    for (const LoadRow& row : rows) {
      if (eligible(query, row, 0, decision)) pool_.push_back(&row);
    }
    if (pool_.empty()) return std::nullopt;
    costs_.assign(pool_.size(), 0);
    rule_.costs(query, pool_, costs_);
    const double least = *std::min_element(costs_.begin(), costs_.end());
    std::uint64_t ties = 0;
    std::size_t best = 0;
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (costs_[i] <= least && state_.rng.below(++ties) == 0) best = i;
    }
    decision.candidates.clear();
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (i != best && decision.candidates.size() + 1 >= kMaxCandidates) continue;
      decision.candidates.push_back(candidate_of(*pool_[i], query, Rejection::kNone, costs_[i]));
    }
    return static_cast<std::size_t>(pool_[best] - rows.data());
  }

  const Rule& rule_;
  std::vector<const LoadRow*> pool_;  // reused
  Costs costs_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_published_policy(std::string_view name,
                                                       PlacementLimits limits, Rng rng) {
  const auto rule =
      std::find_if(kRules.begin(), kRules.end(), [name](const Rule& r) { return name == r.name; });
  return rule == kRules.end() ? nullptr : std::make_unique<RulePolicy>(*rule, limits, rng);
}

}  // namespace sluice
