#include "simulation/fluid_limit.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>

namespace sluice {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What one token costs at least, on any of the devices.
struct LeastCosts {
  double token_s = kNever;  // all but attention and the output layer
  double head_s = kNever;
  double step_s = kNever;           // of a step with one decode row, but for attention
  double prefill_token_s = kNever;  // attention: a token,
  double pair_s = kNever;           // and a (query, key) pair, prefilled in whatever chunks
  double decode_row_s = kNever;
  double decode_context_s = kNever;
};

// Of a table that is linear between its points, divided by its argument: the least value
// is at a point or at an end.
template <class F>
double least_share(const std::vector<double>& points, std::int32_t most, const F& cost) {
  const double end = std::max(1, most);
  double least = std::min(cost(1), cost(end) / end);
  for (const double b : points) {
    if (b > 1 && b < end) least = std::min(least, cost(b) / b);
  }
  return least;
}

void take_least(LeastCosts& least, const DeviceProfile& d, const EngineOptions& engine) {
  // Linear between whole numbers too, so points that are none lie between two that were tried.
  const auto step = [&](double rows) {
    StepWork work;
    work.decode_rows = static_cast<std::int32_t>(rows);
    return d.seconds(work) - d.decode_row_s * work.decode_rows;
  };
  const auto head = [&](double rows) {
    StepWork work;
    work.sampled = static_cast<std::int32_t>(rows);
    return d.seconds(work) - d.step_s;
  };
  const auto lower = [](double& value, double other) { value = std::min(value, other); };
  lower(least.token_s, least_share(d.tokens, engine.batch.max_step_tokens, step));
  lower(least.head_s, least_share(d.tokens, engine.max_running, head));
  // Measured tables do not always grow.
  double least_step = step(1);
  double least_head = head(1);
  for (const double rows : d.tokens) {
    least_step = std::min(least_step, step(rows));
    if (rows >= 1) least_head = std::min(least_head, head(rows));
  }
  lower(least.step_s, least_step + least_head);
  // A chunk of one token is a decode row.
  lower(least.prefill_token_s, std::min(d.prefill_token_s, d.decode_row_s));
  lower(least.pair_s, std::min(d.prefill_pair_s, d.decode_context_s));
  lower(least.decode_row_s, d.decode_row_s);
  lower(least.decode_context_s, d.decode_context_s);
}

// A request, as far as the limit knows it.
struct Job {
  double begin = 0;
  double prefill = 0;  // device seconds
  double work = 0;     // and with its decode rows
  double alone = 0;    // seconds that it takes at least
  double tokens = 0;
};

Job job_of(const TraceRequest& r, std::int32_t cached, const LeastCosts& c) {
  Job job;
  const double prompt = r.prompt_tokens;
  const double fresh = std::max(1, r.prompt_tokens - cached);
  const double output =
      std::max(1, r.max_tokens > 0 ? std::min(r.max_tokens, r.output_tokens) : r.output_tokens);
  const double rows = output - 1;
  job.tokens = output;
  if (r.cancel_after > Duration::zero()) return job;  // its client may leave before anything
  const double pairs = fresh * (prompt - fresh) + 0.5 * fresh * (fresh + 1);
  job.prefill = fresh * (c.token_s + c.prefill_token_s) + pairs * c.pair_s + c.head_s;
  const double attention =
      rows * c.decode_row_s + (rows * prompt + 0.5 * rows * (rows + 1)) * c.decode_context_s;
  job.work = job.prefill + rows * (c.token_s + c.head_s) + attention;
  job.alone = job.prefill + rows * c.step_s + attention;
  return job;
}

std::vector<Job> jobs_of(const Trace& trace, const LeastCosts& costs, bool caches) {
  std::vector<Job> jobs;
  jobs.reserve(trace.requests.size());
  std::set<std::uint64_t> seen;
  // Nobody knows when a follower comes: what it has may be there before all others.
  for (const TraceRequest& r : trace.requests) {
    for (std::uint32_t b = 0; r.after >= 0 && b < r.num_blocks; ++b) {
      seen.insert(trace.blocks[r.first_block + b]);
    }
  }
  for (const TraceRequest& r : trace.requests) {
    std::int32_t cached = 0;
    bool shared = caches;
    for (std::uint32_t b = r.first_block; b < r.first_block + r.num_blocks; ++b) {
      const bool fresh = seen.insert(trace.blocks[b]).second;
      shared = shared && !fresh;
      if (shared) cached += trace.block_tokens;
    }
    Job& job = jobs.emplace_back(job_of(r, cached, costs));
    job.begin = to_seconds(r.arrival);
    if (r.after < 0) continue;
    const Job& leader = jobs[static_cast<std::size_t>(r.after)];
    job.begin += leader.begin + leader.alone;
  }
  return jobs;
}

// When the last of them is done, if all are served.
double least_end(std::vector<Job> jobs, double instances) {
  std::ranges::sort(jobs, std::greater<>(), &Job::begin);
  double end = 0;
  double work = 0;
  for (const Job& job : jobs) {
    work += job.work;
    end = std::max({end, job.begin + job.alone, job.begin + work / instances});
  }
  return end;
}

// A piece of work that has to be done between two times.
struct Piece {
  double begin = 0;
  double end = 0;
  double work = 0;
};

// How many of the pieces cannot be done, at least. `pieces` all begin and end within
// [begin, end).
std::size_t too_many(std::vector<Piece> pieces, double begin, double end, double instances) {
  constexpr double kShortest = 0.5;
  std::ranges::sort(pieces, {}, &Piece::work);
  double work = 0;
  std::size_t fit = 0;
  while (fit < pieces.size() && work + pieces[fit].work <= instances * (end - begin)) {
    work += pieces[fit++].work;
  }
  const std::size_t here = pieces.size() - fit;
  if (end - begin <= kShortest || pieces.size() < 2) return here;
  const double middle = (begin + end) / 2;
  const auto ends_after = [middle](const Piece& p) { return p.end > middle; };
  const auto begins_before = [middle](const Piece& p) { return p.begin < middle; };
  std::vector<Piece> left = pieces;
  std::erase_if(left, ends_after);
  std::erase_if(pieces, begins_before);
  const std::size_t below = too_many(std::move(left), begin, middle, instances) +
                            too_many(std::move(pieces), middle, end, instances);
  return std::max(here, below);
}

std::size_t too_many(const std::vector<Piece>& pieces, double instances) {
  double end = 0;
  for (const Piece& p : pieces) end = std::max(end, p.end);
  return std::max(too_many(pieces, 0, end, instances), too_many(pieces, -end / 3, end, instances));
}

}  // namespace

