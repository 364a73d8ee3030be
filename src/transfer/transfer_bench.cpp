// What a handoff's transfer costs inside one process, beside memcpy of as many
// bytes in one piece. Blocks of SmolLM2-135M: 30 layers, 3 KV heads of 64, f16.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "transfer/local_transfer.h"

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 30, .num_kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16};

void BM_LocalTransfer(benchmark::State& state) {
  const auto blocks = kLayout.blocks_for(state.range(0));
  std::vector<std::byte> memory(2 * static_cast<std::size_t>(blocks) * kLayout.block_bytes(),
                                std::byte{1});
  LocalTransfer transfer({memory.data(), kLayout, 2 * blocks}, {});
  std::vector<BlockMove> moves;
  for (std::int32_t i = 0; i < blocks; ++i) moves.push_back({BlockId{i}, BlockId{blocks + i}});
  std::vector<TransferDone> done;
  for (auto _ : state) {
    if (!transfer.start(TransferTicket{1}, {}, moves)) state.SkipWithError("refused");
    while (!transfer.idle()) transfer.poll(done);
    done.clear();
  }
  state.SetBytesProcessed(state.iterations() * blocks *
                          static_cast<std::int64_t>(kLayout.block_bytes()));
}
BENCHMARK(BM_LocalTransfer)->Arg(128)->Arg(1024)->Arg(8192)->UseRealTime();

void BM_Memcpy(benchmark::State& state) {
  const auto bytes =
      static_cast<std::size_t>(kLayout.blocks_for(state.range(0))) * kLayout.block_bytes();
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}
BENCHMARK(BM_Memcpy)->Arg(128)->Arg(1024)->Arg(8192)->UseRealTime();

}  // namespace
}  // namespace sluice
