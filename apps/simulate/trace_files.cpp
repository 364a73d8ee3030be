#include "trace_files.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "json_traces.h"
#include "lines.h"

namespace sluice {
namespace {

constexpr NamedTrace kNamed[] = {
    {"conversation", "mooncake/conversation_trace.jsonl.gz"},
    {"mooncake-first1000", "mooncake/mooncake_trace_first1000.jsonl.gz"},
    {"flexlb", "flexlb/trace_30min.jsonl.gz"},
    {"azure-code", "azure/AzureLLMInferenceTrace_code.csv.gz"},
    {"azure-conv", "azure/AzureLLMInferenceTrace_conv.csv.gz"},
    {"agents", "agentic_coding/requests.jsonl.gz"},
    {"sharegpt", "lengths/sharegpt_v3_lens.csv.gz"},
    {"sharegpt-predicted", "lengths/sharegpt_val_predicted_len.csv.gz"},
    {"sharegpt-8k", "lengths/sharegpt_8k_filtered_llama2.csv.gz"},
    {"lmsys", "lengths/lmsys_chat_poisson0.25_llama.csv.gz"},
    {"summarization", "lengths/summarization_poisson0.25_llama.csv.gz"},
    {"servegen-mid", "servegen/m-mid_rates.csv.gz"},
    {"servegen-small", "servegen/m-small_rates.csv.gz"},
    {"servegen-reasoning", "servegen/deepseek-r1_rates.csv.gz"},
};

// Seconds of a wall-clock time, "2023-11-16 18:17:03.9799600"; days count from 2000.
std::optional<double> wall_clock(std::string_view text) {
  constexpr std::size_t kDate = 10;
  if (text.size() < 19 || text[4] != '-' || text[7] != '-') return std::nullopt;
  const auto year = number_of(text.substr(0, 4));
  const auto month = number_of(text.substr(5, 2));
  const auto day = number_of(text.substr(8, 2));
  const auto hour = number_of(text.substr(kDate + 1, 2));
  const auto minute = number_of(text.substr(kDate + 4, 2));
  // Some exports carry a time zone after the seconds: all rows the same.
  const auto second =
      number_of(text.substr(kDate + 7, text.find_first_of("+Z", kDate) - kDate - 7));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::sys_days days = std::chrono::year(static_cast<int>(*year)) /
                                     static_cast<unsigned>(*month) / static_cast<unsigned>(*day);
  const auto since = days - std::chrono::sys_days(std::chrono::year(2000) / 1 / 1);
  return 86400.0 * static_cast<double>(since.count()) + *hour * 3600 + *minute * 60 + *second;
}

// The columns that a CSV format names, and the unit of its times.
struct CsvFormat {
  const char* time;  // null: no times, one request a second
  const char* prompt;
  const char* output;
  double unit_s;  // 0: wall clock
};
constexpr CsvFormat kFormats[] = {
    {"TIMESTAMP", "ContextTokens", "GeneratedTokens", 0},
    {"Timestamp", "Request tokens", "Response tokens", 1},
    {"StartTimeOffset", "ContextTokens", "GeneratedTokens", 1e-9},
    {nullptr, "num_prefill_tokens", "num_decode_tokens", 1},
};

Result<Trace> parse_csv(const std::string& path, const std::string& text) {
  Lines lines(text);
  const auto header = fields_of(lines.next().value_or(""));
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  const auto* format = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& f) {
    return (f.time == nullptr || column(f.time) < header.size()) &&
           column(f.prompt) < header.size() && column(f.output) < header.size();
  });
  if (format == std::end(kFormats)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: line 1: the columns are those of no format that is known", path));
  }
  const std::size_t prompt_at = column(format->prompt);
  const std::size_t output_at = column(format->output);
  const std::size_t time_at = format->time == nullptr ? header.size() : column(format->time);
  Trace trace;
  double first = -1;
  for (auto line = lines.next(); line; line = lines.next()) {
    const auto fields = fields_of(*line);
    const auto bad = [&](std::string_view what) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: line {}: {}", path, lines.number(), what));
    };
    if (fields.size() != header.size()) {
      return bad(fmt::format("{} fields; the header has {}", fields.size(), header.size()));
    }
    const auto prompt = number_of(fields[prompt_at]);
    const auto output = number_of(fields[output_at]);
    if (!prompt || !output || *prompt < 0 || *output < 0 || *prompt > 1e8 || *output > 1e8) {
      return bad("token counts must be numbers from 0 to 100000000");
    }
    std::optional<double> time = static_cast<double>(trace.requests.size());
    if (time_at < header.size()) {
      time = format->unit_s == 0 ? wall_clock(fields[time_at]) : number_of(fields[time_at]);
      if (time && format->unit_s > 0) *time *= format->unit_s;
    }
    if (!time) return bad(fmt::format("\"{}\" is not a time", fields[time_at]));
    if (first < 0) first = *time;
    if (*prompt < 1 || *output < 1) continue;
    trace.requests.push_back({.arrival = from_seconds(*time - first),
                              .prompt_tokens = static_cast<std::int32_t>(*prompt),
                              .output_tokens = static_cast<std::int32_t>(*output)});
  }
  put_in_order(trace);
  return trace;
}

}  // namespace

