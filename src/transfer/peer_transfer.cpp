#include "transfer/peer_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice {

std::uint64_t kv_checksum(std::span<const char> bytes) {
  constexpr std::uint64_t kFactor = 0xff51afd7ed558ccdULL;
  // Four sums at a time, since each multiplication waits for the one before it.
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    std::uint64_t words[4];
    std::memcpy(words, bytes.data() + i, sizeof(words));
    for (int l = 0; l < 4; ++l) {
      lanes[l] = (lanes[l] ^ words[l]) * kFactor;
      lanes[l] ^= lanes[l] >> 32;
    }
  }
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) sum = (sum ^ lane) * kFactor;
  for (; i < bytes.size(); ++i) sum = (sum ^ static_cast<unsigned char>(bytes[i])) * kFactor;
  return sum == 0 ? 1 : sum;
}

PeerTransfer::PeerTransfer(const KvView& arena, PeerTransferOptions options, KvChannel& channel)
    : arena_(arena), options_(options), channel_(channel) {}

// --- The source ------------------------------------------------------------------

Status PeerTransfer::start(TransferTicket ticket, const TransferTarget& target,
                           std::vector<BlockMove> moves) {
  if (target.memory != kPieceMemory) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("memory \"{}\" is not reached by pieces", target.memory));
  }
  if (jobs_.size() >= options_.max_in_flight) {
    return fail(ErrorCode::kBusy, fmt::format("{} transfers are on their way already (limit {})",
                                              jobs_.size(), options_.max_in_flight));
  }
  for (const BlockMove& move : moves) {
    if (move.from.value < 0 || move.from.value >= arena_.num_blocks || move.to.value < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("from block {} of an arena of {} to block {}", move.from.value,
                              arena_.num_blocks, move.to.value));
    }
  }
  Job& job = jobs_.emplace_back();
  job.ticket = ticket;
  job.peer = {target.instance, target.incarnation};
  job.key = target.key;
  job.moves = std::move(moves);
  job.named = channel_.reads_ours(job.peer);
  return {};
}

void PeerTransfer::cancel(TransferTicket ticket) {
  for (Job& job : jobs_) {
    if (job.ticket == ticket) job.cancelled = true;
  }
}

bool PeerTransfer::may_send(const Job& job) const {
  if (job.next == job.moves.size() || job.cancelled || job.error) return false;
  const auto it = in_flight_.find(job.peer);
  return it == in_flight_.end() || it->second < options_.pieces_in_flight;
}

void PeerTransfer::send_piece(Job& job) {
  const std::size_t block_bytes = arena_.layout.block_bytes();
  const std::size_t bytes = job.named ? options_.named_piece_bytes : options_.piece_bytes;
  const std::size_t count =
      std::min(job.moves.size() - job.next, std::max<std::size_t>(1, bytes / block_bytes));
  KvPiece piece;
  piece.ticket = job.ticket;
  piece.key = job.key;
  if (!job.named) piece.bytes.reserve(count * block_bytes);
  for (const BlockMove& move : std::span(job.moves).subspan(job.next, count)) {
    piece.to.push_back(move.to);
    if (job.named) {
      piece.from.push_back(move.from);
    } else {
      const std::size_t begin = piece.bytes.size();
      piece.bytes.resize(begin + block_bytes);
      arena_.read(move.from, std::as_writable_bytes(std::span(piece.bytes).subspan(begin)));
    }
  }
  if (!job.named && options_.checksum) piece.checksum = kv_checksum(piece.bytes);
  if (!channel_.send(job.peer, std::move(piece))) {
    job.error = {ErrorCode::kTransport, "the peer is gone, or does not read", 0};
    return;
  }
  job.next += count;
  ++job.unanswered;
  ++in_flight_[job.peer];
}

void PeerTransfer::peer_lost(const KvPeer& peer) {
  in_flight_.erase(peer);
  std::erase_if(arrived_, [&](const Arrived& a) { return a.from == peer; });
  for (Job& job : jobs_) {
    if (job.peer == peer && !job.error) {
      job.error = {ErrorCode::kTransport, "the way to the peer was lost", 0};
    }
  }
}

// --- The receiver ----------------------------------------------------------------

