// Wire formats end to end: ranks that are threads, on nodes of every layout.
#include <cmath>
#include <cstring>
#include <random>

#include "core/program.hpp"
#include "doctest/doctest.h"
#include "tests/engine_group.hpp"

using namespace ringleader;
using namespace ringleader::test;

namespace {

using Table = std::vector<Transfer>;

Table ring(Rank n) {
  Table table;
  for (Rank t = 0; t < 2 * (n - 1); ++t)
    for (Rank r = 0; r < n; ++r) {
      const Rank c = (r - t + 2 * n) % n;
      table.push_back(
          {t, r, c, (r + 1) % n, c, 1, static_cast<std::int16_t>(r % 2), 0, 0, static_cast<std::uint8_t>(t < n - 1)});
    }
  return table;
}

Table two_shot(Rank n) {
  Table table;
  for (Rank c = 0; c < n; ++c)
    for (Rank s = 0; s < n; ++s)
      if (s != c) table.push_back({0, s, c, c, c, 1, 0, 0, 0, 1});
  for (Rank c = 0; c < n; ++c)
    for (Rank d = 0; d < n; ++d)
      if (d != c) table.push_back({1, c, c, d, c, 1, 0, 0, 0, 0});
  return table;
}

Table one_shot(Rank n) {
  Table table;
  for (Rank d = 0; d < n; ++d)
    for (Rank s = 0; s < n; ++s)
      if (s != d) table.push_back({0, s, 0, d, 0, 1, 0, 0, 0, 1});
  return table;
}

// Ranks beyond the power of two give their contribution to a partner and get the result from it.
Table recursive_doubling(Rank n) {
  Table table;
  Rank power = 1;
  while (power * 2 <= n) power *= 2;
  std::int32_t step = 0;
  for (Rank r = power; r < n; ++r) table.push_back({step, r, 0, r - power, 0, 1, 0, 0, 0, 1});
  for (Rank distance = 1; distance < power; distance *= 2) {
    ++step;
    for (Rank r = 0; r < power; ++r) table.push_back({step, r, 0, r ^ distance, 0, 1, 0, 0, 0, 1});
  }
  ++step;
  for (Rank r = power; r < n; ++r) table.push_back({step, r - power, 0, r, 0, 1, 0, 0, 0, 0});
  return table;
}

struct Case {
  const char* name;
  Table table;
  std::int32_t chunks;
};

std::vector<Case> cases(Rank n) {
  return {{"ring", ring(n), n},
          {"two_shot", two_shot(n), n},
          {"one_shot", one_shot(n), 1},
          {"recursive_doubling", recursive_doubling(n), 1}};
}

PlanRequest request(const Table& table, Rank n, std::int32_t chunks, const std::vector<std::int32_t>& nodes,
                    std::uint64_t count, WireFormat wire, bool push, ReduceOp op) {
  PlanRequest request;
  LowerOptions options;
  options.push = push;
  options.wire = wire != WireFormat::f32;
  request.lowered = lower(table.data(), table.size(), Collective::all_reduce, n, -1, chunks, nodes, options);
  request.count = count;
  request.dtype = DType::f32;
  request.op = op;
  request.wire = wire;
  request.info.count = count;
  request.info.collective = 0;
  request.info.dtype = static_cast<std::uint8_t>(DType::f32);
  request.info.op = static_cast<std::uint8_t>(op);
  return request;
}

std::vector<float> contribution(Rank r, std::uint64_t count) {
  std::mt19937 random(static_cast<unsigned>(r) * 7919u + static_cast<unsigned>(count));
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

CommOptions small_slots() {
  CommOptions options;
  options.slot_bytes = 16 << 10;  // so that 20001 elements cross many windows
  options.small_slot_bytes = 1 << 10;
  return options;
}

const std::vector<std::vector<std::int32_t>> kLayouts{{0, 1},       {0, 1, 2},          {0, 0, 1, 1},   {0, 1, 0, 1},
                                                      {0, 0, 0, 1}, {0, 0, 0, 1, 2, 2}, {0, 1, 1, 2, 0}};

void check_group(const std::vector<std::int32_t>& nodes, WireFormat wire, bool registered) {
  EngineGroup group(nodes, 30, small_slots(), 2);
  const Rank n = group.size();
  for (const bool push : {true, false})
    for (const Case& algorithm : cases(n))
      for (const std::uint64_t count : {1u, 129u, 20001u})
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
          std::vector<std::vector<float>> results(static_cast<std::size_t>(n));
          const auto errors = group.run([&](Rank r) {
            const auto plan = group[r]->make_plan(
                request(algorithm.table, n, algorithm.chunks, nodes, count, wire, push, op));
            const std::vector<float> x = contribution(r, count);
            std::vector<float>& out = results[static_cast<std::size_t>(r)];
            out.assign(count, 0);
            if (registered) {
              auto* memory = static_cast<float*>(Arena::instance().allocate(count * 4));
              std::memcpy(memory, x.data(), count * 4);
              run_plan(group[r], plan, memory, memory);
              std::memcpy(out.data(), memory, count * 4);
              Arena::release(memory);
            } else if (push) {
              std::vector<float> in = x;
              run_plan(group[r], plan, in.data(), out.data());
              if (in != x) throw std::runtime_error("the input was changed");
            } else {
              out = x;
              run_plan(group[r], plan, out.data(), out.data());
            }
          });
          const std::string what = std::string(algorithm.name) + (push ? ", push, " : ", pull, ") +
                                   std::to_string(count) + " elements";
          for (const auto& error : errors) REQUIRE_MESSAGE(text_of(error) == "", what);
          for (Rank r = 1; r < n; ++r)
            CHECK_MESSAGE(std::memcmp(results[0].data(), results[static_cast<std::size_t>(r)].data(), count * 4) == 0,
                          what << ", rank " << r);
          std::vector<double> want(count, 0);
          for (Rank r = 0; r < n; ++r) {
            const std::vector<float> x = contribution(r, count);
            for (std::uint64_t i = 0; i < count; ++i)
              want[i] += static_cast<double>(x[i]) / (op == ReduceOp::avg ? n : 1);
          }
          double worst = 0;  // of roundings of sums of n values of magnitude up to about 5
          for (std::uint64_t i = 0; i < count; ++i)
            worst = std::max(worst, std::fabs(want[i] - static_cast<double>(results[0][i])));
          const double relative = wire == WireFormat::bf16 ? 0x1p-8 : wire == WireFormat::f16 ? 0x1p-11 : 1.0 / 127;
          if (wire != WireFormat::onebit)
            CHECK_MESSAGE(worst <= 2 * (n + 1) * relative * 5.0 * n, what << ": error " << worst);
        }
}

}  // namespace

