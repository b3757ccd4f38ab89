// Text work of several clients: nobody's keeps that of others waiting, and it ends when nobody waits for it.
#include "server/workers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <nlohmann/json.hpp>

#include "base/background.h"
#include "base/interruption.h"
#include "text/grammar/automaton.h"
#include "text/grammar/pattern.h"
#include "text/jinja/template.h"

namespace sluice::server {
namespace {

using namespace std::chrono_literals;

constexpr auto kNoHurry = 1h;  // of functions that wait for each other

TEST(Workers, OneClientCannotHoldAll) {
  Workers workers(2, kNoHurry);
  std::promise<void> go;
  const std::shared_future<void> gate(go.get_future());
  std::atomic<int> begun = 0, most = 0, running = 0;
  for (int i = 0; i < 20; ++i) {
    workers.post("a", [&, gate] {
      ++begun;
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      gate.wait();
      --running;
    });
  }
  std::promise<void> done;
  workers.post("b", [&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(10s), std::future_status::ready);
  EXPECT_LE(begun, 2);
  go.set_value();
  std::promise<void> last;
  workers.post("a", [&] { last.set_value(); });
  EXPECT_EQ(last.get_future().wait_for(10s), std::future_status::ready);
  EXPECT_EQ(begun, 20);
  EXPECT_LE(most, 2);
}

TEST(Workers, ClientsTakeTurns) {
  std::string order;
  {
    Workers workers(1, kNoHurry);
    std::promise<void> go, begun;
    const std::shared_future<void> gate(go.get_future());
    std::mutex mutex;
    const auto note = [&](char who) {
      return [&, who] {
        const std::lock_guard lock(mutex);
        order += who;
      };
    };
    // Both threads are held by clients of their own, so that all the others wait.
    std::promise<void> held[2];
    for (int i = 0; i < 2; ++i)
      workers.post("holder " + std::to_string(i), [&held, i, gate] {
        held[i].set_value();
        gate.wait();
      });
    for (std::promise<void>& one : held) one.get_future().wait();
    for (int i = 0; i < 6; ++i) workers.post("a", note('a'));
    for (const char who : {'b', 'c'}) workers.post(std::string(1, who), note(who));
    go.set_value();
  }
  ASSERT_EQ(order.size(), 8u);
  EXPECT_LT(order.find('b'), 4u) << order;
  EXPECT_LT(order.find('c'), 5u) << order;
}

int nice_of_this_thread() { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread_id())); }

TEST(Workers, LongWorkOfSeveralClientsKeepsNobodyWaiting) {
  Workers workers(2, 100ms);
  std::promise<void> go;
  const std::shared_future<void> gate(go.get_future());
  std::atomic<int> set_back = 0, ended = 0;
  const int nice = nice_of_this_thread(), nicer = std::min(nice + 10, 19);
  for (int i = 0; i < 4; ++i)  // on three threads
    workers.post("hostile " + std::to_string(i % 2), [&, gate] {
      while (nice_of_this_thread() != nicer && gate.wait_for(1ms) != std::future_status::ready) {
      }
      ++set_back;
      gate.wait();
      ++ended;
    });
  int honest = -1;
  std::promise<void> done;
  workers.post("honest", [&] {
    honest = nice_of_this_thread();
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(10s), std::future_status::ready);
  EXPECT_EQ(honest, nice);
  EXPECT_EQ(ended, 0);
  for (const auto end = std::chrono::steady_clock::now() + 10s;
       set_back < 4 && std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(set_back, 4);
  go.set_value();
  // Who was set back is replaced: later functions of the same clients are not.
  for (int i = 0; i < 20; ++i) {
    std::promise<int> later;
    workers.post("hostile 0", [&] { later.set_value(nice_of_this_thread()); });
    EXPECT_EQ(later.get_future().get(), nice);
  }
}

TEST(Workers, ManyLongFunctionsAllRun) {
  std::atomic<int> done = 0;
  {
    Workers workers(1, 1ms);
    for (int i = 0; i < 60; ++i)
      workers.post("client " + std::to_string(i % 9), [&] {
        std::this_thread::sleep_for(4ms);
        ++done;
      });
  }  // most of them begin while it ends
  EXPECT_EQ(done, 60);
  Workers workers(1, 1ms);
  for (int i = 0; i < 60; ++i)
    workers.post("client " + std::to_string(i % 9), [&] {
      std::this_thread::sleep_for(4ms);
      ++done;
    });
  while (done < 120) std::this_thread::sleep_for(1ms);
}

TEST(Workers, EndsWhatWasPosted) {
  std::atomic<int> done = 0;
  {
    Workers workers(2);
    for (int i = 0; i < 100; ++i)
      std::make_shared<SerialQueue>(workers, "client " + std::to_string(i % 7))->post([&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

/// Milliseconds between the flag and the end of work that would take long.
template <typename Work>
double interrupted_after(Work work) {
  std::atomic<bool> gone = false;
  std::atomic<double> end = 0;
  bool was_interrupted = false;
  const auto now = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  std::thread thread([&] {
    const Interruptible guard(gone);
    try {
      work();
    } catch (const Interrupted&) {
      was_interrupted = true;
    }
    end = now();
  });
  std::this_thread::sleep_for(50ms);
  const double begin = now();
  gone = true;
  thread.join();
  EXPECT_TRUE(was_interrupted);
  return end - begin;
}

TEST(Interruption, EndsCompilingAndRendering) {
  // A second each on an idle machine; generous, because this one may be busy.
  const double compiling = interrupted_after([] {
    for (;;) {
      text::grammar::Budget budget;
      try {
        const auto expression = text::grammar::pattern_expression("^(a|b|ab|ba|[a-c]{1,9}){1,400}$", budget);
        text::grammar::automaton(*expression, budget);
      } catch (const Error&) {
      }
    }
  });
  EXPECT_LT(compiling, 1000);
  const double rendering = interrupted_after([] {
    const auto slow = text::jinja::Template::parse(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
    for (;;) {
      try {
        slow.render(nlohmann::ordered_json::object());
      } catch (const text::jinja::TemplateError&) {
      }
    }
  });
  EXPECT_LT(rendering, 1000);
  std::atomic<bool> gone = true;
  {
    const Interruptible outer(gone);
    EXPECT_THROW(Interruptible::look(), Interrupted);
  }
  Interruptible::look();  // and afterwards nothing is looked at
}

}  // namespace
}  // namespace sluice::server
