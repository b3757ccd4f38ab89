#include "base/unfinished_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

namespace sluice {
namespace {

namespace fs = std::filesystem;

class Unfinished : public testing::Test {
 protected:
  Unfinished() : folder_(fs::temp_directory_path() / ("sluice_unfinished_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Unfinished() override { fs::remove_all(folder_); }

  std::string file(const std::string& name) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << "half";
    return path;
  }
  /// How a child process ends that does this.
  static int status_of(const std::function<void()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::_exit(7);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  fs::path folder_;
};

TEST_F(Unfinished, SignalsRemoveItAndEndTheProgramAsEver) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string one = file("one"), two = file("two"), done = file("done");
    const int status = status_of([&] {
      const UnfinishedFile first(one), second(two);
      { const UnfinishedFile third(done); }
      ::raise(signal);
    });
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
    EXPECT_FALSE(fs::exists(one) || fs::exists(two)) << signal;
    EXPECT_TRUE(fs::exists(done)) << signal;
  }
}

TEST_F(Unfinished, SignalsThatSomebodyElseMindsStayTheirs) {
  const std::string path = file("kept");
  static volatile std::sig_atomic_t seen = 0;
  const int status = status_of([&] {
    std::signal(SIGINT, [](int) { seen = 1; });
    std::signal(SIGHUP, SIG_IGN);  // as nohup has it
    const UnfinishedFile unfinished(path);
    ::raise(SIGINT);
    ::raise(SIGHUP);
    ::_exit(seen == 1 ? 0 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(Unfinished, AfterwardsSignalsAreAsBefore) {
  const std::string path = file("kept");
  const int status = status_of([&] {
    { const UnfinishedFile unfinished(path); }
    struct sigaction now {};
    ::sigaction(SIGINT, nullptr, &now);
    ::_exit(now.sa_handler == SIG_DFL ? 0 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Unfinished, NoMomentOfOpeningLeavesIt) {
  const std::string path = folder_ / "new";
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) {
        std::optional<UnfinishedFile> unfinished;
        const int descriptor = open_unfinished(path, unfinished);
        ::unlink(path.c_str());
        ::close(descriptor);
      }
    }
    while (!fs::exists(path)) ::sched_yield();  // it has begun
    ::usleep(static_cast<useconds_t>(i * 7));
    ::kill(child, SIGTERM);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    EXPECT_FALSE(fs::exists(path)) << i;
  }
}

TEST_F(Unfinished, APipeIsOpenedAndNotRemoved) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  std::optional<UnfinishedFile> unfinished;
  const int descriptor = open_unfinished(path, unfinished);
  EXPECT_GE(descriptor, 0);
  EXPECT_FALSE(unfinished.has_value());
  ::close(descriptor);
  ::close(reader);
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(Unfinished, MoreThanThereIsRoomForAreLeftAlone) {
  const std::string first = file("first"), last = file("last");
  const int status = status_of([&] {
    const UnfinishedFile watched(first);
    std::optional<UnfinishedFile> others[20];
    for (auto& one : others) one.emplace(folder_ / "absent");
    const UnfinishedFile too_many(last);
    ::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(first));
  EXPECT_TRUE(fs::exists(last));
}

}  // namespace
}  // namespace sluice
