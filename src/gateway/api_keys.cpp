#include "gateway/api_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace sluice {

namespace {

ApiError too_many(const ApiKey& key, const char* what, std::int64_t limit, double wait_s) {
  const auto seconds = static_cast<std::int32_t>(std::clamp(std::ceil(wait_s), 1.0, 3600.0));
  ApiError error = to_api_error(
      {ErrorCode::kBusy,
       fmt::format("the limit of {} {} of '{}' is reached", limit, what, key.name), seconds});
  error.type = "rate_limit_error";
  error.code = "rate_limit_exceeded";
  return error;
}

}  // namespace

Status check_api_keys(const std::vector<ApiKey>& keys) {
  std::set<std::string_view> seen;
  for (const ApiKey& key : keys) {
    if (key.key.empty()) return fail(ErrorCode::kInvalidArgument, "an API key is empty");
    if (!seen.insert(key.key).second) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("two API keys are the same{}{}",
                                                           key.name.empty() ? "" : ": ", key.name));
    }
    const std::int64_t least =
        std::min({key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests});
    if (least < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a limit of the API key '{}' is {}; it must be 0 (none) or above",
                              key.name, least));
    }
    const bool limited =
        key.requests_per_minute + key.tokens_per_minute + key.concurrent_requests > 0;
    if (limited && key.name.empty()) {
      return fail(ErrorCode::kInvalidArgument, "an API key with a limit needs a name");
    }
  }
  return {};
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  std::uint32_t difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<std::uint32_t>(static_cast<unsigned char>(a[i] ^ other));
  }
  return difference == 0;
}

void ApiKeys::Bucket::refill(double seconds) {
  const auto most = static_cast<double>(a_minute);
  level = std::min(most, level + most * seconds / 60);
}

double ApiKeys::Bucket::wait_s(double wanted) const {
  if (a_minute == 0) return 0;
  return std::max(0.0, (wanted - level) * 60 / static_cast<double>(a_minute));
}

ApiKeys::Left ApiKeys::Bucket::left() const {
  return {a_minute, static_cast<std::int64_t>(std::max(0.0, std::floor(level))),
          wait_s(static_cast<double>(a_minute))};
}

ApiKeys::Use& ApiKeys::Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  if (keys_) keys_->leave(index_);
  keys_ = std::exchange(other.keys_, nullptr);
  index_ = other.index_;
  return *this;
}

ApiKeys::Use::~Use() {
  if (keys_) keys_->leave(index_);
}

void ApiKeys::Use::spend(std::int64_t tokens) {
  if (keys_) keys_->spend(index_, tokens);
}

ApiKeys::ApiKeys(std::vector<ApiKey> keys, const Clock& clock) : clock_(clock) {
  for (ApiKey& key : keys) {
    auto entry = std::make_unique<Entry>();
    entry->requests = {key.requests_per_minute, static_cast<double>(key.requests_per_minute)};
    entry->tokens = {key.tokens_per_minute, static_cast<double>(key.tokens_per_minute)};
    entry->refilled = clock.now();
    entry->key = std::move(key);
    entries_.push_back(std::move(entry));
  }
}

std::optional<std::size_t> ApiKeys::find(std::string_view given) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (equal_in_constant_time(given, entries_[i]->key.key)) found = i;
  }
  return found;
}

const std::string& ApiKeys::name(std::size_t index) const {
  return entries_[index]->key.name;
}

ApiResult<ApiKeys::Use> ApiKeys::admit(std::size_t index) {
  Entry& entry = *entries_[index];
  const ApiKey& key = entry.key;
  const std::lock_guard lock(entry.mutex);
  refill(entry);
  if (key.concurrent_requests > 0 && entry.running >= key.concurrent_requests) {
    return tl::unexpected(too_many(key, "requests at a time", key.concurrent_requests, 1));
  }
  if (const double wait = entry.requests.wait_s(1); wait > 0) {
    return tl::unexpected(too_many(key, "requests a minute", key.requests_per_minute, wait));
  }
  if (const double wait = entry.tokens.wait_s(1); wait > 0) {
    return tl::unexpected(too_many(key, "tokens a minute", key.tokens_per_minute, wait));
  }
  entry.requests.level -= 1;
  ++entry.running;
  return Use(*this, index);
}

ApiKeys::State ApiKeys::state(std::size_t index) {
  Entry& entry = *entries_[index];
  const std::lock_guard lock(entry.mutex);
  refill(entry);
  return {entry.requests.left(), entry.tokens.left()};
}

void ApiKeys::refill(Entry& entry) const {
  const TimePoint now = clock_.now();
  const double seconds = std::max(0.0, to_seconds(now - entry.refilled));
  entry.requests.refill(seconds);
  entry.tokens.refill(seconds);
  entry.refilled = now;
}

void ApiKeys::leave(std::size_t index) {
  const std::lock_guard lock(entries_[index]->mutex);
  --entries_[index]->running;
}

void ApiKeys::spend(std::size_t index, std::int64_t tokens) {
  Entry& entry = *entries_[index];
  const std::lock_guard lock(entry.mutex);
  refill(entry);
  entry.tokens.level -= static_cast<double>(tokens);
}

}  // namespace sluice
