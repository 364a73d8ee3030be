// The JSON writer against a reader that is not ours.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "gateway/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonWriter, PutsCommasWhereTheyBelong) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("a", 1).key("b").begin_array().value(true).null().value("x");
  json.begin_object().end_object().begin_array().end_array().end_array();
  json.key("c").raw("[1]").member("d", 0.5).member("e", std::nan("")).end_object();
  EXPECT_EQ(text, R"({"a":1,"b":[true,null,"x",{},[]],"c":[1],"d":0.5,"e":null})");
}

TEST(JsonWriter, StringsSurviveAndBrokenOnesAreMended) {
  struct Case {
    std::string in;
    std::string out;
  };
  const std::string mark = "\xEF\xBF\xBD";
  for (const Case& c : {Case{"", ""}, Case{"a\"b\\c\n\r\t\x01", "a\"b\\c\n\r\t\x01"},
                        Case{"Grüße 🙂", "Grüße 🙂"},
                        Case{"a\xff"
                             "b",
                             "a" + mark + "b"},
                        Case{"\xc3", mark}, Case{std::string("\0", 1), std::string("\0", 1)}}) {
    std::string text;
    append_json_string(text, c.in);
    EXPECT_EQ(Json::parse(text).get<std::string>(), c.out);
  }
  Rng rng(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(rng.below(12), ' ');
    for (char& c : bytes) c = static_cast<char>(rng());
    std::string text;
    append_json_string(text, bytes);
    ASSERT_TRUE(Json::accept(text));
  }
}

TEST(JsonWriter, NumbersComeBackExactly) {
  Rng rng(5);
  for (int round = 0; round < 10'000; ++round) {
    const double number =
        (rng.uniform() - 0.5) * std::pow(10.0, static_cast<double>(rng.below(40)) - 20);
    std::string text;
    JsonWriter(text).value(number);
    ASSERT_EQ(Json::parse(text).get<double>(), number);
  }
}

}  // namespace
}  // namespace sluice
