// KV memory of a CUDA device in spans: a sequence's KV is contiguous in a virtual range, and a
// window's grant is a mapping (cf. vLLM's blocks, which a table makes contiguous instead).
//
// Belongs to the engine's loop. At a window's boundary, or while the present one still runs:
//
//   prepare(wishes)   plans the difference to the next window and has its calls made on a thread
//                     of its own; spans that are used now are there in the wishes, and are only
//                     added to
//   settle()          waits for that; from here on the new window's spans are good
//
// Errors of prepare() are those of plan_spans() and leave everything as it was. An error of
// settle() is a call that the device refused: what came before it has happened and is known,
// spans() and address() tell what is there, and the next prepare() goes on from it. Memory of other
// processes is not touched: `reserve_bytes` of what the device has free stays free.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "device/cuda_driver.h"
#include "device/span_mapper.h"
#include "memory/span_book.h"

namespace sluice {

struct SpanArenaOptions {
  SpanShape shape;
  std::size_t max_bytes = 0;      // of physical memory
  std::size_t reserve_bytes = 0;  // left free on the device for others
  std::int32_t max_spans = 0;     // at once
};

// Granules of a span for another process, and the descriptors that open them: closed with it.
class ExportedSpan final {
 public:
  explicit ExportedSpan(std::int64_t tokens) : import_{.tokens = tokens} {}
  ExportedSpan(ExportedSpan&& other) noexcept;
  ExportedSpan& operator=(ExportedSpan&& other) noexcept;
  ~ExportedSpan();

  void add(int descriptor) { import_.descriptors.push_back(descriptor); }
  // As an arena of the same shape takes it.
  [[nodiscard]] const SpanImport& import() const { return import_; }

 private:
  SpanImport import_;
};

class SpanArena final {
 public:
  // `device` outlives this. kInvalidArgument: a shape that the device cannot map, or no room for
  // one granule.
  [[nodiscard]] static Result<std::unique_ptr<SpanArena>> make(const CudaDevice& device,
                                                               const SpanArenaOptions& options);
  SpanArena(const SpanArena&) = delete;
  SpanArena& operator=(const SpanArena&) = delete;
  // Nothing may use the memory any more. What the device does not take back is lost until the
  // process ends.
  ~SpanArena();

  [[nodiscard]] Status prepare(std::vector<SpanWish> wishes, std::int32_t keep_free = 0);
  [[nodiscard]] Status settle();
  // Both, when nothing runs.
  [[nodiscard]] Status move_to(std::vector<SpanWish> wishes, std::int32_t keep_free = 0);

  // Where a lane of a span starts; none: it has not begun. Also between prepare() and settle().
  [[nodiscard]] std::optional<cuda::Pointer> address(SpanId span, std::int32_t lane) const;
  // The first `tokens` of a span, which must not be written any more while others import them.
  // Not between prepare() and settle().
  [[nodiscard]] Result<ExportedSpan> export_span(SpanId span, std::int64_t tokens) const;

  [[nodiscard]] const SpanBook& book() const { return book_; }

 private:
  SpanArena(const CudaDevice& device, const SpanArenaOptions& options);

  const CudaDevice& device_;
  const SpanArenaOptions options_;
  SpanBook book_;
  SpanMapper mapper_;  // the thread's while `pending_`
  SpanPlan plan_;
  std::future<MappedOps> pending_;
};

}  // namespace sluice
