#include "json_traces.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lines.h"

namespace sluice {
namespace {

using nlohmann::json;

// Ids of blocks, numbers or strings of digits.
std::uint64_t block_id(const json& value) {
  if (value.is_number_integer()) return value.get<std::uint64_t>();
  const auto text = value.get<std::string>();
  std::uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::runtime_error("\"" + text + "\" is no block id");
  }
  return id;
}

void add_blocks(const json& ids, Trace& trace, TraceRequest& request) {
  request.first_block = static_cast<std::uint32_t>(trace.blocks.size());
  request.num_blocks = static_cast<std::uint32_t>(ids.size());
  for (const json& id : ids) trace.blocks.push_back(block_id(id));
}

Duration milliseconds_of(const json& value) {
  return from_seconds(value.get<double>() * 1e-3);
}

std::int32_t tokens_of(const json& value) {
  const double tokens = value.get<double>();
  if (!(tokens >= 0 && tokens <= 1e8)) {
    throw std::runtime_error("token counts must be from 0 to 100000000");
  }
  return static_cast<std::int32_t>(tokens);
}

// Each reader adds the row's request, if it has an answer; what is missing throws.
void read_mooncake(const json& row, Trace& trace) {
  trace.block_tokens = 512;
  TraceRequest r{.arrival = milliseconds_of(row.at("timestamp")),
                 .prompt_tokens = tokens_of(row.at("input_length")),
                 .output_tokens = tokens_of(row.at("output_length"))};
  if (r.prompt_tokens < 1 || r.output_tokens < 1) return;
  add_blocks(row.at("hash_ids"), trace, r);
  trace.requests.push_back(r);
}

void read_flexlb(const json& row, Trace& trace) {
  trace.block_tokens = 1024;
  TraceRequest r{.arrival = milliseconds_of(row.at("ts")),
                 .prompt_tokens = tokens_of(row.at("il")),
                 .output_tokens = tokens_of(row.at("ol"))};
  if (r.prompt_tokens < 1 || r.output_tokens < 1) return;
  add_blocks(row.at("bh"), trace, r);
  trace.requests.push_back(r);
}

// Sessions start one minute apart: the trace has no times of its own, only think
// times. Block ids are a session's own; a request has the first `prefix_same` of
// the one before it.
class AgentReader {
 public:
  void read(const json& row, Trace& trace) {
    trace.block_tokens = 64;
    const auto session = row.at("session").get<std::uint64_t>();
    const auto agent = row.at("agent").get<std::uint64_t>();
    Conversation& c = conversations_[{session, agent}];
    c.ids.resize(std::min<std::size_t>(c.ids.size(), row.at("prefix_same").get<std::size_t>()));
    for (const json& run : row.at("new_runs")) {
      for (std::uint64_t k = 0; k < run.at(1).get<std::uint64_t>(); ++k) {
        c.ids.push_back(run.at(0).get<std::uint64_t>() + k);
      }
    }
    TraceRequest r{.prompt_tokens = tokens_of(row.at("in")),
                   .output_tokens = tokens_of(row.at("out"))};
    if (r.prompt_tokens < 1 || r.output_tokens < 1) return;
    r.first_block = static_cast<std::uint32_t>(trace.blocks.size());
    r.num_blocks = static_cast<std::uint32_t>(c.ids.size());
    for (const std::uint64_t id : c.ids) trace.blocks.push_back(session << 32 | id);
    r.after = c.last;
    if (c.last >= 0) {
      r.arrival = from_seconds(row.value("think_time", 0.0));
    } else {
      r.arrival = std::chrono::minutes(static_cast<int>(conversations_.size()) - 1);
    }
    c.last = static_cast<std::int32_t>(trace.requests.size());
    trace.requests.push_back(r);
  }

 private:
  struct Conversation {
    std::int32_t last = -1;
    std::vector<std::uint64_t> ids;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Conversation> conversations_;
};

}  // namespace

Result<Trace> parse_json_trace(const std::string& path, const std::string& text) {
  Trace trace;
  AgentReader agents;
  Lines lines(text);
  for (auto line = lines.next(); line; line = lines.next()) {
    try {
      const json row = json::parse(*line);
      if (row.contains("timestamp")) {
        read_mooncake(row, trace);
      } else if (row.contains("ts")) {
        read_flexlb(row, trace);
      } else if (row.contains("session")) {
        agents.read(row, trace);
      } else {
        throw std::runtime_error("the names are those of no format that is known");
      }
    } catch (const std::exception& e) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: line {}: {}", path, lines.number(), e.what()));
    }
  }
  put_in_order(trace);
  return trace;
}

}  // namespace sluice
