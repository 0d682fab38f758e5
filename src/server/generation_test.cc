// A request's way through an engine whose thread is quicker than the server's.

#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/file.h"
#include "server/routes.h"

namespace fathom {
namespace {

// Keeps what is deferred until somebody runs it.
class PatientExchange final : public HttpExchange {
 public:
  void Respond(HttpResponse response) override { responses.push_back(std::move(response)); }
  void StartStream(HttpResponse) override { ++streams; }
  bool Write(std::string_view) override { return true; }
  void End() override {}
  void OnGone(std::function<void()>) override {}
  void Defer(std::function<void()> task) override { deferred.push_back(std::move(task)); }

  void RunDeferred() {
    for (const auto& task : std::exchange(deferred, {})) task();
  }

  std::vector<HttpResponse> responses;
  int streams = 0;
  std::vector<std::function<void()>> deferred;
};

// The first request fails before Submit returns, and what that defers runs before the second one
// is submitted. The others end when they are aborted.
class QuickEngine final : public Engine {
 public:
  explicit QuickEngine(PatientExchange& exchange) : exchange_(exchange) {}

  Result<RequestHandle> Submit(Request, std::shared_ptr<OutputSink> sink) override {
    sinks_.push_back(sink);
    const RequestHandle handle = sinks_.size();
    if (handle == 1) {
      sink->OnEnd({}, Fail(ErrorCode::kResourceExhausted, "it needs more than all caches hold"));
    } else {
      exchange_.RunDeferred();
    }
    return handle;
  }
  void Abort(RequestHandle handle) override {
    aborted.push_back(handle);
    if (handle > 1) sinks_[handle - 1]->OnEnd({}, Fail(ErrorCode::kCancelled, "gone"));
  }
  void Drain(double) override {}
  EngineStats stats() const override { return {}; }
  void set_observer(std::shared_ptr<EngineObserver>) override {}
  bool healthy() const override { return true; }
  int64_t max_model_len() const override { return 4096; }
  int64_t vocab_size() const override { return 4096; }

  std::vector<RequestHandle> aborted;

 private:
  PatientExchange& exchange_;
  std::vector<std::shared_ptr<OutputSink>> sinks_;
};

TEST(GenerationTest, WhatIsSubmittedAfterOneHasFailedIsAbortedToo) {
  const auto tokenizer =
      Tokenizer::Load(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4/tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto encoder = ChatEncoder::Create(ChatEncoding::kV4);
  ASSERT_TRUE(encoder);
  for (const std::string stream : {"false", "true"}) {
    const auto exchange = std::make_shared<PatientExchange>();
    QuickEngine engine(*exchange);
    ServerConfig config;
    config.model_id = "m";
    Routes routes(config, &engine, &*tokenizer, &*encoder);
    const std::string body = R"({"prompt":["a","b","c"],"max_tokens":9,"stream":)" + stream + "}";
    routes.Handle(
        {.method = "POST", .path = "/v1/completions", .query = {}, .headers = {}, .body = body},
        exchange);
    EXPECT_THAT(engine.aborted, testing::IsSupersetOf({2U, 3U}));
    ASSERT_EQ(exchange->responses.size(), 1U) << "its answer waits for the others";
    EXPECT_NE(exchange->responses[0].status, 200);
    EXPECT_EQ(exchange->streams, 0);
  }
}

// One place of two is held, so the second is always free for the one who asks for it.
TEST(ConcurrencySlotTest, ARefusedRequestTakesNobodysPlaceForAMoment) {
  const auto count = std::make_shared<std::atomic<int64_t>>(0);
  const auto held = ConcurrencySlot::TryTake(count, 2);
  std::atomic<int64_t> refusals{0};
  std::jthread refused([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (ConcurrencySlot::TryTake(count, 1) == nullptr) ++refusals;
    }
  });
  int64_t failures = 0;
  while (refusals < 1'000'000) failures += ConcurrencySlot::TryTake(count, 2) == nullptr ? 1 : 0;
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace fathom
