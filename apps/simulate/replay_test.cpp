#include "replay.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::json;

Json load(int instance, double wait_s) {
  return {{"instance", instance},
          {"incarnation", "1f"},
          {"present", true},
          {"role", "unified"},
          {"draining", false},
          {"age_ns", 5000000},
          {"step_s", 0.01},
          {"token_s", 0.001},
          {"wait_s", wait_s},
          {"window_end_s", 0.2},
          {"crowd", 1.02},
          {"decode_s", 0.1},
          {"running", 1},
          {"waiting", 0},
          {"max_running", 8},
          {"kv_tokens", 100},
          {"uncomputed_tokens", 0},
          {"waiting_blocks", 0},
          {"total_blocks", 100},
          {"block_tokens", 16},
          {"output_quantiles", {5, 20, 90}},
          {"free_blocks", {{0, 90}, {0.5, 80}}},
          {"ledger", {{"tokens", 0}, {"blocks", 0}, {"requests", 0}}}};
}

Json decision(const char* policy, int chosen) {
  return {{"request", "00000000000000ab"},
          {"policy", policy},
          {"role", "prefill"},
          {"by", "global"},
          {"instance", chosen},
          {"prompt_tokens", 100},
          {"max_new_tokens", 50},
          {"inputs",
           {{"rng", {"1", "2", "3", "ffffffffffffffff"}},
            {"turn", 1},
            {"cached", {{{"instance", 1}, {"tokens", 64}}}},
            {"refused", Json::array()},
            {"table_rows", 2},
            {"loads", {load(0, 0.01), load(1, 4.0)}}}}};
}

Json file_of(Json decisions) {
  return {{"decisions", std::move(decisions)}};
}

TEST(Replay, ReadsWhatAServerSays) {
  Json old = decision("forecast", 0);
  old.erase("inputs");
  Json second = decision("least-peak", 1);
  second["by"] = 7;
  second["instance"] = nullptr;
  const auto file =
      parse_decisions("d.json", file_of({second, old, decision("forecast", 0)}).dump());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->without_inputs, 1U);
  ASSERT_EQ(file->decisions.size(), 2U);
  const RecordedDecision& first = file->decisions[0];  // newest last
  EXPECT_EQ(first.policy, "forecast");
  EXPECT_EQ(first.by, "global");
  EXPECT_EQ(first.chosen, InstanceId{0});
  EXPECT_EQ(first.inputs->query.prompt_tokens, 100);
  EXPECT_EQ(first.inputs->query.cached.at(0).tokens, 64);
  EXPECT_EQ(first.inputs->state.rng.state()[3], ~std::uint64_t{0});
  const LoadRow& row = first.inputs->rows.at(1);
  EXPECT_EQ(row.wait_s, 4.0);
  EXPECT_EQ(row.incarnation, Incarnation{0x1f});
  EXPECT_EQ(first.inputs->query.now - row.received_at, std::chrono::milliseconds(5));
  EXPECT_EQ(row.num_points, 2U);
  EXPECT_EQ(row.point_free[1], 80);
  EXPECT_EQ(file->decisions[1].by, "7");
  EXPECT_FALSE(file->decisions[1].chosen);
}

