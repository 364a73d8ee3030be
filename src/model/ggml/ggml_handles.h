// Owning handles of ggml objects.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>

namespace sluice {

struct GgmlDelete {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(ggml_backend* backend) const { ggml_backend_free(backend); }
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
  void operator()(ggml_backend_sched* scheduler) const { ggml_backend_sched_free(scheduler); }
  void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};

using GgmlContext = std::unique_ptr<ggml_context, GgmlDelete>;
using GgmlBackend = std::unique_ptr<ggml_backend, GgmlDelete>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, GgmlDelete>;
using GgmlAllocator = std::unique_ptr<ggml_gallocr, GgmlDelete>;
using GgmlScheduler = std::unique_ptr<ggml_backend_sched, GgmlDelete>;
using GgmlThreads = std::unique_ptr<ggml_threadpool, GgmlDelete>;

}  // namespace sluice
