// The inner loops of packed_matrix.h, chosen at run time for the processor.
#pragma once

#include "model/ggml/packed_matrix.h"

namespace sluice::packed {

// Whether there is a loop for the kind here that is worth the packing.
bool is_fast(PackedKind kind);

// Rounds `size` numbers as RoundedColumns has them; `size` is a multiple of 32.
void round_column(const float* from, std::int64_t size, std::byte* to);

// Sixteen rows of weights times all columns: y[c * stride + r] for r < rows.
void multiply_group(PackedKind kind, const std::byte* group, const RoundedColumns& x,
                    std::int64_t rows, float* y, std::size_t stride);

}  // namespace sluice::packed
