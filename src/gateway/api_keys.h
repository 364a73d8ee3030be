// Who may call, and how much: API keys, and what each may cost a minute.
//
// Two token buckets a key (requests, tokens), each as large as a minute's share. A request is let
// in while neither is empty; its tokens are taken when they are known, at its end, so the second
// may go below zero and the next requests wait for it. Thread-safe: the I/O threads share it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "gateway/api_error.h"
#include "gateway/gateway.h"

namespace sluice {

// A key is there once and has a name if it has a limit; limits are not negative.
[[nodiscard]] Status check_api_keys(const std::vector<ApiKey>& keys);

class ApiKeys final {
 public:
  // One request's place among its key's; gives it back at its end.
  class Use final {
   public:
    Use() = default;  // of nobody: no key is asked for
    Use(Use&& other) noexcept : keys_(std::exchange(other.keys_, nullptr)), index_(other.index_) {}
    Use& operator=(Use&& other) noexcept;
    ~Use();
    void spend(std::int64_t tokens);

   private:
    friend class ApiKeys;
    Use(ApiKeys& keys, std::size_t index) : keys_(&keys), index_(index) {}
    ApiKeys* keys_ = nullptr;
    std::size_t index_ = 0;
  };

  // What is left of a key's minute, for headers. Limits of 0 are left out.
  struct Left {
    std::int64_t limit = 0, remaining = 0;
    double full_in_s = 0;
  };
  struct State {
    Left requests, tokens;
  };

  ApiKeys(std::vector<ApiKey> keys, const Clock& clock);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  // Takes the same time whichever key it is and whichever bytes differ.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view given) const;
  [[nodiscard]] const std::string& name(std::size_t index) const;
  // 429 with the limit in its message when a bucket is empty, or too many run.
  [[nodiscard]] ApiResult<Use> admit(std::size_t index);
  [[nodiscard]] State state(std::size_t index);

 private:
  struct Bucket {
    std::int64_t a_minute = 0;
    double level = 0;
    void refill(double seconds);
    [[nodiscard]] double wait_s(double wanted) const;  // until the level is there
    [[nodiscard]] Left left() const;
  };
  struct Entry {
    ApiKey key;
    std::mutex mutex;  // guards what follows
    Bucket requests, tokens;
    std::int64_t running = 0;
    TimePoint refilled{};
  };

  void refill(Entry& entry) const;
  void leave(std::size_t index);
  void spend(std::size_t index, std::int64_t tokens);

  const Clock& clock_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

// Takes the same time whichever bytes differ; only the lengths may show.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace sluice
