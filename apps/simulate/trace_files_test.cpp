#include "trace_files.h"

#include <gtest/gtest.h>

#include "cluster_file.h"
#include "simulate_options.h"
#include "svg.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

TEST(TraceFiles, EveryFormatIsKnownByItsFirstLine) {
  struct Case {
    const char* name;
    const char* text;
    std::int32_t block_tokens;
  };
  const Case cases[] = {
      {"mooncake",
       "{\"timestamp\": 1000, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
       "{\"timestamp\": 3000, \"input_length\": 20, \"output_length\": 6, \"hash_ids\": [7]}\n",
       512},
      {"flexlb",
       "{\"ts\": 1000, \"il\": 700, \"ol\": 5, \"bh\": [\"123\"]}\n"
       "{\"ts\": 1500, \"il\": 9, \"ol\": 0, \"bh\": []}\n"  // never answered
       "{\"ts\": 3000, \"il\": 20, \"ol\": 6, \"bh\": []}\n",
       1024},
      {"azure",
       "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
       "2023-11-16 23:59:59.0000000,700,5\r\n2023-11-17 00:00:01.0000000,20,6\r\n",
       0},
      {"burstgpt",
       "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
       "5,ChatGPT,700,5,705,Conversation log\n7,GPT-4,20,6,26,API log\n",
       0},
      {"offsets",
       "StartTimeOffset,ContextTokens,GeneratedTokens\n1000000000,700,5\n3000000000,20,6\n", 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto trace = parse_trace(c.name, c.text);
    ASSERT_TRUE(trace) << trace.error().message;
    ASSERT_EQ(trace->requests.size(), 2U);
    EXPECT_EQ(trace->requests[1].arrival - trace->requests[0].arrival, 2s);
    EXPECT_EQ(trace->requests[0].prompt_tokens, 700);
    EXPECT_EQ(trace->requests[0].output_tokens, 5);
    EXPECT_EQ(trace->requests[1].output_tokens, 6);
    EXPECT_EQ(trace->block_tokens, c.block_tokens);
  }
  const auto lengths = parse_trace("l", "num_prefill_tokens,num_decode_tokens\n4,5\n6,7\n");
  ASSERT_TRUE(lengths);
  EXPECT_EQ(lengths->requests[1].arrival, 1s);
}

TEST(TraceFiles, SessionsThinkBetweenTheirRequests) {
  const char* text =
      "{\"session\":3,\"agent\":0,\"i\":0,\"t\":0,\"in\":200,\"out\":9,\"prefix_same\":0,"
      "\"new_runs\":[[0,3]]}\n"
      "{\"session\":3,\"agent\":0,\"i\":1,\"t\":5,\"in\":260,\"out\":9,\"prefix_same\":2,"
      "\"new_runs\":[[9,2]],\"think_time\":4}\n";
  const auto trace = parse_trace("agents", text);
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].after, 0);
  EXPECT_EQ(trace->requests[1].arrival, 4s);
  const auto first = trace->prompt(0);
  const auto second = trace->prompt(1);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 128, second.begin()));
  EXPECT_NE(first[128], second[128]);
}

