// The contract of an arena of spans, on a driver: the fake one always, and a real one where
// SLUICE_TEST_CUDA=1 asks for it. Faults can be had of the fake one alone.
#include "device/span_arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "base/rng.h"
#include "device/fakes/fake_cuda.h"
#include "memory/span_wishes.h"

namespace sluice {
namespace {

struct Fake {
  cuda::FakeSet* set = nullptr;
  cuda::FakeCount* count = nullptr;

  [[nodiscard]] cuda::FakeCounts counts() const {
    cuda::FakeCounts now;
    count(&now);
    return now;
  }
};

std::shared_ptr<const CudaDriver> load(const std::string& file) {
  auto driver = CudaDriver::load(file);
  EXPECT_TRUE(driver) << driver.error().message;
  return driver ? *driver : nullptr;
}

// A device and what tests do with it. Two lanes, four and a bit tokens a granule.
class Rig {
 public:
  explicit Rig(const std::string& file) : driver_(load(file)) {
    if (driver_ == nullptr) return;
    auto opened = CudaDevice::open(driver_, 0);
    EXPECT_TRUE(opened) << opened.error().message;
    if (opened) device_ = *std::move(opened);
    if (driver_->library().bind("fake_cuda_set", fake_.set) &&
        driver_->library().bind("fake_cuda_count", fake_.count)) {
      settings({});
    }
  }

  [[nodiscard]] const CudaDevice& device() const { return *device_; }
  [[nodiscard]] bool ready() const { return device_ != nullptr; }
  [[nodiscard]] bool is_fake() const { return fake_.count != nullptr; }
  [[nodiscard]] cuda::FakeCounts counts() const { return fake_.counts(); }
  void settings(const cuda::FakeSettings& settings) const { fake_.set(&settings); }
  // Calls [first, last] from now on fail.
  void fail_calls(std::int64_t first, std::int64_t last) const {
    settings({.fail_first = first, .fail_last = last});
  }

  [[nodiscard]] std::size_t granule() const { return device_->granularity(); }
  [[nodiscard]] SpanArenaOptions options(std::int32_t granules) const {
    return {.shape = {.granule_bytes = granule(),
                      .num_lanes = 2,
                      .lane_token_bytes = granule() / 4 - 16,
                      .max_tokens = 20},
            .max_bytes = static_cast<std::size_t>(granules) * granule(),
            .max_spans = 6};
  }
  [[nodiscard]] std::unique_ptr<SpanArena> arena(std::int32_t granules) const {
    auto made = SpanArena::make(*device_, options(granules));
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }

  // A token's KV is its tag at both ends of it, in each lane.
  void write(const SpanArena& arena, std::uint64_t span, std::int64_t token,
             std::uint64_t tag) const {
    each_end(arena, span, token, [&](cuda::Pointer at) {
      EXPECT_EQ(device_->api().copy_to_device(at, &tag, sizeof tag), cuda::kSuccess);
    });
  }
  void expect(const SpanArena& arena, std::uint64_t span, std::int64_t token,
              std::uint64_t tag) const {
    each_end(arena, span, token, [&](cuda::Pointer at) {
      std::uint64_t found = 0;
      EXPECT_EQ(device_->api().copy_to_host(&found, at, sizeof found), cuda::kSuccess);
      EXPECT_EQ(found, tag) << "span " << span << " token " << token;
    });
  }

 private:
  template <class F>
  void each_end(const SpanArena& arena, std::uint64_t span, std::int64_t token, F f) const {
    ASSERT_TRUE(device_->make_current());
    const SpanShape& shape = arena.book().shape();
    for (std::int32_t lane = 0; lane < shape.num_lanes; ++lane) {
      const auto start = arena.address(SpanId(span), lane);
      ASSERT_TRUE(start.has_value()) << span;
      f(*start + shape.lane_bytes(token));
      f(*start + shape.lane_bytes(token + 1) - sizeof(std::uint64_t));
    }
  }

