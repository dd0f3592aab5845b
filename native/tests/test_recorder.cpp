// The flight recorder: what it keeps, and what a reader sees while it is written.
#include "core/recorder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "doctest/doctest.h"

using namespace ringleader;

namespace {

OpInfo info_of(std::uint64_t sequence) {
  OpInfo info;
  info.sequence = sequence;
  info.count = sequence * 3;
  for (auto& extent : info.shape) extent = static_cast<std::int64_t>(sequence);
  return info;
}

struct Seen {
  OpInfo info;
  std::uint64_t version, begun, ended;
  std::uint32_t state;
};

const RecorderHeader& header_of(const std::string& copy) {
  return *reinterpret_cast<const RecorderHeader*>(copy.data());
}

Seen record_of(const std::string& copy, std::size_t slot) {
  const RecorderHeader& header = header_of(copy);
  const auto& record = *reinterpret_cast<const Record*>(copy.data() + header.header_bytes + slot * sizeof(Record));
  Seen seen{{}, record.version.load(), record.begun.load(), record.ended.load(), record.state.load()};
  std::memcpy(static_cast<void*>(&seen.info), record.info, sizeof(OpInfo));
  return seen;
}

}  // namespace

TEST_CASE("recorder: the last operations are kept, with times and how they ended") {
  Recorder recorder(16);
  CHECK(recorder.capacity() == 16);
  for (std::uint64_t i = 1; i <= 40; ++i) {
    recorder.begin(info_of(i), i, 0, 0);
    CHECK(recorder.operation(i).count == 3 * i);
    if (i < 40) recorder.end(i, i == 39 ? RecordState::failed : RecordState::done);
  }
  const std::string copy = recorder.snapshot();
  for (std::uint64_t i = 25; i <= 40; ++i) {
    const Seen seen = record_of(copy, i % 16);
    CHECK(seen.version == i + 1);
    CHECK(seen.info.shape[5] == static_cast<std::int64_t>(i));
    CHECK(seen.begun != 0);
    CHECK((seen.ended >= seen.begun) == (i < 40));
    const RecordState state = i == 40 ? RecordState::running : i == 39 ? RecordState::failed : RecordState::done;
    CHECK(seen.state == static_cast<std::uint32_t>(state));
  }
  CHECK(header_of(copy).operations.load() == 40);
}

TEST_CASE("recorder: an operation of the same plan leaves the description and takes a new number") {
  Recorder recorder(16);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    OpInfo info = info_of(7);
    info.sequence = i;
    info.history = static_cast<std::uint32_t>(i * i);
    recorder.begin(info, 99, 0, 0);
    CHECK(recorder.operation(i).sequence == i);
    CHECK(recorder.operation(i).history == i * i);
    CHECK(recorder.operation(i).count == 21);
  }
}

TEST_CASE("recorder: strings are kept once, and refused when there is no room") {
  Recorder recorder(16);
  const std::uint32_t first = recorder.string("train.py:3 in step");
  CHECK(first != 0);
  CHECK(recorder.string("train.py:3 in step") == first);
  CHECK(recorder.string("train.py:4 in step") != first);
  std::uint32_t last = 1;
  for (int i = 0; i < 100'000 && last != 0; ++i) last = recorder.string("line " + std::to_string(i));
  CHECK(last == 0);
  CHECK(recorder.string("train.py:3 in step") == first);
}

TEST_CASE("recorder: a file holds the same, and outlives the recorder") {
  const std::string path = "/tmp/ringleader-recorder-test-" + std::to_string(::getpid());
  ::unlink(path.c_str());
  {
    Recorder recorder;
    recorder.open(32, path, 1, 4, "host", "job\nworld\n0-3");
    recorder.begin(info_of(1), 1, 0, recorder.string("a.py:1"));
    recorder.fail("rank 2 died");
    recorder.fail("a later cause");
    struct stat status{};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    Recorder other;
    CHECK_THROWS_WITH_AS(other.open(32, path, 1, 4, "host", ""), doctest::Contains("File exists"), Error);
    other.begin(info_of(1), 1, 0, 0);  // in memory
  }
  std::ifstream file(path, std::ios::binary);
  const std::string copy((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ::unlink(path.c_str());
  const RecorderHeader& header = header_of(copy);
  CHECK(header.magic == RecorderHeader::kMagic);
  CHECK(header.rank == 1);
  CHECK(std::string(header.group) == "job\nworld\n0-3");
  CHECK(std::string(header.cause) == "rank 2 died");
  CHECK(record_of(copy, 1).info.count == 3);
}

TEST_CASE("recorder: a folder that does not exist is an error, and recording goes on in memory") {
  Recorder recorder;
  CHECK_THROWS_WITH_AS(recorder.open(16, "/nowhere/at/all", 0, 2, "host", ""), doctest::Contains("/nowhere/at/all"),
                       Error);
  recorder.begin(info_of(1), 1, 0, 0);
  CHECK(record_of(recorder.snapshot(), 1).version == 2);
}

TEST_CASE("recorder: who reads meanwhile sees whole records, or that they are not") {
  Recorder recorder(16);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 20'000; ++i) {
      recorder.begin(info_of(i), 0, 0, 0);
      recorder.end(i, RecordState::done);
      const std::uint64_t message = recorder.message(true, 1, static_cast<std::int64_t>(i), i, 0);
      recorder.end_message(message, RecordState::done);
    }
    stop = true;
  });
  int whole = 0, torn = 0;
  while (!stop) {
    const std::string copy = recorder.snapshot();
    for (std::size_t slot = 0; slot < 16; ++slot) {
      const Seen seen = record_of(copy, slot);
      if (seen.version == 0) continue;
      ++whole;
      torn += seen.version != seen.info.sequence + 1 || seen.info.count != 3 * seen.info.sequence ||
              seen.info.shape[5] != static_cast<std::int64_t>(seen.info.sequence);
    }
  }
  writer.join();
  const std::string copy = recorder.snapshot();
  for (std::uint64_t i = 20'000 - 15; i <= 20'000; ++i) CHECK(record_of(copy, i % 16).info.count == 3 * i);
  CHECK(whole > 0);
  CHECK(torn == 0);
}