std::span<const NamedTrace> named_traces() {
  return kNamed;
}

Result<std::string> read_file(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");  // plain files pass through
  if (file == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("{} cannot be read", path));
  }
  std::string text;
  std::array<char, 1 << 16> buffer{};
  int got = 0;
  while ((got = gzread(file, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  const int closed = gzclose(file);
  if (got < 0 || closed != Z_OK) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is damaged", path));
  }
  return text;
}

Result<Trace> parse_trace(const std::string& path, const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is empty", path));
  }
  auto trace = text[begin] == '{' ? parse_json_trace(path, text) : parse_csv(path, text);
  if (trace && trace->requests.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} has no request with an answer", path));
  }
  return trace;
}

Result<Trace> parse_synthetic(const std::string& words, std::uint64_t seed) {
  std::array<double, 4> numbers{};
  std::string_view rest = words;
  for (double& number : numbers) {
    const std::size_t end = rest.find(':');
    const auto value = number_of(rest.substr(0, end));
    if (!value || !(*value > 0) || *value > 1e8) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("\"{}\" is not REQUESTS:RATE:PROMPT:ANSWER, each above 0 and at most "
                              "100000000",
                              words));
    }
    number = *value;
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  }
  return synthesize({.requests = static_cast<std::size_t>(numbers[0]),
                     .rate = numbers[1],
                     .median_prompt = numbers[2],
                     .median_output = numbers[3],
                     .seed = seed});
}

Result<Trace> read_trace(const TraceSource& source) {
  std::string path = source.name_or_path;
  constexpr std::string_view kSynthetic = "synthetic:";
  if (path.starts_with(kSynthetic)) {
    TRY(Trace made, parse_synthetic(path.substr(kSynthetic.size()), source.seed));
    made.name = path;
    return made;
  }
  for (const NamedTrace& named : kNamed) {
    if (path == named.name) path = source.folder + "/" + named.path;
  }
  constexpr std::string_view kRates = "_rates.csv";
  TRY(const std::string text, read_file(path));
  Trace trace;
  if (const std::size_t at = path.rfind(kRates); at != std::string::npos) {
    std::string beside = path;
    beside.replace(at, kRates.size(), "_lengths.jsonl");
    TRY(const std::string lengths, read_file(beside));
    TRY(trace, draw_servegen(text, lengths, source));
  } else {
    TRY(trace, parse_trace(path, text));
    if (source.begin > Duration::zero() || source.end < Duration::max()) {
      cut(trace, source.begin, source.end);
    }
  }
  if (trace.requests.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} has no request between {} s and {} s", source.name_or_path,
                            to_seconds(source.begin), to_seconds(source.end)));
  }
  trace.name = source.name_or_path;
  return trace;
}

}  // namespace sluice