  std::shared_ptr<const CudaDriver> driver_;
  std::unique_ptr<CudaDevice> device_;
  Fake fake_;
};

class SpanArenaTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* wanted = std::getenv("SLUICE_TEST_CUDA");
    if (GetParam() != FAKE_CUDA && (wanted == nullptr || std::string(wanted) != "1")) {
      GTEST_SKIP() << "a real driver is used where SLUICE_TEST_CUDA=1 asks for it";
    }
    rig_ = std::make_unique<Rig>(GetParam());
    ASSERT_TRUE(rig_->ready());
  }
  void TearDown() override {
    if (rig_ == nullptr || !rig_->is_fake()) return;
    const cuda::FakeCounts left = rig_->counts();
    EXPECT_EQ(left.ranges, 0);
    EXPECT_EQ(left.granules, 0);
    EXPECT_EQ(left.handles, 0);
    EXPECT_EQ(left.mappings, 0);
  }

  std::unique_ptr<Rig> rig_;
};

INSTANTIATE_TEST_SUITE_P(Drivers, SpanArenaTest, testing::Values(FAKE_CUDA, kCudaLibrary),
                         [](const auto& test) {
                           return std::string(test.param == kCudaLibrary ? "Real" : "Fake");
                         });

TEST_P(SpanArenaTest, PrefixesAreOneMemoryAndTheRestIsEachSpansOwn) {
  const auto arena = rig_->arena(40);
  ASSERT_TRUE(arena->move_to({wish(1, 10)}));
  for (int t = 0; t < 10; ++t) rig_->write(*arena, 1, t, 100 + static_cast<std::uint64_t>(t));
  ASSERT_TRUE(arena->move_to({wish(1, 20), after(2, 20, 1, 10)}));
  for (int t = 0; t < 10; ++t) rig_->expect(*arena, 2, t, 100 + static_cast<std::uint64_t>(t));
  rig_->write(*arena, 2, 10, 7);
  rig_->write(*arena, 1, 10, 8);
  rig_->expect(*arena, 2, 10, 7);
  rig_->expect(*arena, 1, 10, 8);
  rig_->write(*arena, 1, 0, 9);  // nobody should; it shows that the memory is one
  rig_->expect(*arena, 2, 0, 9);
  ASSERT_TRUE(arena->move_to({wish(2, 20)}));
  rig_->expect(*arena, 2, 9, 109);
}

TEST_P(SpanArenaTest, NextWindowIsMappedWhileThisOneRuns) {
  const auto arena = rig_->arena(40);
  ASSERT_TRUE(arena->move_to({wish(1, 8)}));
  ASSERT_TRUE(arena->prepare({wish(1, 20), wish(2, 20)}));
  for (int t = 0; t < 8; ++t) rig_->write(*arena, 1, t, static_cast<std::uint64_t>(t));
  EXPECT_FALSE(arena->address(SpanId(2), 0).has_value());
  ASSERT_TRUE(arena->settle());
  rig_->write(*arena, 2, 19, 1);
  for (int t = 0; t < 8; ++t) rig_->expect(*arena, 1, t, static_cast<std::uint64_t>(t));
}

TEST_P(SpanArenaTest, ExportedMemoryOutlivesItsArena) {
  auto from = rig_->arena(20);
  const auto to = rig_->arena(20);
  ASSERT_TRUE(from->move_to({wish(1, 7)}));
  for (int t = 0; t < 7; ++t) rig_->write(*from, 1, t, 50 + static_cast<std::uint64_t>(t));
  EXPECT_EQ(from->export_span(SpanId(1), 8).error().code, ErrorCode::kInvalidArgument);
  {
    const auto exported = from->export_span(SpanId(1), 7);
    ASSERT_TRUE(exported) << exported.error().message;
    SpanWish taken = wish(9, 15);
    taken.import = exported->import();
    ASSERT_TRUE(to->move_to({taken}));
  }
  rig_->write(*from, 1, 6, 1);
  rig_->expect(*to, 9, 6, 1);
  from.reset();
  for (int t = 0; t < 6; ++t) rig_->expect(*to, 9, t, 50 + static_cast<std::uint64_t>(t));
  rig_->write(*to, 9, 14, 3);
  ASSERT_TRUE(to->move_to({wish(9, 15), after(10, 15, 9, 15)}));
  rig_->expect(*to, 10, 14, 3);
}