TEST(TraceFiles, BadRowsAreNamedByLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "empty"},
      {"a,b\n1,2\n", "line 1"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4,5\nyesterday,4,5\n",
       "line 3"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4\n", "line 2"},
      {"num_prefill_tokens,num_decode_tokens\n4,5\n6,-7\n", "line 3"},
      {"num_prefill_tokens,num_decode_tokens\n0,0\n", "no request"},
      {"{\"timestamp\": 0, \"input_length\": 5}\n", "line 1"},
      {"{\"timestamp\": 0\n", "line 1"},
      {"{\"ts\": 0, \"il\": 2000, \"ol\": 5, \"bh\": [\"x\"]}\n", "block id"},
      {"{\"when\": 0}\n", "no format"}};
  for (const auto& [text, expected] : cases) {
    const auto trace = parse_trace("file", text);
    ASSERT_FALSE(trace) << text;
    EXPECT_NE(trace.error().message.find(expected), std::string::npos) << trace.error().message;
  }
  const auto missing = read_trace({.name_or_path = "no/such/file"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

TEST(TraceFiles, SyntheticOnesAreDrawn) {
  const auto trace = read_trace({.name_or_path = "synthetic:2000:50:300:40", .seed = 3});
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2000U);
  EXPECT_NEAR(to_seconds(trace->span()), 40, 4);
  int longer = 0;
  for (const TraceRequest& r : trace->requests) longer += r.prompt_tokens > 300 ? 1 : 0;
  EXPECT_NEAR(longer, 1000, 100);
  EXPECT_FALSE(read_trace({.name_or_path = "synthetic:2000:50"}));
  EXPECT_FALSE(read_trace({.name_or_path = "synthetic:2000:0:1:1"}));
}

TEST(TraceFiles, ServeGenIsDrawnAtTheClientsRates) {
  const std::string rates =
      "client,t,rate,cv,pattern,arg1,arg2\n"
      "0,0,2,1,Gamma,1,0.5\n0,600,0.5,2,Weibull,0.6,1\n7,600,1,1,Gamma,4,0.25\n";
  const std::string lengths =
      "{\"client\":0,\"t\":0,\"input_tokens\":{\"n\":4,\"v\":[10,20],\"c\":[1,3]},"
      "\"output_tokens\":{\"n\":null,\"v\":[5],\"p\":[1.0]}}\n";
  const auto trace = draw_servegen(rates, lengths, {.end = 1200s, .seed = 4});
  ASSERT_TRUE(trace) << trace.error().message;
  int early = 0;
  double prompts = 0;
  for (const TraceRequest& r : trace->requests) {
    early += r.arrival < 600s ? 1 : 0;
    prompts += r.prompt_tokens;
    EXPECT_EQ(r.output_tokens, 5);
  }
  const auto n = static_cast<double>(trace->requests.size());
  EXPECT_NEAR(early, 1200, 150);
  EXPECT_NEAR(n - early, 900, 200);
  EXPECT_NEAR(prompts / n, 17.5, 0.6);
  EXPECT_FALSE(draw_servegen("client\n1,2\n", lengths, {}));
  EXPECT_FALSE(draw_servegen(rates, "{}\n", {}));
}

TEST(ClusterFile, WordsAndYaml) {
  const auto words = read_cluster("3xh100-8b+1xa100-8b");
  ASSERT_TRUE(words) << words.error().message;
  EXPECT_EQ(words->nodes.size(), 4U);
  EXPECT_EQ(words->devices[3]->name, "a100-8b");
  const auto yaml = parse_cluster(
      "instances:\n  - {count: 2, device: h200-8b, kv_tokens: 3200, block_tokens: 32, "
      "mixed_step_ratio: 1.5}\n"
      "network: {report_delay_ms: 250}\n"
      "faults: [{kind: crash, instance: 1, at_s: 3}]\n");
  ASSERT_TRUE(yaml) << yaml.error().message;
  EXPECT_EQ(yaml->nodes[1].engine.kv.num_blocks, 100);
  EXPECT_DOUBLE_EQ(yaml->nodes[1].engine.batch.mixed_step_ratio, 1.5);
  EXPECT_EQ(yaml->network.report_delay, 250ms);
  EXPECT_EQ(yaml->faults[0].at, 3s);
}

TEST(ClusterFile, Roles) {
  auto cluster = parse_cluster(
      "instances:\n  - {count: 2, device: h100-8b, role: prefill}\n  - {count: 3, device: "
      "h100-8b}\n"
      "network: {kv_gbit_per_s: 100, mail_loss: 0.25}\n");
  ASSERT_TRUE(cluster) << cluster.error().message;
  EXPECT_EQ(cluster->nodes[1].role, Role::kPrefill);
  EXPECT_EQ(cluster->nodes[2].role, Role::kUnified);
  EXPECT_EQ(cluster->nodes[2].kv_token_bytes, 131072);
  EXPECT_DOUBLE_EQ(cluster->network.kv_bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster->network.mail_loss, 0.25);
  ASSERT_TRUE(set_roles(*cluster, 1, 2));
  const auto roles = [&] {
    std::vector<Role> all;
    for (const NodeOptions& node : cluster->nodes) all.push_back(node.role);
    return all;
  };
  EXPECT_EQ(roles(), (std::vector<Role>{Role::kPrefill, Role::kDecode, Role::kDecode,
                                        Role::kUnified, Role::kUnified}));
  EXPECT_FALSE(set_roles(*cluster, 3, 3));  // of five
  EXPECT_FALSE(set_roles(*cluster, 0, 5));  // and nobody prefills
}

TEST(ClusterFile, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"instances: []\n", "missing"},
      {"instances: [{device: abacus}]\n", "no device"},
      {"instances: [{device: h100-8b, mixed_step_ratio: 0.5}]\n", "from 1 to 100"},
      {"instances: [{count: 2}]\n", "device"},
      {"instances: [{device: h100-8b, role: decoder}]\n", "unified, prefill or decode"},
      {"instances:\n  - {device: h100-8b, count: 0}\n", "from 1 to 20000"},
      {"instances: [{device: h100-8b}]\nnetwrok: {}\n", "netwrok"},
      {"instances: [{device: h100-8b}]\nfaults: [{kind: crash, instance: 1}]\n", "from 0 to 0"},
      {"instances: [\n", "line"}};
  for (const auto& [text, expected] : cases) {
    const auto cluster = parse_cluster(text);
    ASSERT_FALSE(cluster) << text;
    EXPECT_NE(cluster.error().message.find(expected), std::string::npos) << cluster.error().message;
  }
  EXPECT_FALSE(read_cluster("sixteen"));
}

TEST(ServiceLevel, Text) {
  const auto level = parse_service_level("ttft=1.5s,tpot=30ms,prefill=2");
  ASSERT_TRUE(level);
  EXPECT_DOUBLE_EQ(level->ttft_s, 1.5);
  EXPECT_DOUBLE_EQ(level->tpot_s, 0.03);
  EXPECT_DOUBLE_EQ(level->ttft_prefill_factor, 2);
  EXPECT_FALSE(parse_service_level("ttft"));
  EXPECT_FALSE(parse_service_level("tpot=-1"));
}

TEST(Svg, ADistributionEndsAtOneAndTextIsEscaped) {
  const Line line = distribution_of("a<b", {3, 1, 2});
  EXPECT_DOUBLE_EQ(line.points.back().first, 3);
  EXPECT_DOUBLE_EQ(line.points.back().second, 1);
  const std::string svg =
      svg_of({.title = "t", .x = "x", .y = "y", .lines = {line, {"empty", {}}}});
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace sluice
