// What lowering makes of schedules: the form of the programs. That they are right is proved in test_check.cpp and
// test_lower_random.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "core/lowered_text.hpp"
#include "test_lower_cases.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

std::string text(const LoweredPtr& lowered, Rank rank) { return program_text(*lowered, rank); }

std::size_t waits_of(const Lowered& lowered, Rank rank) { return lowered.programs[rank].waits.size(); }

int count_ops(const Lowered& lowered, Rank rank, Op op) {
  const auto& instrs = lowered.programs[rank].instrs;
  return static_cast<int>(std::count_if(instrs.begin(), instrs.end(), [&](const Instr& i) { return i.op == op; }));
}

std::string refusal(const Case& c, std::vector<std::int32_t> node) {
  try {
    c.lowered(std::move(node));
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::invalid);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& whole, const std::string& part) { return whole.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("two-shot, pushed: one instruction reads all and writes all") {
  const LoweredPtr lowered = two_shot(3).lowered({0, 0, 0});
  CHECK(text(lowered, 1) ==
        "#0 reduce rank 1 data[1] and rank 2 data[1] and rank 0 data[1] = rank 0 data[1] raw + rank 1 data[1] raw + "
        "rank 2 data[1] raw final  waits (0 >= 1) (2 >= 1)  counts 2\n"
        "before reading out: waits (0 >= 2) (2 >= 2)\n"
        "before reuse: waits (0 >= 2) (2 >= 2)\n");
  CHECK(lowered->layouts[1].reach[0] == std::vector<Reach>{Reach::shared, Reach::private_, Reach::shared});
}

TEST_CASE("two-shot, pulled: what peers read initially is a snapshot") {
  const LoweredPtr lowered = two_shot(3).lowered({0, 0, 0}, false);
  const RankLayout& layout = lowered->layouts[1];
  CHECK(layout.reach[0][0] == Reach::snapshot);
  CHECK(layout.reach[0][1] == Reach::shared);  // peers read the result
  CHECK(layout.reach[0][2] == Reach::snapshot);
}

TEST_CASE("chunks of one share merge into ranges, also when they come from different transfers") {
  const LoweredPtr lowered = two_shot(4, 3).lowered({0, 0, 0, 0});
  for (Rank r = 0; r < 4; ++r) {
    REQUIRE(lowered->programs[r].instrs.size() == 1);
    CHECK(lowered->programs[r].instrs[0].dst_n == 4);
    for (const Operand& operand : lowered->programs[r].operands) {
      CHECK(operand.chunk == 3 * r);
      CHECK(operand.count == 3);
    }
  }
}

TEST_CASE("one-shot: one synchronisation, and no waits for readers") {
  for (const bool push : {true, false}) {
    const LoweredPtr lowered = one_shot(4).lowered({0, 0, 0, 0}, push);
    for (Rank r = 0; r < 4; ++r) {
      CHECK(lowered->programs[r].instrs.size() == 1);
      CHECK(waits_of(*lowered, r) == 3);
      for (const Wait& wait : lowered->programs[r].waits) CHECK(wait.count == 1);
      CHECK(lowered->layouts[r].reach[0][0] == Reach::snapshot);
      CHECK(lowered->layouts[r].scratch_chunks == 0);
      CHECK(lowered->programs[r].out_waits.empty());
      CHECK(lowered->programs[r].free_waits.size() == 3);
    }
  }
}

TEST_CASE("recursive doubling: the first hop reads initial copies, later ones are pushed into scratch") {
  const LoweredPtr lowered = doubling(4).lowered({0, 0, 0, 0});
  CHECK(text(lowered, 2) ==
        "#0 reduce rank 2 data[0] = rank 2 data[0] raw + rank 3 data[0] initial raw  waits (3 >= 1)  counts 2\n"
        "#1 copy rank 0 scratch[0] = rank 2 data[0]  waits (0 >= 1)  counts 3\n"
        "#2 reduce rank 2 data[0] = rank 2 scratch[0] + rank 2 data[0] final  waits (0 >= 3)  counts 4\n"
        "before reuse: waits (3 >= 2)\n");
  CHECK(lowered->layouts[2].scratch_chunks == 1);
}

TEST_CASE("recursive doubling over the network receives into scratch") {
  const LoweredPtr lowered = doubling(2).lowered({0, 1});
  CHECK(text(lowered, 1) ==
        "#0 send rank 1 data[0] -> rank 0 channel 0\n"
        "#1 recv rank 1 scratch[0] <- rank 0 channel 0\n"
        "#2 reduce rank 1 data[0] = rank 1 scratch[0] raw + rank 1 data[0] raw final  after #1 #0  counts 2\n");
  CHECK(lowered->layouts[1].reach[0][0] == Reach::private_);
}

TEST_CASE("network reduces fold in contribution order") {
  // Rank 1 of three nodes takes from 0 and 2: 0 comes first, its own content second, 2 last.
  Case c{"", Collective::reduce, 3, 1, 1, {transfer(0, 2, 0, 1, 0, true), transfer(0, 0, 0, 1, 0, true)}};
  CHECK(text(c.lowered({0, 1, 2}), 1) ==
        "#0 recv_reduce rank 1 data[0] = incoming + own <- rank 0 channel 0 dst-raw incoming-raw\n"
        "#1 recv_reduce rank 1 data[0] = own + incoming <- rank 2 channel 0 final incoming-raw  after #0\n");
  // At rank 2 two messages come before its own content: they meet in scratch and are folded in one go.
  c.root = 2;
  c.table = {transfer(0, 1, 0, 2, 0, true), transfer(0, 0, 0, 2, 0, true)};
  CHECK(text(c.lowered({0, 1, 2}), 2) ==
        "#0 recv rank 2 scratch[0] <- rank 0 channel 0\n"
        "#1 recv rank 2 scratch[1] <- rank 1 channel 0\n"
        "#2 reduce rank 2 data[0] = rank 2 scratch[0] raw + rank 2 scratch[1] raw + rank 2 data[0] raw final"
        "  after #0 #1  counts 2\n");
}

TEST_CASE("a peer's later access to received data waits for a publication") {
  // 0 -> 1 over the network, then 2 (on 1's node) pulls it by a reduce.
  Case c{"", Collective::all_reduce, 3, 0, 1, {transfer(0, 0, 0, 1, 0, true), transfer(1, 1, 0, 2, 0, true)}};
  const LoweredPtr lowered = c.lowered({0, 1, 1});
  CHECK(contains(text(lowered, 1), "#1 publish  after #0  counts 2\n"));
  CHECK(contains(text(lowered, 2), "waits (1 >= 2)"));
}

TEST_CASE("both ends of every link agree on the order of messages") {
  for (const Case& c : {hierarchical(2, 2), tree(5), ring(4)})
    for (const auto& node : placements(c.n)) {
      const LoweredPtr lowered = c.lowered(node);
      for (Rank a = 0; a < c.n; ++a)
        for (Rank b = 0; b < c.n; ++b) {
          std::vector<std::int32_t> sent, received;
          for (const Instr& i : lowered->programs[a].instrs)
            if (i.op == Op::send && i.peer == b) sent.push_back(lowered->programs[a].operands[i.src_first].chunk);
          for (const Instr& i : lowered->programs[b].instrs)
            if ((i.op == Op::recv || i.op == Op::recv_reduce) && i.peer == a)
              received.push_back(lowered->programs[b].operands[i.dst_first].chunk);
          CHECK(sent == received);  // these schedules keep chunk numbers
        }
    }
}

TEST_CASE("the same table always gives the same programs") {
  const Case c = hierarchical(3, 3);
  Case shuffled = c;
  std::stable_sort(shuffled.table.begin(), shuffled.table.end(),
                   [](const Transfer& a, const Transfer& b) { return a.step < b.step; });
  for (const auto& node : placements(9))
    for (Rank r = 0; r < 9; ++r) {
      CHECK(text(c.lowered(node), r) == text(c.lowered(node), r));
      CHECK(text(c.lowered(node), r) == text(shuffled.lowered(node), r));
    }
}

TEST_CASE("ranks start with different peers") {
  Case c{"", Collective::all_gather, 4, 0, 4, {}};
  for (Rank s = 0; s < 4; ++s)
    for (Rank d = 0; d < 4; ++d)
      if (s != d) c.table.push_back(transfer(0, s, s, d, s, false));
  const LoweredPtr lowered = c.lowered({0, 0, 0, 0});
  for (Rank r = 0; r < 4; ++r) {
    const RankProgram& program = lowered->programs[r];
    CHECK(program.operands[program.instrs[0].dst_first].rank == (r + 1) % 4);
  }
}

TEST_CASE("counts of sends match counts of receives, and nothing else is on the network") {
  const LoweredPtr lowered = hierarchical(2, 3).lowered({0, 0, 0, 1, 1, 1});
  for (Rank r = 0; r < 6; ++r) {
    CHECK(count_ops(*lowered, r, Op::send) == 2);
    CHECK(count_ops(*lowered, r, Op::recv) == 1);
    CHECK(count_ops(*lowered, r, Op::recv_reduce) == 1);
  }
}

TEST_CASE("layouts tell what is loaded and written") {
  Case c{"", Collective::broadcast, 2, 0, 2, {transfer(0, 0, 0, 1, 0, false, 2)}};
  const LoweredPtr lowered = c.lowered({0, 0});
  CHECK(lowered->layouts[0].loaded[0] == std::vector<std::uint8_t>{1, 1});
  CHECK(lowered->layouts[0].written[0] == std::vector<std::uint8_t>{0, 0});
  CHECK(lowered->layouts[1].loaded[0] == std::vector<std::uint8_t>{0, 0});
  CHECK(lowered->layouts[1].written[0] == std::vector<std::uint8_t>{1, 1});
  CHECK(lowered->layouts[0].reach[1].empty());  // no input
  CHECK(lowered->programs[0].instrs.size() == 1);
}

TEST_CASE("a table that cannot be lowered is refused by naming the transfer") {
  const auto table = [](std::vector<Transfer> rows) {
    return Case{"", Collective::all_reduce, 2, 0, 2, std::move(rows)};
  };
  const std::vector<std::int32_t> node{0, 0};
  CHECK(contains(refusal(table({transfer(3, 0, 0, 5, 0, true)}), node),
                 "transfer #0 (step 3, rank 0 data[0] -> rank 5 data[0], reduce): ranks must be in 0..1"));
  CHECK(contains(refusal(table({transfer(0, 0, 1, 1, 1, true, 2)}), node), "chunks must be in 0..1"));
  CHECK(contains(refusal(table({transfer(0, 0, 0, 0, 0, true)}), node), "the same chunk"));
  CHECK(contains(refusal(table({transfer(-1, 0, 0, 1, 0, true)}), node), "step must not be negative"));
  CHECK(contains(refusal(table({transfer(0, 0, 0, 1, 1, true)}), node), "different sizes"));
  CHECK(contains(refusal(table({transfer(0, 0, 0, 1, 0, false, 1, Buffer::scratch)}), node), "holds nothing yet"));
  CHECK(contains(
      refusal(table({transfer(0, 0, 0, 1, 0, false), transfer(0, 1, 1, 0, 1, true), transfer(0, 0, 0, 1, 0, true)}),
              node),
      "writes in the same step"));
  CHECK(contains(refusal(table({transfer(0, 0, 0, 1, 1 << 30, false, 1, Buffer::data, Buffer::scratch)}), node),
                 "scratch: below 4097"));
  CHECK(contains(refusal(table({}), {0}), "nodes has 1 entries"));
  Case empty = table({});
  empty.chunks = 0;
  CHECK(contains(refusal(empty, node), "chunks is 0"));
  empty.n = 0;
  CHECK(contains(refusal(empty, {}), "n is 0"));
}
