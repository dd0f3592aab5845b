#include "transport/tcp/control_connection.hpp"

#include <poll.h>

#include <cstring>
#include <random>
#include <thread>

#include "test_tcp_support.hpp"
#include "transport/tcp/tcp_stream.hpp"

namespace ringleader {
namespace {

using Type = ControlConnection::Event::Type;

ControlConnection::Event next(ControlConnection& connection) {
  ControlConnection::Event event;
  test::drive([&] { event = connection.poll(); }, [&] { return event.type != Type::none; });
  return event;
}

struct Ends {
  explicit Ends(std::pair<int, int> fds = test::tcp_pair())
      : a(fds.first, 1, "rank 1 (host b)"), b(std::make_unique<ControlConnection>(fds.second, 0, "rank 0 (host a)")) {}
  ControlConnection a;
  std::unique_ptr<ControlConnection> b;
};

}  // namespace

TEST_CASE("control: aborts and goodbyes arrive once, in order, and closing after a goodbye is no news") {
  Ends ends;
  CHECK(ends.a.poll().type == Type::none);
  CHECK(ends.a.poll_events() == POLLIN);
  ends.b->send_abort(ErrorKind::mismatch, 7, "rank 7 said “broadcast”\n");
  ends.b->send_abort(ErrorKind::timeout, 2, "a later cause");
  ends.b->send_goodbye();
  ends.b->send_goodbye();
  ends.b.reset();
  const auto abort = next(ends.a);
  CHECK(abort.type == Type::abort);
  CHECK(abort.kind == ErrorKind::mismatch);
  CHECK(abort.rank == 7);
  CHECK(abort.reason == "rank 7 said “broadcast”\n");
  CHECK(next(ends.a).type == Type::goodbye);
  test::drive([&] { CHECK(ends.a.poll().type == Type::none); }, [&] { return ends.a.poll_fd() == -1; });
}

TEST_CASE("control: inquiries, answers and the number of a later abort's first operation") {
  Ends ends;
  ends.b->send_inquiry();
  ends.b->send_answer({});
  ends.b->send_answer({2, 1'000'000, -1});
  ends.b->send_abort(ErrorKind::peer_lost, 4, "rank 4 has left", std::uint64_t{1} << 40);
  CHECK(next(ends.a).type == Type::inquiry);
  const auto nobody = next(ends.a);
  CHECK(nobody.type == Type::answer);
  CHECK(nobody.ranks.empty());
  CHECK(next(ends.a).ranks == std::vector<Rank>{2, 1'000'000, -1});
  const auto abort = next(ends.a);
  CHECK(abort.type == Type::abort);
  CHECK(abort.rank == 4);
  CHECK(abort.from == std::uint64_t{1} << 40);
  CHECK(abort.reason == "rank 4 has left");
}

TEST_CASE("control: a peer that closes without goodbye is lost, after what it said") {
  Ends ends;
  ends.b->send_abort(ErrorKind::aborted, 0, "");
  ends.b.reset();
  CHECK(next(ends.a).type == Type::abort);
  const auto lost = next(ends.a);
  CHECK(lost.type == Type::lost);
  CHECK(lost.rank == 1);
  CHECK(lost.reason.find("connection to rank 1 (host b) was lost") == 0);
  CHECK(ends.a.poll().type == Type::none);
  CHECK(ends.a.poll_fd() == -1);
  ends.a.send_abort(ErrorKind::aborted, 0, "nobody listens");  // harmless
}

TEST_CASE("control: long reasons are cut, and text that is not printable UTF-8 is replaced") {
  Ends ends;
  ends.a.send_abort(ErrorKind::internal, -1, std::string(10000, 'x'));
  CHECK(next(*ends.b).reason == std::string(ControlConnection::kMaxReason, 'x'));
  ends.b->send_abort(ErrorKind::internal, -1, "a\x1b[2Jb\xff\xe2\x82\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80 é€😀");
  CHECK(next(ends.a).reason ==
        "a?[2Jb????????"
        "???? é€😀");
}

TEST_CASE("control: a full socket delays an abort but does not lose or block it") {
  const auto fds = test::unix_pair();
  test::tiny_buffers(fds.first);
  Ends ends(fds);
  const std::string reason(ControlConnection::kMaxReason, 'r');
  char junk[1] = {};
  while (send(fds.first, junk, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {}
  ends.a.send_abort(ErrorKind::timeout, 3, reason);
  CHECK(ends.a.poll_events() == (POLLIN | POLLOUT));
  CHECK(ends.a.poll().type == Type::none);
  std::string got;
  char buffer[8192];
  test::drive(
      [&] {
        const ssize_t n = recv(fds.second, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n > 0) got.append(buffer, static_cast<std::size_t>(n));
        ends.a.poll();
      },
      [&] { return ends.a.poll_events() == POLLIN && got.size() > reason.size(); });
  for (ssize_t n = 0; (n = recv(fds.second, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
    got.append(buffer, static_cast<std::size_t>(n));
  CHECK(got.substr(got.size() - reason.size()) == reason);
}

TEST_CASE("control: frames cut anywhere are put together; arbitrary bytes end the connection") {
  std::mt19937 random(23);
  std::string good;
  {
    const auto [raw, fd] = test::unix_pair();
    ControlConnection sender(fd, 0, "rank 0");
    sender.send_abort(ErrorKind::timeout, 4, "the reason");
    char buffer[256];
    good.assign(buffer, static_cast<std::size_t>(recv(raw, buffer, sizeof buffer, 0)));
    ::close(raw);
  }
  for (int i = 0; i < 500; ++i) {
    const auto [raw, fd] = test::unix_pair();
    ControlConnection connection(fd, 0, "rank 0");
    std::string wire = good;
    if (i < 100) {
      ControlConnection::Event event;
      for (const char& byte : wire) {
        CHECK(send(raw, &byte, 1, MSG_NOSIGNAL) == 1);
        CHECK(event.type == Type::none);
        event = connection.poll();
      }
      CHECK(event.type == Type::abort);
      CHECK(event.reason == "the reason");
    } else {
      if (i % 2 == 0) {
        for (std::size_t k = 0; k < 20; ++k) wire += static_cast<char>(random());
        wire[random() % 12] = static_cast<char>(random());
      } else {
        wire.resize(random() % 9000);
        for (char& byte : wire) byte = static_cast<char>(random());
      }
      CHECK(send(raw, wire.data(), wire.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(wire.size()));
      ::shutdown(raw, SHUT_WR);
      ControlConnection::Event event;
      test::drive(
          [&] {
            event = connection.poll();
            CHECK(event.reason.size() <= ControlConnection::kMaxReason);
          },
          [&] { return connection.poll_fd() == -1; });
    }
    ::close(raw);
  }
}

TEST_CASE("control: aborting from several threads while another polls") {
  Ends ends;
  std::vector<std::thread> threads;
  for (Rank r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] { ends.b->send_abort(ErrorKind::aborted, r, "thread " + std::to_string(r)); });
  }
  const auto event = next(ends.a);
  CHECK(event.reason == "thread " + std::to_string(event.rank));
  for (auto& thread : threads) thread.join();
  ends.b.reset();
  CHECK(next(ends.a).type == Type::lost);
}

TEST_CASE("tcp stream: bytes arrive in order, a full socket takes nothing, and the end is an error") {
  const auto fds = test::unix_pair();
  test::tiny_buffers(fds.first);
  TcpStream reader(fds.second, 0, "rank 0");
  std::vector<unsigned char> out(100000), in(100000);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(i * 31 >> 3);
  CHECK(reader.read(in.data(), 10) == 0);
  {
    TcpStream writer(fds.first, 1, "rank 1");
    std::size_t sent = 0, got = 0;
    while (const std::size_t n = writer.write(out.data() + sent, out.size() - sent)) sent += n;
    CHECK(sent < out.size());
    test::drive(
        [&] {
          if (sent < out.size()) sent += writer.write(out.data() + sent, out.size() - sent);
          got += reader.read(in.data() + got, std::min<std::size_t>(777, in.size() - got));
        },
        [&] { return got == in.size(); });
    CHECK(in == out);
    CHECK(reader.read(nullptr, 0) == 0);
  }
  CHECK_THROWS_AS(reader.read(in.data(), 1), Error);
}

}  // namespace ringleader