TEST_CASE("wire engine: every algorithm, layout and format gives the same bits on every rank") {
  for (const auto& nodes : kLayouts)
    for (const WireFormat wire : {WireFormat::bf16, WireFormat::f16, WireFormat::int8, WireFormat::onebit}) {
      CAPTURE(nodes.size());
      CAPTURE(name(wire));
      check_group(nodes, wire, false);
    }
}

TEST_CASE("wire engine: registered memory") {
  for (const auto& nodes : {kLayouts[2], kLayouts[5]}) check_group(nodes, WireFormat::int8, true);
}

TEST_CASE("wire engine: the lowered programs are proved, and a wrong mark is found") {
  for (const auto& nodes : kLayouts)
    for (const bool push : {true, false})
      for (const Case& algorithm : cases(static_cast<Rank>(nodes.size()))) {
        const auto lowered = lower(algorithm.table.data(), algorithm.table.size(), Collective::all_reduce,
                                   static_cast<Rank>(nodes.size()), -1, algorithm.chunks, nodes,
                                   LowerOptions{push, true});
        const CheckReport report = check(*lowered, 3);
        CHECK_MESSAGE(report.violations.empty(),
                      algorithm.name << ": " << (report.violations.empty() ? "" : report.violations[0]));
        Lowered wrong = *lowered;  // one rank forgets to round
        bool any = false;
        for (Instr& instr : wrong.programs[0].instrs) {
          any = any || (instr.flags & kRound);
          instr.flags &= static_cast<std::uint8_t>(~kRound);
        }
        if (any) CHECK_MESSAGE(!check(wrong, 3).violations.empty(), algorithm.name);
      }
}

TEST_CASE("wire engine: messages are as small as the format promises") {
  const std::uint64_t count = 1 << 20;
  const std::pair<WireFormat, double> expected[] = {
      {WireFormat::bf16, 1.99}, {WireFormat::f16, 1.99}, {WireFormat::int8, 3.9}, {WireFormat::onebit, 20}};
  std::vector<std::uint64_t> sent;
  for (const WireFormat wire :
       {WireFormat::f32, WireFormat::bf16, WireFormat::f16, WireFormat::int8, WireFormat::onebit}) {
    EngineGroup group({0, 1, 2});
    const auto errors = group.run([&](Rank r) {
      const auto plan = group[r]->make_plan(request(ring(3), 3, 3, group.nodes(), count, wire, true, ReduceOp::sum));
      std::vector<float> x = contribution(r, count);
      run_plan(group[r], plan, x.data(), x.data());
    });
    for (const auto& error : errors) REQUIRE(text_of(error) == "");
    std::uint64_t bytes = 0;
    for (const Mesh::Peer& peer : group[0]->mesh().peers)
      for (const auto& link : peer.links) bytes += link->bytes_sent;
    sent.push_back(bytes);
  }
  for (std::size_t i = 0; i < 4; ++i)
    CHECK_MESSAGE(static_cast<double>(sent[0]) / static_cast<double>(sent[i + 1]) >= expected[i].second,
                  name(expected[i].first));
}

TEST_CASE("wire engine: ranks that disagree about the format are told both") {
  EngineGroup group({0, 1}, 10);
  const auto errors = group.run([&](Rank r) {
    const WireFormat wire = r == 0 ? WireFormat::bf16 : WireFormat::int8;
    const auto plan = group[r]->make_plan(request(one_shot(2), 2, 1, group.nodes(), 100, wire, true, ReduceOp::sum));
    std::vector<float> x(100, 1);
    run_plan(group[r], plan, x.data(), x.data());
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(kind_of(error) == ErrorKind::mismatch);
    CHECK(text_of(error).find("wire bf16") != std::string::npos);
    CHECK(text_of(error).find("wire int8") != std::string::npos);
  }
}

TEST_CASE("wire engine: only f32, only with a schedule lowered for it") {
  PlanRequest wrong = request(one_shot(2), 2, 1, {0, 1}, 10, WireFormat::int8, true, ReduceOp::sum);
  wrong.dtype = DType::f64;
  CHECK_THROWS_WITH_AS(Plan{wrong}, doctest::Contains("float32"), Error);
  wrong.dtype = DType::f32;
  wrong.wire = WireFormat::f32;
  CHECK_THROWS_WITH_AS(Plan{wrong}, doctest::Contains("lowered for a wire format"), Error);
}
