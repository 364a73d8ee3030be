// Distinct integer types for the things that sluice counts and names.
//
// Each id is a wrapped integer that compares, orders, hashes and prints, and
// that does not convert to another id. Ordering by id is what makes iteration
// and tie-breaks repeatable, so ids are never derived from pointers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace sluice {

template <class Tag, class Int>
struct Id {
  using Integer = Int;
  Int value{};

  constexpr Id() = default;
  constexpr explicit Id(Int v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

// A request as its gateway named it; unique in a cluster for the request's life.
using RequestId = Id<struct RequestTag, std::uint64_t>;
// A sequence on one instance; never reused by that instance.
using SequenceId = Id<struct SequenceTag, std::uint64_t>;
// An instance: one engine with one device's memory.
using InstanceId = Id<struct InstanceTag, std::uint32_t>;
// One life of an instance. Work is bound to it: a restarted instance is a new one.
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;
// A physical KV block: an index into one instance's arena.
using BlockId = Id<struct BlockTag, std::int32_t>;

// A vocabulary entry. A plain integer, since llama.cpp and clients speak it so.
using Token = std::int32_t;

}  // namespace sluice

template <class Tag, class Int>
struct std::hash<sluice::Id<Tag, Int>> {
  std::size_t operator()(const sluice::Id<Tag, Int>& id) const noexcept {
    return std::hash<Int>{}(id.value);
  }
};
