// What a test asks of the fake CUDA driver beside what the driver does. Bound by name, as all of
// it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

struct FakeCounts {
  std::int64_t ranges = 0;    // reserved
  std::int64_t granules = 0;  // created or imported, with a handle or a mapping left
  std::int64_t handles = 0;   // not released
  std::int64_t mappings = 0;
  std::int64_t contexts = 0;  // retained
  std::int64_t calls = 0;     // that can fail, since reset
};

struct FakeSettings {
  std::size_t total_bytes = std::size_t{64} << 20;  // of the device
  std::size_t others_bytes = 0;                     // of these in use by other processes
  std::int64_t fail_first = 0;  // calls [first, last] since now fail; counted from 1, 0: none
  std::int64_t fail_last = 0;
};

using FakeSet = void(const FakeSettings*);
using FakeCount = void(FakeCounts*);

}  // namespace sluice::cuda