TEST(Replay, SaysWhoElseWouldHaveBeenChosenAndWhatThatCosts) {
  const auto file = parse_decisions(
      "d.json", file_of({decision("forecast", 0), decision("round-robin", 1)}).dump());
  ASSERT_TRUE(file) << file.error().message;
  ReplayOptions options;
  options.policies = {"forecast", "round-robin", "prefix-affinity"};
  const auto choices = replay_decisions(file->decisions, options);
  ASSERT_EQ(choices.size(), 6U);
  EXPECT_EQ(choices[0].chosen, InstanceId{0}) << "it need not wait 4 s";
  EXPECT_EQ(choices[1].chosen, InstanceId{0});
  EXPECT_EQ(choices[2].chosen, InstanceId{1}) << "its turn, as recorded";
  EXPECT_EQ(choices[3].chosen, InstanceId{0}) << "and then the next";
  EXPECT_EQ(choices[4].chosen, InstanceId{1}) << "holds the prompt";
  EXPECT_NEAR(choices[0].predicted.ttft_s, 0.01 + 100 * 0.001, 1e-12);
  EXPECT_NEAR(choices[2].predicted.ttft_s, 4 + 36 * 0.001, 1e-12);
  EXPECT_NEAR(choices[0].predicted_recorded.ttft_s, 4 + 36 * 0.001, 1e-12);
  EXPECT_GT(choices[0].predicted.peak, 0.2);

  const std::string table = replay_table(choices);
  EXPECT_NE(table.find("(as recorded)"), std::string::npos);
  EXPECT_NE(table.find("prefix-affinity"), std::string::npos);
  const std::string csv = replay_csv(choices);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
  EXPECT_NE(csv.find("forecast,prefill,00000000000000ab,global,round-robin,100,1,0,"),
            std::string::npos);
  const Json json = Json::parse(replay_json(choices));
  EXPECT_EQ(json["choices"].size(), 6U);
  EXPECT_EQ(json["choices"][0]["chosen"]["instance"], 0);
}

TEST(Replay, BadFilesAreRefusedWithThePlace) {
  struct Case {
    const char* where;  // JSON pointer into the file
    Json value;
    const char* said;
  };
  const Case cases[] = {
      {"/decisions", 3, "decisions: an array of"},
      {"/decisions/0/role", "waiter", "decisions[0].role: unified, prefill or decode"},
      {"/decisions/0/request", "xyz", "decisions[0].request: a hexadecimal number"},
      {"/decisions/0/prompt_tokens", 0, "decisions[0].prompt_tokens: a whole number of 1 to"},
      {"/decisions/0/prompt_tokens", 1e10, "decisions[0].prompt_tokens: a whole number"},
      {"/decisions/0/instance", 9, "decisions[0].instance: an instance of which there is no load"},
      {"/decisions/0/inputs/rng", {"1"}, "decisions[0].inputs.rng: an array of 4 to 4"},
      {"/decisions/0/inputs/loads/1/instance", 0, "decisions[0].inputs.loads[1]: its instance"},
      {"/decisions/0/inputs/loads/1/token_s", -1, "loads[1].token_s: a number of 0 to"},
      {"/decisions/0/inputs/loads/1/token_s", nullptr, "loads[1].token_s: a number of 0 to"},
      {"/decisions/0/inputs/loads/0/block_tokens", 0, "loads[0].block_tokens: a whole number of 1"},
      {"/decisions/0/inputs/loads/0/kv_tokens", ~std::uint64_t{0}, "loads[0].kv_tokens: a whole"},
      {"/decisions/0/inputs/loads/0/free_blocks/1", {0.5}, "free_blocks[1]: an array of 2 to 2"},
      {"/decisions/0/inputs/loads/0/free_blocks/0/0", 0.6, "free_blocks[1][0]: a number of 0.6"},
      {"/decisions/0/inputs/loads/0/present", "yes", "loads[0].present: true or false"},
  };
  for (const Case& c : cases) {
    Json file = file_of({decision("forecast", 0)});
    file[Json::json_pointer(c.where)] = c.value;
    const auto read = parse_decisions("d.json", file.dump());
    ASSERT_FALSE(read) << c.where;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(read.error().message.starts_with("d.json: ")) << read.error().message;
    EXPECT_NE(read.error().message.find(c.said), std::string::npos) << read.error().message;
  }
  Json file = file_of({decision("forecast", 0)});
  file["decisions"][0]["inputs"]["loads"][0].erase("ledger");
  EXPECT_EQ(parse_decisions("d.json", file.dump()).error().message,
            "d.json: decisions[0].inputs.loads[0]: has no \"ledger\"");
  EXPECT_EQ(parse_decisions("d.json", "{").error().message, "d.json is not JSON");
  EXPECT_EQ(parse_decisions("d.json", "[]").error().message,
            "d.json: the whole: an object is wanted");
}

}  // namespace
}  // namespace sluice
