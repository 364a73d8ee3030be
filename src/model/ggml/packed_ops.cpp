#include "model/ggml/packed_ops.h"

namespace sluice {
namespace {

RoundedColumns rounded_columns(const ggml_tensor& tensor, std::int64_t size) {
  return {static_cast<std::byte*>(tensor.data), tensor.nb[1], size, tensor.ne[1]};
}

void round_op(ggml_tensor* dst, int ith, int nth, void* /*userdata*/) {
  const ggml_tensor& x = *dst->src[0];
  round_columns({static_cast<const float*>(x.data), x.nb[1] / sizeof(float)},
                rounded_columns(*dst, x.ne[0]), ith, nth);
}

void multiply_op(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& weights = *static_cast<const PackedMatrix*>(userdata);
  multiply(weights, rounded_columns(*dst->src[0], weights.columns()),
           static_cast<float*>(dst->data), dst->nb[1] / sizeof(float), ith, nth);
}

}  // namespace

ggml_tensor* round_columns_node(ggml_context* context, ggml_tensor* x) {
  return ggml_custom_4d(context, GGML_TYPE_I8,
                        static_cast<std::int64_t>(RoundedColumns::bytes(x->ne[0])), x->ne[1], 1, 1,
                        &x, 1, &round_op, GGML_N_TASKS_MAX, nullptr);
}

ggml_tensor* multiply_node(ggml_context* context, const PackedMatrix& weights,
                           ggml_tensor* rounded) {
  return ggml_custom_4d(context, GGML_TYPE_F32, weights.rows(), rounded->ne[1], 1, 1, &rounded, 1,
                        &multiply_op, GGML_N_TASKS_MAX, const_cast<PackedMatrix*>(&weights));
}

}  // namespace sluice
