// The way from what is mapped to what a window shall have, as a list of calls.
//
// Pure: a function of the book and the request; equal arguments give equal plans. Memory that
// ended spans give back is used before any is made, and what is still free at the end beyond
// `keep_free`, or that the reserve of others wants, goes back to the device. A span that serves as
// a prefix ends after those that begin with it have what they want.
//
// Errors, before anything has happened: kInvalidArgument, a wish that cannot be; kBusy, it
// does not fit beside what is there now; kNeverFits, more than the arena has. After a failure of
// the device in mid-plan: plan again from the book; what was half begun begins anew.
#pragma once

#include "base/result.h"
#include "memory/span_book.h"
#include "memory/span_plan.h"

namespace sluice {

[[nodiscard]] Result<SpanPlan> plan_spans(const SpanBook& book, const SpanRequest& request);

}  // namespace sluice