void PeerTransfer::on_message(const KvPeer& from, KvMessage message) {
  if (auto* piece = std::get_if<KvPiece>(&message)) {
    if (arrived_.size() < options_.max_pieces) {
      arrived_.push_back({from, std::move(*piece)});
    } else {
      (void)channel_.send(
          from, KvReceipt{piece->ticket,
                          {ErrorCode::kBusy,
                           fmt::format("{} pieces wait here (limit)", options_.max_pieces), 0},
                          false});
    }
    return;
  }
  const auto& receipt = std::get<KvReceipt>(message);
  if (const auto it = in_flight_.find(from); it != in_flight_.end() && --it->second <= 0) {
    in_flight_.erase(it);
  }
  for (Job& job : jobs_) {
    if (job.ticket != receipt.ticket || job.peer != from) continue;
    job.unanswered = std::max(0, job.unanswered - 1);
    if (!receipt.ok && !job.error) job.error = receipt.error;
  }
}

// Against the reservations of this moment.
Status PeerTransfer::check(const Arrived& arrived) const {
  const KvPiece& piece = arrived.piece;
  TRY_STATUS(expected_.check(piece.key, piece.to));
  const std::size_t named = piece.from.size();
  const std::size_t carried = piece.bytes.size();
  const std::size_t block_bytes = arena_.layout.block_bytes();
  const bool whole = named > 0 ? named == piece.to.size() && carried == 0
                               : carried == piece.to.size() * block_bytes;
  if (!whole) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes and {} names came for {} blocks of {} bytes", carried, named,
                            piece.to.size(), block_bytes));
  }
  return {};
}

// As much as is left for this poll.
Status PeerTransfer::copy(Arrived& arrived, std::size_t& left) {
  const KvPiece& piece = arrived.piece;
  TRY_STATUS(check(arrived));
  if (arrived.next == 0 && piece.checksum != 0 && piece.checksum != kv_checksum(piece.bytes)) {
    return fail(ErrorCode::kTransport, "the KV that came has another checksum than what was sent");
  }
  const std::size_t block_bytes = arena_.layout.block_bytes();
  std::shared_ptr<const PeerArena> arena;
  if (!piece.from.empty()) {
    arena = channel_.arena_of(arrived.from);
    if (!arena) return fail(ErrorCode::kTransport, "the sender's arena cannot be read here");
  }
  for (; arrived.next < piece.to.size() && left > 0; ++arrived.next, --left) {
    const char* from = piece.bytes.data() + arrived.next * block_bytes;
    if (arena) {
      const auto block = static_cast<std::size_t>(piece.from[arrived.next].value);
      const std::size_t blocks = arena->bytes().size() / block_bytes;
      if (block >= blocks) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("block {} of an arena of {}", block, blocks));
      }
      from = reinterpret_cast<const char*>(arena->bytes().data()) + block * block_bytes;
    }
    arena_.write(piece.to[arrived.next], std::as_bytes(std::span(from, block_bytes)));
  }
  return {};
}

void PeerTransfer::copy_arrived() {
  std::size_t left =
      std::max<std::size_t>(1, options_.bytes_a_poll / arena_.layout.block_bytes());  // blocks
  while (!arrived_.empty() && left > 0) {
    Arrived& first = arrived_.front();
    Status copied = copy(first, left);
    if (copied && first.next < first.piece.to.size()) return;
    KvReceipt receipt{first.piece.ticket, {}, copied.has_value()};
    if (!copied) receipt.error = std::move(copied.error());
    // Who does not hear it is lost, and finds that out by itself.
    (void)channel_.send(first.from, std::move(receipt));
    arrived_.pop_front();
  }
}

// --- Both ------------------------------------------------------------------------

bool PeerTransfer::busy() const {
  if (!arrived_.empty()) return true;
  return std::any_of(jobs_.begin(), jobs_.end(), [this](const Job& job) {
    const bool over =
        job.cancelled || job.error || (job.next == job.moves.size() && job.unanswered == 0);
    return over || may_send(job);
  });
}

void PeerTransfer::poll(std::vector<TransferDone>& done) {
  copy_arrived();
  const std::size_t block_bytes = arena_.layout.block_bytes();
  for (Job& job : jobs_) {
    while (may_send(job)) send_piece(job);
  }
  std::erase_if(jobs_, [&](Job& job) {
    const bool all = job.next == job.moves.size() && job.unanswered == 0;
    if (!job.cancelled && !job.error && !all) return false;
    TransferDone& told = done.emplace_back();
    told.ticket = job.ticket;
    told.bytes = static_cast<std::int64_t>(job.next * block_bytes);
    told.transport = job.named ? "shm" : "grpc";
    if (job.error) {
      told.outcome = TransferOutcome::kFailed;
      told.error = std::move(*job.error);
    } else {
      told.outcome = job.cancelled ? TransferOutcome::kCancelled : TransferOutcome::kDone;
    }
    return true;
  });
}

}  // namespace sluice
