#include "main/shutdown_signals.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace glm53 {

namespace {

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

ShutdownSignals::ShutdownSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    throw std::system_error(error, std::generic_category(), "pthread_sigmask");
  }
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  if (signal_fd_ < 0) throw_errno("signalfd");
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  if (end_fd_ < 0) {
    ::close(signal_fd_);
    throw_errno("eventfd");
  }
  thread_ = std::thread([this] { receive(); });
}

ShutdownSignals::~ShutdownSignals() {
  const uint64_t one = 1;
  if (::write(end_fd_, &one, sizeof one) != sizeof one) spdlog::error("signals: eventfd cannot be written");
  thread_.join();
  ::close(end_fd_);
  ::close(signal_fd_);
}

bool ShutdownSignals::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, timeout, [this] { return stopping_; });
}

void ShutdownSignals::receive() {
  pollfd sources[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
  while (true) {
    if (::poll(sources, 2, -1) < 0) {
      if (errno == EINTR) continue;
      spdlog::error("signals: poll failed, SIGTERM will not be heard");
      return;
    }
    if (sources[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signal_fd_, &info, sizeof info) != sizeof info) continue;
    const std::string name = std::string("SIG") + sigabbrev_np(static_cast<int>(info.ssi_signo));
    if (!serving_.load()) {
      spdlog::info("{} while starting: exit", name);
      std::_Exit(0);
    }
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        spdlog::warn("second signal ({}): exit without waiting", name);
        std::_Exit(1);
      }
      stopping_ = true;
    }
    spdlog::info("{}: no new requests; running ones may finish", name);
    came_.notify_all();
  }
}

}  // namespace glm53
