// The life of a sequence on two instances (CN119512748A): how it leaves one
// engine and goes on in another. Who asks whom is cluster/'s affair.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace sluice {
namespace {

auto has_request(RequestId request) {
  return [request](const auto& s) { return s->request->id == request; };
}

}  // namespace

// --- Leaving ---------------------------------------------------------------------

std::vector<RequestId> Engine::may_leave() const {
  std::vector<RequestId> requests;
  for (const auto& s : running_) {
    const bool last_chunk = s->left_to_compute() <= options_.batch.max_step_tokens;
    if (s->here() && last_chunk && s->left_to_generate() > 1) requests.push_back(s->request->id);
  }
  return requests;
}

const Sequence* Engine::find(RequestId request) const {
  const auto it = std::find_if(running_.begin(), running_.end(), has_request(request));
  return it == running_.end() ? nullptr : it->get();
}

std::span<const BlockId> Engine::table(RequestId request) const {
  const Sequence* sequence = find(request);
  return sequence == nullptr ? std::span<const BlockId>{} : kv_.table(sequence->id);
}

bool Engine::rest(RequestId request) {
  const auto it = std::find_if(running_.begin(), running_.end(), has_request(request));
  if (it == running_.end() || !(*it)->here()) return false;
  (*it)->presence = Presence::kResting;
  return true;
}

void Engine::wake(RequestId request) {
  const auto it = std::find_if(running_.begin(), running_.end(), has_request(request));
  if (it != running_.end()) {
    CHECK((*it)->presence == Presence::kResting);
    (*it)->presence = Presence::kHere;
    return;
  }
  const auto y = std::find_if(yielded_.begin(), yielded_.end(), has_request(request));
  CHECK(y != yielded_.end());
  std::unique_ptr<Sequence> sequence = std::move(*y);
  yielded_.erase(y);
  sequence->presence = Presence::kHere;
  waiting_.add(std::move(sequence));
}

// It holds blocks here or in host memory, or none, and says nothing more.
void Engine::forget(std::unique_ptr<Sequence> sequence) {
  tenants_.leave(sequence->tenant);
  host_.drop(sequence->host_blocks);
}

void Engine::drop(RequestId request) {
  if (const auto it = std::find_if(running_.begin(), running_.end(), has_request(request));
      it != running_.end()) {
    kv_.release((*it)->id);
    forget(std::move(*it));
    running_.erase(it);
  } else if (const auto y = std::find_if(yielded_.begin(), yielded_.end(), has_request(request));
             y != yielded_.end()) {
    forget(std::move(*y));
    yielded_.erase(y);
  } else if (const Sequence* waits = waiting_.find(request)) {
    forget(waiting_.take(*waits));
  }
}

// The plan is as old as its window: who has left since is not in it, so only one leaves by it.
std::optional<RequestId> Engine::next_to_yield() const {
  const Window& window = kv_.window();
  const bool short_soon = window.plan.peak_blocks > options_.kv.num_blocks;
  if (!short_soon || running_.size() < 2 || made_room_ == window.number) return std::nullopt;
  const Sequence* next = nullptr;
  for (const auto& s : running_) {
    if (!s->here() || !s->decoding()) continue;
    if (next == nullptr || s->request->priority <= next->request->priority) next = s.get();
  }
  return next == nullptr ? std::nullopt : std::optional(next->request->id);
}

void Engine::drop_for_room(RequestId request) {
  drop(request);
  made_room_ = kv_.window().number;
  stats_.windows.shortfall_move += 1;
}

void Engine::end_resting(RequestId request) {
  const auto end = [&](auto& list) {
    const auto it = std::find_if(list.begin(), list.end(), has_request(request));
    if (it == list.end()) return false;
    end_cancelled(**it);
    list.erase(it);
    return true;
  };
  if (const Sequence* sequence = find(request)) kv_.release(sequence->id);
  if (!end(running_)) end(yielded_);
}

// --- Arriving --------------------------------------------------------------------

// When it should ask again: at half of the time until there is likely to be room, for a forecast
// is late as often as it is early. The plan's outlook does not know who was admitted since its
// window began, nor who waits.
Duration Engine::until_room(RequestId request, std::int64_t blocks) {
  const Window& window = kv_.window();
  const TimePoint now = clock_.now();
  std::int64_t more =
      std::max<std::int64_t>(0, kv_.usage().window_granted_blocks - window.plan.demand_blocks);
  for (const auto& s : waiting_.items()) more += kv_.blocks_for(s->known());
  const TimePoint at = room_forecast_.tell({request, blocks},
                                           {.begin = window.begin,
                                            .outlook = window.plan.outlook,
                                            .more_blocks = more,
                                            .total_blocks = options_.kv.num_blocks},
                                           now);
  return (at - now) / 2;
}

