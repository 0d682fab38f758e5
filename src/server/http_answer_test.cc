// The order in which an answer's maker, its client and its connection may come, without sockets or
// threads: what is posted runs when the test says so.

#include "server/http_answer.h"

#include <gtest/gtest.h>

#include <deque>

namespace fathom {
namespace {

class FakeHost final : public HttpAnswerHost {
 public:
  FakeHost() : HttpAnswerHost(10) {}
  void Defer(std::function<void()> task) override { task(); }
};

class FakeConnection final : public HttpConnection {
 public:
  void Post(std::function<void()> task) override { tasks.push_back(std::move(task)); }
  void Wake() override { ++wakes; }
  void Close() override { ++closes; }
  bool Writable() override { return writable; }
  std::string Peer() const override { return "a test"; }
  void RunAll() {
    while (!tasks.empty()) {
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }

  std::deque<std::function<void()>> tasks;
  int wakes = 0;
  int closes = 0;
  bool writable = true;
};

class HttpAnswerTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FakeHost> host_ = std::make_shared<FakeHost>();
  std::shared_ptr<FakeConnection> connection_ = std::make_shared<FakeConnection>();
  std::shared_ptr<HttpAnswer> answer_ = std::make_shared<HttpAnswer>(host_, connection_);
  int gone_ = 0;
};

TEST_F(HttpAnswerTest, WhatComesAfterATakeWakesAgain) {
  answer_->StartStream({});
  EXPECT_TRUE(answer_->Write("a"));  // the wake-up of the head is still to come
  EXPECT_EQ(connection_->tasks.size(), 1U);
  EXPECT_EQ(answer_->Take().bytes, "a");  // the connection looked before it was woken
  EXPECT_TRUE(answer_->Write("b"));
  connection_->RunAll();
  EXPECT_EQ(connection_->wakes, 2);
  EXPECT_EQ(answer_->Take().bytes, "b");
  answer_->End();
  connection_->RunAll();
  EXPECT_EQ(connection_->wakes, 3);
  EXPECT_TRUE(answer_->Take().ended);
}

TEST_F(HttpAnswerTest, TheClientsEndIsToldOnce) {
  answer_->StartStream({});
  answer_->OnGone([this] { ++gone_; });
  answer_->MarkGone();
  answer_->MarkGone();
  EXPECT_EQ(gone_, 1);
  EXPECT_FALSE(answer_->Write("a"));
  answer_->OnGone([this] { ++gone_; });  // at once
  EXPECT_EQ(gone_, 2);
  answer_->End();
  EXPECT_TRUE(answer_->Take().gone);
}

TEST_F(HttpAnswerTest, AClientThatLeavesAfterTheEndIsNobodysConcern) {
  const auto held = std::make_shared<int>(0);
  answer_->OnGone([this, held] { ++gone_; });
  answer_->Respond({});
  answer_->Take();
  answer_->Finish();
  EXPECT_EQ(held.use_count(), 1);  // the callback may own what owns this answer
  answer_->MarkGone();
  answer_->OnGone([this, held] { ++gone_; });
  EXPECT_EQ(gone_, 0);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(HttpAnswerTest, OnlyWhoTakesNothingIsCutOff) {
  const auto write = [this](int times) {
    for (int i = 0; i < times; ++i) EXPECT_TRUE(answer_->Write("12345"));
  };
  answer_->OnGone([this] { ++gone_; });
  answer_->StartStream({});
  write(4);
  connection_->RunAll();  // late, but it could write
  connection_->writable = false;
  answer_->Take();
  write(2);
  connection_->RunAll();
  EXPECT_EQ(gone_, 0);
  write(2);
  answer_->Take();  // written before anybody judged
  connection_->RunAll();
  EXPECT_EQ(gone_, 0);
  EXPECT_TRUE(answer_->Write("one event that is longer than the limit"));
  write(2);
  connection_->RunAll();
  EXPECT_EQ(gone_, 0);
  write(1);
  connection_->RunAll();
  EXPECT_EQ(gone_, 1);
  EXPECT_EQ(connection_->closes, 1);
  EXPECT_FALSE(answer_->Write("a"));
}

TEST_F(HttpAnswerTest, FailuresNeverLookLikeAWholeAnswer) {
  answer_->Fail({.status = 500});
  EXPECT_EQ(answer_->Take().response->status, 500);
  EXPECT_EQ(connection_->closes, 0);
  const auto stream = std::make_shared<HttpAnswer>(host_, connection_);
  stream->OnGone([this] { ++gone_; });
  stream->StartStream({});
  stream->Fail({.status = 500});
  connection_->RunAll();
  EXPECT_EQ(gone_, 1);
  EXPECT_EQ(connection_->closes, 1);
  EXPECT_TRUE(stream->Take().gone);
}

TEST_F(HttpAnswerTest, OutlivesItsConnection) {
  answer_->StartStream({});
  connection_.reset();
  for (int i = 0; i < 9; ++i) answer_->Write("12345");
  answer_->Fail({.status = 500});
  answer_->End();
  EXPECT_EQ(host_->answering, 1);
  answer_.reset();
  EXPECT_EQ(host_->answering, 0);
}

}  // namespace
}  // namespace fathom