TEST_P(SpanArenaTest, MemoryThatOthersHoldIsNotTaken) {
  const auto now = rig_->device().memory();
  ASSERT_TRUE(now) << now.error().message;
  SpanArenaOptions options = rig_->options(40);
  options.reserve_bytes = now->free_bytes - 3 * rig_->granule();
  const auto arena = SpanArena::make(rig_->device(), options);
  ASSERT_TRUE(arena);
  const Status refused = (*arena)->move_to({wish(1, 8)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_TRUE((*arena)->book().spans().empty());
  EXPECT_TRUE((*arena)->move_to({wish(1, 3)}));
}

TEST_P(SpanArenaTest, RefusesAShapeThatCannotBeMapped) {
  SpanArenaOptions options = rig_->options(4);
  options.shape.granule_bytes = rig_->granule() + 4096;
  EXPECT_EQ(SpanArena::make(rig_->device(), options).error().code, ErrorCode::kInvalidArgument);
  options = rig_->options(0);
  EXPECT_EQ(SpanArena::make(rig_->device(), options).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(CudaDevice::open(load(GetParam()), 999).error().code, ErrorCode::kNotFound);
}

class SpanArenaFaults : public SpanArenaTest {};
INSTANTIATE_TEST_SUITE_P(Fake, SpanArenaFaults, testing::Values(FAKE_CUDA));

TEST_P(SpanArenaFaults, MemoryIsRecycledAndGivenBack) {
  const auto arena = rig_->arena(40);
  ASSERT_TRUE(arena->move_to({wish(1, 20), wish(2, 20)}));
  EXPECT_EQ(rig_->counts().granules, 20);
  ASSERT_TRUE(arena->move_to({wish(3, 20)}, 4));
  EXPECT_EQ(rig_->counts().granules, 14);
  EXPECT_EQ(rig_->counts().mappings, 10);
  EXPECT_EQ(rig_->counts().ranges, 2);  // of an ended span
  // Others come: what is free goes, what is mapped stays.
  rig_->settings({.others_bytes = std::size_t{64} << 20});
  ASSERT_TRUE(arena->move_to({wish(3, 20)}, 0));
  EXPECT_EQ(rig_->counts().granules, 10);
  EXPECT_EQ(arena->move_to({wish(3, 20), wish(4, 1)}).error().code, ErrorCode::kBusy);
  ASSERT_TRUE(arena->move_to({wish(4, 20)}));  // in memory of our own
}

// The descriptors are inherited; a real driver would want the other process to start by itself.
TEST_P(SpanArenaFaults, AnotherProcessReadsAndWritesWhatWasExported) {
  const auto arena = rig_->arena(20);
  ASSERT_TRUE(arena->move_to({wish(1, 7)}));
  for (int t = 0; t < 7; ++t) rig_->write(*arena, 1, t, 50 + static_cast<std::uint64_t>(t));
  const auto exported = arena->export_span(SpanId(1), 7);
  ASSERT_TRUE(exported) << exported.error().message;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto other = rig_->arena(20);
    SpanWish taken = wish(9, 15);
    taken.import = exported->import();
    if (!other->move_to({taken})) ::_exit(1);
    for (int t = 0; t < 7; ++t) rig_->expect(*other, 9, t, 50 + static_cast<std::uint64_t>(t));
    rig_->write(*other, 9, 6, 99);
    ::_exit(HasFailure() ? 2 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  rig_->expect(*arena, 1, 6, 99);
}

// Holes of any pattern serve a span: nothing has to lie side by side.
TEST_P(SpanArenaFaults, FragmentsAreAsGoodAsAWhole) {
  const auto arena = rig_->arena(12);
  std::vector<SpanWish> six;
  for (std::uint64_t s = 1; s <= 6; ++s) six.push_back(wish(s, 4));
  ASSERT_TRUE(arena->move_to(six));
  for (std::uint64_t s = 1; s <= 6; ++s) rig_->write(*arena, s, 3, s);
  EXPECT_EQ(arena->move_to({wish(7, 21)}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(arena->move_to({six[0], six[2], six[4], wish(7, 12)}));
  EXPECT_EQ(rig_->counts().granules, 12);
  for (int t = 0; t < 12; ++t) rig_->write(*arena, 7, t, 70);
  for (const std::uint64_t s : {1, 3, 5}) rig_->expect(*arena, s, 3, s);
}

// Four sequences, a shared prefix, an end, a shrinkage and something to give back.
std::vector<SpanWish> second_window() {
  return {wish(1, 20), after(4, 15, 2, 10), wish(3, 3)};
}

void fill(const Rig& rig, const SpanArena& arena) {
  for (int t = 0; t < 10; ++t) {
    rig.write(arena, 1, t, 10);
    rig.write(arena, 2, t, 20);
    rig.write(arena, 3, t, 30);
  }
}

TEST_P(SpanArenaFaults, AnyCallMayFail) {
  std::int64_t calls = 0;
  {
    const auto arena = rig_->arena(40);
    ASSERT_TRUE(arena->move_to({wish(1, 10), wish(2, 10), wish(3, 10)}, 3));
    fill(*rig_, *arena);
    rig_->settings({});
    ASSERT_TRUE(arena->move_to(second_window(), 1));
    calls = rig_->counts().calls;
  }
  ASSERT_GT(calls, 30);
  for (const bool for_good : {false, true}) {
    for (std::int64_t n = 1; n <= calls; ++n) {
      const auto arena = rig_->arena(40);
      ASSERT_TRUE(arena->move_to({wish(1, 10), wish(2, 10), wish(3, 10)}, 3));
      fill(*rig_, *arena);
      rig_->fail_calls(n, for_good ? 1'000'000 : n);
      const Status failed = arena->move_to(second_window(), 1);
      ASSERT_FALSE(failed) << n;
      EXPECT_TRUE(failed.error().code == ErrorCode::kBusy ||
                  failed.error().code == ErrorCode::kUnavailable);
      EXPECT_NE(failed.error().message.find(" failed: CUDA_ERROR_"), std::string::npos);
      arena->book().check_invariants();
      rig_->settings({});
      const cuda::FakeCounts now = rig_->counts();
      EXPECT_EQ(now.handles, arena->book().num_held()) << n;
      EXPECT_EQ(now.mappings, arena->book().num_mapped()) << n;
      rig_->expect(*arena, 1, 9, 10);
      rig_->expect(*arena, 3, 2, 30);
      // And on from there, to what was wanted.
      ASSERT_TRUE(arena->move_to(second_window(), 1)) << n;
      EXPECT_EQ(arena->book().num_mapped(), 10 + 8 + 2) << n;
      EXPECT_EQ(arena->book().num_held(), 10 + 8 + 2 + 1) << n;
      for (int t = 0; t < 10; ++t) rig_->expect(*arena, 4, t, 20);
    }
  }
}

TEST_P(SpanArenaFaults, StartingFailsInWords) {
  const auto missing = CudaDriver::load("libno-such-driver.so.1");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  const auto other = CudaDriver::load("libc.so.6");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("has no cuInit"), std::string::npos);
}

// Random windows with random faults; every token that should be there is looked at.
class RandomWorld {
 public:
  RandomWorld(const Rig& rig, std::uint64_t seed)
      : rig_(rig), rng_(seed), arena_(rig.arena(24 + static_cast<std::int32_t>(seed % 3) * 12)) {}

  void window() {
    const std::vector<SpanWish> wishes = make_wishes();
    if (rng_.uniform() < 0.3) {
      const auto first = static_cast<std::int64_t>(rng_.below(60)) + 1;
      rig_.fail_calls(first, first + static_cast<std::int64_t>(rng_.below(5)));
    }
    const Status prepared = arena_->prepare(wishes, static_cast<std::int32_t>(rng_.below(8)));
    const Status settled = arena_->settle();
    rig_.settings({});
    refused_ += prepared ? 0 : 1;
    failed_ += settled ? 0 : 1;
    arena_->book().check_invariants();
    EXPECT_EQ(rig_.counts().handles, arena_->book().num_held());
    EXPECT_EQ(rig_.counts().mappings, arena_->book().num_mapped());
    look(wishes);
  }
  [[nodiscard]] int refused() const { return refused_; }
  [[nodiscard]] int failed() const { return failed_; }

 private:
  std::vector<SpanWish> make_wishes() {
    std::vector<SpanWish> wishes;
    for (const auto& [span, tags] : tokens_) {
      if (rng_.uniform() < 0.25) continue;
      const auto now = static_cast<std::int64_t>(tags.size());
      const auto to = static_cast<std::int64_t>(rng_.below(21));
      wishes.push_back(wish(span, rng_.uniform() < 0.8 ? std::max(now, to) : std::min(now, to)));
    }
    while (wishes.size() < 6 && rng_.uniform() < 0.6) {
      SpanWish born = wish(next_++, static_cast<std::int64_t>(rng_.below(21)));
      for (const auto& [span, tags] : tokens_) {
        const auto most = std::min<std::int64_t>(born.tokens, std::ssize(tags));
        if (rng_.uniform() < 0.4) born.prefix = SpanPrefix{SpanId(span), most};
      }
      wishes.push_back(born);
    }
    return wishes;
  }

  void look(const std::vector<SpanWish>& wishes) {
    std::map<std::uint64_t, std::vector<std::uint64_t>> now;
    for (const auto& [span, range] : arena_->book().spans()) {
      if (!arena_->book().range(range).ready) continue;
      auto& tags = now[span.value];
      if (const auto known = tokens_.find(span.value); known != tokens_.end()) {
        tags = known->second;
      } else {
        const auto born = std::find_if(wishes.begin(), wishes.end(),
                                       [&](const SpanWish& w) { return w.span == span; });
        if (born->prefix) {
          tags = tokens_.at(born->prefix->from.value);
          tags.resize(static_cast<std::size_t>(born->prefix->tokens));
        }
      }
      const auto tokens = static_cast<std::size_t>(arena_->book().range(range).tokens);
      tags.resize(std::min(tags.size(), tokens));
      while (tags.size() < tokens) {
        tags.push_back(rng_());
        rig_.write(*arena_, span.value, std::ssize(tags) - 1, tags.back());
      }
    }
    tokens_ = std::move(now);
    for (const auto& [span, tags] : tokens_) {
      for (std::size_t t = 0; t < tags.size(); ++t) {
        rig_.expect(*arena_, span, static_cast<std::int64_t>(t), tags[t]);
      }
    }
  }

  const Rig& rig_;
  Rng rng_;
  std::unique_ptr<SpanArena> arena_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> tokens_;  // of ready spans
  std::uint64_t next_ = 1;
  int refused_ = 0;
  int failed_ = 0;
};

TEST_P(SpanArenaFaults, ConservesAndKeepsContentsInRandomWorlds) {
  int refused = 0;
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld world(*rig_, seed);
    for (int i = 0; i < 30; ++i) world.window();
    refused += world.refused();
    failed += world.failed();
    if (HasFailure()) break;
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(failed, 20);
}

}  // namespace
}  // namespace sluice
