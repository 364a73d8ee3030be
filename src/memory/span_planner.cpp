#include "memory/span_planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr double kMebibyte = 1 << 20;

// Every operation goes to a copy of the book at once, so that what follows sees its effect, and
// the owner's book will take the same operations later.
class Planning {
 public:
  Planning(const SpanBook& book, const SpanRequest& request)
      : before_(book), request_(request), next_(book) {}

  Result<SpanPlan> run() {
    TRY_STATUS(check_wishes());
    for (const auto& [span, range] : before_.spans()) {
      const SpanWish* wish = ready(span) ? wish_for(span) : nullptr;
      if (!sources_.contains(span)) shrink(range, wish);
    }
    TRY_STATUS(begin());
    for (const SpanWish* wish : beginning_) take_over(*wish);
    TRY_STATUS(check_room());
    for (const SpanWish& wish : request_.wishes) grow(wish);
    for (const SpanId source : sources_) shrink(*next_.find(source), wish_for(source));
    release();
    return std::move(plan_);
  }

 private:
  void emit(const SpanOp& op) {
    next_.apply(op);
    plan_.ops.push_back(op);
  }

  const SpanWish* wish_for(SpanId span) const {
    const auto it = wishes_.find(span);
    return it == wishes_.end() ? nullptr : it->second;
  }

  bool ready(SpanId span) const {
    const auto range = before_.find(span);
    return range && before_.range(*range).ready;
  }

  const SpanBook::Place& place_at(RangeId range, std::int32_t place) const {
    return next_.range(range).places[static_cast<std::size_t>(place)];
  }

  // Calls f(place) for places [first, end) of each lane.
  template <class F>
  void each_place(std::int32_t first, std::int32_t end, F f) const {
    for (std::int32_t lane = 0; lane < shape_.num_lanes; ++lane) {
      for (std::int32_t i = first; i < end; ++i) f(lane * per_lane_ + i);
    }
  }

