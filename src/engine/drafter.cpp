#include "engine/drafter.h"

#include <algorithm>
#include <bit>

namespace sluice {
namespace {

constexpr double kOwnWeight = 0.2;  // of one guess, in the sequence's mean
constexpr double kNewsWeight = 0.5;
constexpr double kSharedWeight = 0.01;

}  // namespace

std::size_t Drafter::slot(std::span<const Token> tokens, std::size_t end) const {
  std::uint64_t hash = 0;
  for (std::size_t i = end - kLeastMatch; i < end; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15ULL;
  }
  return static_cast<std::size_t>(hash >> 32) & (last_.size() - 1);
}

// A table of at least as many slots as there are tokens.
void Drafter::grow(std::span<const Token> tokens) {
  last_.assign(std::bit_ceil(std::max<std::size_t>(2 * tokens.size(), 256)), 0);
  before_.clear();
}

// All places but the end, which nothing has followed yet.
void Drafter::enter(std::span<const Token> tokens) {
  if (tokens.size() > last_.size()) grow(tokens);
  before_.reserve(tokens.size());
  for (std::size_t place = before_.size(); place < tokens.size(); ++place) {
    before_.push_back(0);
    if (place < kLeastMatch) continue;
    std::int32_t& last = last_[slot(tokens, place)];
    before_.back() = last;
    last = static_cast<std::int32_t>(place);
  }
}

std::size_t Drafter::best_match(std::span<const Token> tokens) {
  std::size_t best = 0;
  std::int32_t best_length = kLeastMatch - 1;
  auto place = static_cast<std::size_t>(last_[slot(tokens, tokens.size())]);
  for (std::int32_t seen = 0; place != 0 && seen < kMostPlaces; ++seen) {
    const std::size_t most = std::min<std::size_t>(place, kMostMatch);
    std::int32_t length = 0;
    while (static_cast<std::size_t>(length) < most &&
           tokens[place - 1 - static_cast<std::size_t>(length)] ==
               tokens[tokens.size() - 1 - static_cast<std::size_t>(length)]) {
      ++length;
    }
    if (length > best_length) {  // among equals the latest
      best = place;
      best_length = length;
    }
    place = static_cast<std::size_t>(before_[place]);
  }
  match_ = best_length;
  return best;
}

std::span<const Token> Drafter::guess(std::span<const Token> tokens, std::int32_t most,
                                      const DraftRates& seen) {
  drafts_.clear();
  if (most <= 0 || tokens.size() <= kLeastMatch) return drafts_;
  if (before_.empty()) rates_ = seen;
  enter(tokens);
  const std::size_t match = best_match(tokens);
  if (match == 0) return drafts_;
  ++passed_over_;
  if (trial_due()) most = 1;
  for (std::size_t i = match; drafts_.size() < static_cast<std::size_t>(most); ++i) {
    // What repeats itself goes on in the guesses themselves.
    drafts_.push_back(i < tokens.size() ? tokens[i] : drafts_[i - tokens.size()]);
  }
  return drafts_;
}

void Drafter::observe(std::int32_t tried, std::int32_t right, DraftRates& seen) {
  const bool trial = trial_due();
  // A trial that is right is news.
  rates_.observe(match_, tried, right, trial && right > 0 ? kNewsWeight : kOwnWeight);
  seen.observe(match_, tried, right, kSharedWeight);
  if (right > 0) {
    pause_ = trial ? kNextPause : kLeastPause;
  } else if (trial) {
    pause_ = std::clamp(2 * pause_, kLeastPause, kMostPause);
  }
  passed_over_ = 0;
}

}  // namespace sluice
