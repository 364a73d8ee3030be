#include "simulation/profile_fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace sluice {
namespace {

// Coefficients: the two tables, then these.
enum Extra : std::size_t { kDecodeRow, kDecodeContext, kPrefillChunk, kPrefillPair, kExtras };

using Row = std::vector<double>;

// What each point of a table adds to its value at x: linear between the points.
void add_weights(std::span<const double> points, double x, std::span<double> weights) {
  if (x <= 0) return;
  if (points.size() == 1 || x <= points.front()) {
    weights[0] = 1;
    return;
  }
  const auto above = std::lower_bound(points.begin() + 1, points.end() - 1, x);
  const auto i = static_cast<std::size_t>(above - points.begin());
  const double share = (x - points[i - 1]) / (points[i] - points[i - 1]);
  weights[i - 1] = 1 - share;
  weights[i] = share;
}

Row row_of(const StepWork& work, const std::vector<double>& points) {
  Row row(2 * points.size() + kExtras, 0.0);
  const std::span<double> all(row);
  add_weights(points, work.decode_rows + work.prefill_tokens, all.first(points.size()));
  add_weights(points, work.sampled, all.subspan(points.size(), points.size()));
  const std::span<double> extra = all.subspan(2 * points.size());
  extra[kDecodeRow] = work.decode_rows;
  extra[kDecodeContext] = static_cast<double>(work.decode_context);
  extra[kPrefillChunk] = work.prefill_chunks;
  extra[kPrefillPair] = work.prefill_pairs;
  return row;
}

// Minimises |rows * x - 1|^2 over x >= 0, a coefficient at a time: convex, so that every
// sweep comes nearer. Those that no row has stay 0.
Row solve(const std::vector<Row>& rows, std::size_t count) {
  std::vector<Row> normal(count, Row(count, 0.0));
  Row right(count, 0.0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < count; ++i) {
      if (row[i] == 0) continue;
      right[i] += row[i];
      for (std::size_t j = 0; j < count; ++j) normal[i][j] += row[i] * row[j];
    }
  }
  Row x(count, 0.0);
  constexpr int kMostSweeps = 20'000;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double moved = 0;  // in the error of a row, about
    for (std::size_t i = 0; i < count; ++i) {
      if (normal[i][i] == 0) continue;
      double rest = right[i];
      for (std::size_t j = 0; j < count; ++j) rest -= normal[i][j] * x[j];
      const double next = std::max(0.0, x[i] + rest / normal[i][i]);
      moved = std::max(moved, std::abs(next - x[i]) * std::sqrt(normal[i][i]));
      x[i] = next;
    }
    if (moved < 1e-9) break;
  }
  return x;
}

// Points that nothing was measured at, beyond the last that something was: on with the slope.
void extend(std::vector<double>& table, const std::vector<double>& points,
            const std::vector<bool>& seen) {
  for (std::size_t i = 2; i < table.size(); ++i) {
    if (std::find(seen.begin() + static_cast<std::ptrdiff_t>(i), seen.end(), true) != seen.end()) {
      continue;
    }
    const double slope = (table[i - 1] - table[i - 2]) / (points[i - 1] - points[i - 2]);
    table[i] = table[i - 1] + std::max(0.0, slope) * (points[i] - points[i - 1]);
  }
}

}  // namespace

Result<ProfileFit> fit_profile(DeviceProfile shape, std::span<const MeasuredStep> steps) {
  const std::size_t points = shape.tokens.size();
  const std::size_t count = 2 * points + kExtras;
  if (points == 0 || steps.size() < count) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} measured steps are too few for {} coefficients", steps.size(), count));
  }
  std::vector<Row> rows;
  std::vector<bool> seen(count, false);
  for (const MeasuredStep& step : steps) {
    if (!(step.seconds > 0)) {
      return fail(ErrorCode::kInvalidArgument, "a measured step took no time");
    }
    Row row = row_of(step.work, shape.tokens);
    for (std::size_t i = 0; i < count; ++i) {
      seen[i] = seen[i] || row[i] != 0;
      row[i] /= step.seconds;
    }
    rows.push_back(std::move(row));
  }
  const Row x = solve(rows, count);
  const auto at = [&x](std::size_t i) { return x.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto was = [&seen](std::size_t i) { return seen.begin() + static_cast<std::ptrdiff_t>(i); };
  ProfileFit fit{.profile = std::move(shape)};
  DeviceProfile& p = fit.profile;
  p.dense_s.assign(at(0), at(points));
  p.head_s.assign(at(points), at(2 * points));
  extend(p.dense_s, p.tokens, {was(0), was(points)});
  extend(p.head_s, p.tokens, {was(points), was(2 * points)});
  p.decode_row_s = x[2 * points + kDecodeRow];
  p.decode_context_s = x[2 * points + kDecodeContext];
  p.prefill_chunk_s = x[2 * points + kPrefillChunk];
  p.prefill_pair_s = x[2 * points + kPrefillPair];
  p.step_s = p.prefill_token_s = 0;

  std::vector<double> errors;
  for (const MeasuredStep& step : steps) {
    errors.push_back(std::abs(p.seconds(step.work) / step.seconds - 1));
  }
  std::sort(errors.begin(), errors.end());
  fit.median_error = errors[errors.size() / 2];
  fit.p90_error = errors[errors.size() * 9 / 10];
  return fit;
}

}  // namespace sluice