  Status check_wishes() {
    for (const SpanWish& wish : request_.wishes) {
      if (!wishes_.emplace(wish.span, &wish).second) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("span {} is named twice for one window", wish.span.value));
      }
      if (wish.tokens < 0 || wish.tokens > shape_.max_tokens) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("span {} shall hold {} tokens: a span has room for 0 to {}",
                                wish.span.value, wish.tokens, shape_.max_tokens));
      }
      if (ready(wish.span)) {
        TRY_STATUS(check_growth(wish));
      } else {
        TRY_STATUS(check_start(wish));
        beginning_.push_back(&wish);
      }
    }
    return {};
  }

  // A span that gave back tokens which others still read as a prefix cannot write there anew.
  Status check_growth(const SpanWish& wish) const {
    const SpanBook::Range& range = before_.range(*before_.find(wish.span));
    const std::int32_t full = shape_.full_granules(range.tokens);
    if (wish.tokens <= range.tokens || full == shape_.granules_for(range.tokens)) return {};
    for (std::int32_t lane = 0; lane < shape_.num_lanes; ++lane) {
      const auto& last = range.places[static_cast<std::size_t>(shape_.place(lane, full))];
      if (before_.granule(*last.granule).refs > 1) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("span {} cannot grow from {} to {} tokens: others read what lies "
                                "after them; a new span with them as its prefix can",
                                wish.span.value, range.tokens, wish.tokens));
      }
    }
    return {};
  }

  Status check_start(const SpanWish& wish) {
    if (wish.prefix && wish.import) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("span {} has both a prefix and imported memory", wish.span.value));
    }
    if (wish.prefix) {
      const SpanId from = wish.prefix->from;
      const std::int64_t there = ready(from) ? before_.range(*before_.find(from)).tokens : 0;
      if (!ready(from) || wish.prefix->tokens < 0 ||
          wish.prefix->tokens > std::min(there, wish.tokens)) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("span {} of {} tokens cannot start with {} tokens of span {}, "
                        "which has {}",
                        wish.span.value, wish.tokens, wish.prefix->tokens, from.value, there));
      }
      sources_.insert(from);
    }
    if (wish.import) {
      const std::int64_t tokens = wish.import->tokens;
      const bool possible = tokens >= 0 && tokens <= wish.tokens;
      const std::int32_t granules = possible ? shape_.num_lanes * shape_.granules_for(tokens) : 0;
      if (!possible || std::cmp_not_equal(granules, wish.import->descriptors.size())) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("span {} of {} tokens cannot start with {} imported tokens in {} "
                                "granules (expected {})",
                                wish.span.value, wish.tokens, tokens,
                                wish.import->descriptors.size(), granules));
      }
    }
    return {};
  }

  // Gives back what lies beyond the wish; without one, everything.
  void shrink(RangeId range, const SpanWish* wish) {
    const SpanBook::Range& now = next_.range(range);
    if (wish != nullptr && wish->tokens < now.tokens) {
      emit(SetTokens{.range = range, .tokens = wish->tokens});
    }
    // An ending span is not ready any more once its first place is gone.
    if (wish == nullptr && now.tokens > 0) emit(SetTokens{.range = range, .tokens = 0});
    const std::int32_t kept = wish == nullptr ? 0 : shape_.granules_for(wish->tokens);
    each_place(kept, per_lane_, [&](std::int32_t place) {
      if (!place_at(range, place).granule) return;
      emit(UnmapPlace{.range = range, .place = place});
    });
    if (wish == nullptr) emit(EndSpan{.range = range});
  }

  Status begin() {
    auto free_range = next_.ranges().begin();
    for (const SpanWish* wish : beginning_) {
      free_range = std::find_if(free_range, next_.ranges().end(),
                                [](const SpanBook::Range& range) { return !range.span; });
      if (free_range == next_.ranges().end()) {
        return fail(ErrorCode::kBusy,
                    fmt::format("{} spans begin beside {} others: at most {} are there at once",
                                beginning_.size(), before_.spans().size(), before_.limits().spans));
      }
      const auto index = free_range - next_.ranges().begin();
      emit(BeginSpan{.span = wish->span, .range = RangeId(static_cast<std::int32_t>(index))});
    }
    return {};
  }

  // Maps what a new span starts with.
  void take_over(const SpanWish& wish) {
    const RangeId range = *next_.find(wish.span);
    if (wish.prefix) {
      const RangeId from = *next_.find(wish.prefix->from);
      each_place(0, shape_.full_granules(wish.prefix->tokens), [&](std::int32_t place) {
        emit(MapPlace{.range = range, .place = place, .granule = *place_at(from, place).granule});
      });
    }
    if (!wish.import) return;
    std::size_t at = 0;
    each_place(0, shape_.granules_for(wish.import->tokens), [&](std::int32_t place) {
      const GranuleId granule = absent_foreign();
      emit(ImportGranule{.granule = granule, .descriptor = wish.import->descriptors[at++]});
      emit(MapPlace{.range = range, .place = place, .granule = granule});
    });
  }

  Status check_room() {
    std::int64_t missing = 0;
    for (const SpanWish& wish : request_.wishes) {
      const RangeId range = *next_.find(wish.span);
      each_place(0, shape_.granules_for(wish.tokens), [&](std::int32_t place) {
        if (!place_at(range, place).granule) ++missing;
      });
    }
    const std::int64_t limit = before_.limits().granules;
    const std::int64_t usable = next_.num_free() + limit - next_.num_held();
    const std::size_t others = request_.reserve_bytes;
    const std::size_t spare = request_.free_bytes > others ? request_.free_bytes - others : 0;
    const auto makeable = static_cast<std::int64_t>(spare / shape_.granule_bytes);
    const std::int64_t available = std::min(usable, next_.num_free() + makeable);
    if (missing <= available) return {};
    const std::int64_t mapped = next_.num_held() - next_.num_free();
    return fail(missing > limit ? ErrorCode::kNeverFits : ErrorCode::kBusy,
                fmt::format("{} more granules of {:.1f} MiB are wanted and {} can be had: {} of at "
                            "most {} are mapped, {} free; the device has {:.1f} MiB free, of which "
                            "{:.1f} are left to others",
                            missing, static_cast<double>(shape_.granule_bytes) / kMebibyte,
                            available, mapped, limit, next_.num_free(),
                            static_cast<double>(request_.free_bytes) / kMebibyte,
                            static_cast<double>(others) / kMebibyte));
  }

  // The lowest free granule, or a new one. Nothing becomes free while spans grow.
  GranuleId take_granule() {
    const auto& granules = next_.granules();
    const auto limit = static_cast<std::size_t>(before_.limits().granules);
    const bool recycled = next_.num_free() > 0;
    std::size_t& at = recycled ? first_free_ : first_absent_;
    while (at < limit &&
           (recycled ? !granules[at].held || granules[at].refs > 0 : granules[at].held)) {
      ++at;
    }
    CHECK_LT(at, limit);
    const GranuleId granule(static_cast<std::int32_t>(at));
    if (!recycled) emit(CreateGranule{granule});
    return granule;
  }

  GranuleId absent_foreign() const {
    auto at = static_cast<std::size_t>(before_.limits().granules);
    while (at < next_.granules().size() && next_.granules()[at].held) ++at;
    return GranuleId(static_cast<std::int32_t>(at));
  }

  void grow(const SpanWish& wish) {
    const RangeId range = *next_.find(wish.span);
    each_place(0, shape_.granules_for(wish.tokens), [&](std::int32_t place) {
      if (place_at(range, place).granule) return;
      emit(MapPlace{.range = range, .place = place, .granule = take_granule()});
    });
    open(range);
    if (!ready(wish.span) && wish.prefix) copy_rest(range, *wish.prefix);
    if (!next_.range(range).ready || next_.range(range).tokens != wish.tokens) {
      emit(SetTokens{.range = range, .tokens = wish.tokens});
    }
  }

  // One call a run of neighbours.
  void open(RangeId range) {
    std::int32_t first = 0;
    const std::int32_t places = shape_.num_lanes * per_lane_;
    const auto closed = [&](std::int32_t place) {
      return place < places && place_at(range, place).granule && !place_at(range, place).open;
    };
    while (first < places) {
      std::int32_t end = first;
      while (closed(end)) ++end;
      if (end > first) emit(OpenPlaces{.range = range, .first = first, .count = end - first});
      first = end + 1;
    }
  }

  void copy_rest(RangeId range, const SpanPrefix& prefix) {
    const std::int32_t full = shape_.full_granules(prefix.tokens);
    const std::size_t bytes = shape_.lane_bytes(prefix.tokens) - shape_.offset(full);
    if (bytes == 0) return;
    for (std::int32_t lane = 0; lane < shape_.num_lanes; ++lane) {
      emit(CopyBytes{.from = *next_.find(prefix.from),
                     .to = range,
                     .offset = shape_.offset(shape_.place(lane, full)),
                     .bytes = bytes});
    }
  }

  void release() {
    std::int64_t made = next_.num_held() - before_.num_held();
    const std::size_t used = static_cast<std::size_t>(made) * shape_.granule_bytes;
    const std::size_t left = request_.free_bytes > used ? request_.free_bytes - used : 0;
    const std::size_t owed = request_.reserve_bytes > left ? request_.reserve_bytes - left : 0;
    const auto for_others =
        static_cast<std::int64_t>((owed + shape_.granule_bytes - 1) / shape_.granule_bytes);
    std::int64_t surplus =
        std::max<std::int64_t>(next_.num_free() - request_.keep_free,
                               std::min<std::int64_t>(for_others, next_.num_free()));
    // From the end, so that what stays lies low.
    for (std::size_t i = next_.granules().size(); i-- > 0;) {
      const GranuleId granule(static_cast<std::int32_t>(i));
      if (!next_.granule(granule).held || next_.granule(granule).refs > 0) continue;
      if (!next_.is_foreign(granule) && surplus-- <= 0) break;
      emit(ReleaseGranule{granule});
    }
  }

  const SpanBook& before_;
  const SpanRequest& request_;
  SpanBook next_;
  const SpanShape& shape_ = before_.shape();
  const std::int32_t per_lane_ = shape_.places_per_lane();
  SpanPlan plan_;
  std::map<SpanId, const SpanWish*> wishes_;
  std::vector<const SpanWish*> beginning_;
  std::set<SpanId> sources_;  // of prefixes
  std::size_t first_free_ = 0;
  std::size_t first_absent_ = 0;
};

}  // namespace

Result<SpanPlan> plan_spans(const SpanBook& book, const SpanRequest& request) {
  return Planning(book, request).run();
}

}  // namespace sluice
