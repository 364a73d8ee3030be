#include "transfer/local_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice {

LocalTransfer::LocalTransfer(const KvView& arena, LocalTransferOptions options)
    : arena_(arena), options_(options) {}

Status LocalTransfer::start(TransferTicket ticket, const TransferTarget& target,
                            std::vector<BlockMove> moves) {
  if (!target.memory.empty()) {
    return fail(ErrorCode::kInvalidArgument, "that memory is not of this process");
  }
  if (jobs_.size() >= options_.max_in_flight) {
    return fail(ErrorCode::kBusy, fmt::format("{} transfers are on their way already (limit {})",
                                              jobs_.size(), options_.max_in_flight));
  }
  const auto known = [this](BlockId block) {
    return block.value >= 0 && block.value < arena_.num_blocks;
  };
  for (const BlockMove& move : moves) {
    if (!known(move.from) || !known(move.to) || move.from == move.to) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("from block {} to block {} of an arena of {}", move.from.value,
                              move.to.value, arena_.num_blocks));
    }
  }
  jobs_.push_back({.ticket = ticket, .moves = std::move(moves)});
  return {};
}

void LocalTransfer::cancel(TransferTicket ticket) {
  for (Job& job : jobs_) {
    if (job.ticket == ticket) job.cancelled = true;
  }
}

void LocalTransfer::copy_block(BlockId from, BlockId to) {
  const std::size_t bytes = arena_.layout.block_bytes();
  if (arena_.base != nullptr) {
    std::memcpy(arena_.at(to), arena_.at(from), bytes);
    return;
  }
  staging_.resize(bytes);
  arena_.read(from, staging_);
  arena_.write(to, staging_);
}

void LocalTransfer::poll(std::vector<TransferDone>& done) {
  const std::size_t block_bytes = arena_.layout.block_bytes();
  std::size_t left = std::max<std::size_t>(1, options_.bytes_a_poll / block_bytes);  // blocks
  while (!jobs_.empty()) {
    Job& job = jobs_.front();
    while (!job.cancelled && job.next < job.moves.size() && left > 0) {
      const BlockMove& move = job.moves[job.next++];
      copy_block(move.from, move.to);
      --left;
    }
    if (!job.cancelled && job.next < job.moves.size()) return;
    done.push_back({.ticket = job.ticket,
                    .outcome = job.cancelled ? TransferOutcome::kCancelled : TransferOutcome::kDone,
                    .bytes = static_cast<std::int64_t>(job.next * block_bytes),
                    .error = {},
                    .transport = "local"});
    jobs_.pop_front();
  }
}

}  // namespace sluice