tl::expected<Arrival, ArrivalRefusal> Engine::reserve(ArrivalRequest arrival) {
  seen_.push_back(arrival.request->id);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_;
  ++next_id_.value;
  sequence->request = std::move(arrival.request);
  const Request& wanted = *sequence->request;
  sequence->tenant = tenants_.enter(wanted.tenant);
  const auto refuse = [&](bool never, Duration after, ErrorCode code, std::string message) {
    tenants_.leave(sequence->tenant);
    return tl::unexpected(ArrivalRefusal{never, after, {code, std::move(message), 0}});
  };

  if (Status status = accept(wanted); !status) {
    const bool never = status.error().code != ErrorCode::kBusy;
    const std::int64_t blocks = kv_.blocks_for(arrival.room_tokens);
    return refuse(never, never ? Duration::zero() : until_room(wanted.id, blocks),
                  status.error().code, status.error().message);
  }
  auto sampler = samplers_.make(wanted.sampling, wanted.prompt);
  if (!sampler) return refuse(true, {}, sampler.error().code, sampler.error().message);
  sequence->sampler = std::move(*sampler);
  sequence->tokens = wanted.prompt;
  sequence->prompt_tokens = static_cast<std::int32_t>(wanted.prompt.size());
  sequence->tokens.insert(sequence->tokens.end(), arrival.generated.begin(),
                          arrival.generated.end());
  if (arrival.room_tokens < sequence->known() - 1 || sequence->left_to_generate() < 1) {
    return refuse(true, {}, ErrorCode::kInvalidArgument,
                  fmt::format("room for {} tokens of a sequence that has {}", arrival.room_tokens,
                              sequence->known()));
  }
  // Who waits here was here first; and a batch has an end.
  const bool full = running_.size() >= static_cast<std::size_t>(options_.max_running);
  if (full || !waiting_.empty()) {
    return refuse(false, until_room(wanted.id, kv_.blocks_for(arrival.room_tokens)),
                  ErrorCode::kBusy,
                  fmt::format("{} sequences run here (limit {}), {} wait", running_.size(),
                              options_.max_running, waiting_.size()));
  }
  const AdmissionRequest request{.id = sequence->id,
                                 .tokens = sequence->tokens,
                                 .generated = sequence->generated(),
                                 .decode_cap = sequence->left_to_generate(),
                                 .priority = wanted.priority,
                                 .arriving_tokens = arrival.room_tokens,
                                 .block_pause = host_.block_pause()};
  renew_window();  // a window that is over admits nobody
  const auto admission = kv_.admit(request, clock_.now(), running_views(), step_time_, forecast_);
  if (!admission) {
    const std::int32_t blocks = kv_.blocks_for(arrival.room_tokens);
    return refuse(false, until_room(wanted.id, blocks), ErrorCode::kBusy,
                  fmt::format("{} KV blocks do not fit beside what runs here", blocks));
  }
  room_forecast_.forget(wanted.id);
  sequence->computed = std::max(arrival.room_tokens, admission->cached_tokens);
  sequence->presence = Presence::kArriving;
  const std::span<const BlockId> table = kv_.table(sequence->id);
  const auto first = static_cast<std::size_t>(kv_.blocks_for(admission->cached_tokens));
  const auto end = static_cast<std::size_t>(kv_.blocks_for(arrival.room_tokens));
  Arrival granted{.held_tokens = admission->cached_tokens, .blocks = {}};
  if (end > first) {
    granted.blocks.assign(table.begin() + static_cast<std::ptrdiff_t>(first),
                          table.begin() + static_cast<std::ptrdiff_t>(end));
  }
  running_.push_back(std::move(sequence));
  return granted;
}

Status Engine::start(RequestId request, const ArrivedState& state) {
  const auto it = std::find_if(running_.begin(), running_.end(), has_request(request));
  if (it == running_.end() || (*it)->presence != Presence::kArriving) {
    return fail(ErrorCode::kNotFound, "nothing is reserved for this request");
  }
  Sequence& s = **it;
  const std::int32_t known = s.prompt_tokens + static_cast<std::int32_t>(state.generated.size());
  const bool fits = state.kv_tokens == known - 1 && state.kv_tokens <= s.computed &&
                    known - s.prompt_tokens < s.request->max_tokens;
  if (!fits || state.generated.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("KV of {} tokens came for {} known ones; room was reserved for {}",
                            state.kv_tokens, known, s.computed));
  }
  TRY_STATUS(s.sampler->resume(state.generated));
  s.tokens.resize(static_cast<std::size_t>(s.prompt_tokens));
  s.tokens.insert(s.tokens.end(), state.generated.begin(), state.generated.end());
  s.computed = state.kv_tokens;
  s.cached_tokens = state.cached_tokens;
  s.announced = state.announced;
  s.admitted_at = clock_.now();
  s.presence = Presence::kHere;
  kv_.arrived(s.id, std::span(s.tokens).first(static_cast<std::size_t>(s.computed)));
  return {};
}

std::vector<RequestId> Engine::take_revoked() {
  return std::exchange(revoked_, {});
}

}  // namespace sluice