FluidLimit fluid_limit(const Trace& trace, const std::vector<NodeOptions>& nodes,
                       const std::vector<const DeviceProfile*>& devices,
                       const ServiceLevel& level) {
  FluidLimit limit;
  if (trace.requests.empty()) return limit;
  LeastCosts costs;
  bool caches = false;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    take_least(costs, *devices[i], nodes[i].engine);
    caches = caches || nodes[i].engine.kv.prefix_cache;
  }
  const std::vector<Job> jobs = jobs_of(trace, costs, caches);
  const auto instances = static_cast<double>(nodes.size());

  double tokens = 0;
  double last_begin = 0;
  std::size_t never = 0;
  std::map<std::int32_t, double> alone;  // as summarize() has it
  std::vector<Piece> prefills;
  std::vector<Piece> wholes;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    tokens += job.tokens;
    last_begin = std::max(last_begin, job.begin);
    const std::int32_t prompt = trace.requests[i].prompt_tokens;
    const auto [it, added] = alone.try_emplace(prompt, 0);
    if (added) {
      it->second = devices[0]->prefill_seconds(prompt, nodes[0].engine.batch.max_step_tokens);
    }
    const double first_within = level.ttft_s + level.ttft_prefill_factor * it->second;
    const double rest_within = (job.tokens - 1) * level.tpot_s;
    if (job.prefill > first_within || job.alone - job.prefill > rest_within) {
      ++never;
    } else if (trace.requests[i].after < 0) {  // else nobody knows when it begins
      prefills.push_back({job.begin, job.begin + first_within, job.prefill});
      wholes.push_back({job.begin, job.begin + first_within + rest_within, job.work});
    }
  }
  const std::size_t late = std::max(too_many(prefills, instances), too_many(wholes, instances));
  limit.good = jobs.size() - never - late;
  limit.goodput = static_cast<double>(limit.good) / std::max(1e-9, last_begin);
  limit.output_tokens_per_s = tokens / std::max(1e-9, least_end(jobs, instances));
  return limit;
}

}  // namespace sluice
