// Schedules for the tests of lowering and of its proofs, written as plainly as possible.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "core/program.hpp"

namespace ringleader::testing {

struct Case {
  std::string name;
  Collective collective;
  Rank n;
  Rank root;
  std::int32_t chunks;
  std::vector<Transfer> table;

  LoweredPtr lowered(std::vector<std::int32_t> node, bool push = true) const {
    LowerOptions options;
    options.push = push;
    return lower(table.data(), table.size(), collective, n, root, chunks, std::move(node), options);
  }
};

inline Transfer transfer(std::int32_t step, Rank src, std::int32_t src_chunk, Rank dst, std::int32_t dst_chunk,
                         bool reduce, std::int32_t count = 1, Buffer src_buffer = Buffer::data,
                         Buffer dst_buffer = Buffer::data) {
  return {step,
          src,
          src_chunk,
          dst,
          dst_chunk,
          count,
          0,
          static_cast<std::uint8_t>(src_buffer),
          static_cast<std::uint8_t>(dst_buffer),
          static_cast<std::uint8_t>(reduce)};
}

inline Case ring(Rank n) {
  Case c{"ring", Collective::all_reduce, n, 0, n, {}};
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r) c.table.push_back(transfer(t, r, (r - t + n) % n, (r + 1) % n, (r - t + n) % n, true));
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r) {
      const std::int32_t chunk = (r + 1 - t + n) % n;
      c.table.push_back(transfer(n - 1 + t, r, chunk, (r + 1) % n, chunk, false));
    }
  return c;
}

inline Case one_shot(Rank n) {
  Case c{"one_shot", Collective::all_reduce, n, 0, 1, {}};
  for (Rank d = 0; d < n; ++d)
    for (Rank s = 0; s < n; ++s)
      if (s != d) c.table.push_back(transfer(0, s, 0, d, 0, true));
  return c;
}

// `m` chunks per rank's share
inline Case two_shot(Rank n, std::int32_t m = 1) {
  Case c{"two_shot", Collective::all_reduce, n, 0, n * m, {}};
  for (Rank d = 0; d < n; ++d)
    for (Rank s = 0; s < n; ++s)
      for (std::int32_t k = 0; k < m; ++k) {
        if (s == d) continue;
        c.table.push_back(transfer(0, s, d * m + k, d, d * m + k, true));
        c.table.push_back(transfer(1, d, d * m + k, s, d * m + k, false));
      }
  return c;
}

inline Case doubling(Rank n) {  // n a power of two
  Case c{"recursive_doubling", Collective::all_reduce, n, 0, 1, {}};
  std::int32_t step = 0;
  for (Rank mask = 1; mask < n; mask *= 2, ++step)
    for (Rank r = 0; r < n; ++r) c.table.push_back(transfer(step, r, 0, r ^ mask, 0, true));
  return c;
}

inline Case tree(Rank n) {
  Case c{"binomial", Collective::all_reduce, n, 0, 1, {}};
  std::vector<Transfer> down;
  std::int32_t steps = 0;
  for (Rank mask = 1; mask < n; mask *= 2) ++steps;
  std::int32_t step = 0;
  for (Rank mask = 1; mask < n; mask *= 2, ++step)
    for (Rank r = 0; r + mask < n; r += 2 * mask) {
      c.table.push_back(transfer(step, r + mask, 0, r, 0, true));
      c.table.push_back(transfer(2 * steps - 1 - step, r, 0, r + mask, 0, false));
    }
  return c;
}

// Reduce-scatter inside each node, ring across nodes, all-gather inside.
inline Case hierarchical(Rank nodes, Rank per) {
  const Rank n = nodes * per;
  Case c{"hierarchical", Collective::all_reduce, n, 0, n, {}};
  const auto rank = [&](Rank node, Rank local) { return node * per + local; };
  for (Rank g = 0; g < nodes; ++g)
    for (Rank d = 0; d < per; ++d)
      for (Rank s = 0; s < per; ++s) {
        if (s == d) continue;
        c.table.push_back(transfer(0, rank(g, s), d * nodes, rank(g, d), d * nodes, true, nodes));
        c.table.push_back(transfer(2 * nodes, rank(g, d), d * nodes, rank(g, s), d * nodes, false, nodes));
      }
  for (Rank t = 0; t < nodes - 1; ++t)
    for (Rank g = 0; g < nodes; ++g)
      for (Rank p = 0; p < per; ++p) {
        const std::int32_t up = p * nodes + (g - t + nodes) % nodes, down = p * nodes + (g + 1 - t + nodes) % nodes;
        c.table.push_back(transfer(1 + t, rank(g, p), up, rank((g + 1) % nodes, p), up, true));
        c.table.push_back(transfer(nodes + t, rank(g, p), down, rank((g + 1) % nodes, p), down, false));
      }
  return c;
}

inline Case all_to_all(Rank n) {
  Case c{"all_to_all", Collective::all_to_all, n, 0, n, {}};
  for (Rank s = 0; s < n; ++s)
    for (Rank d = 0; d < n; ++d) c.table.push_back(transfer(0, s, d, d, s, false, 1, Buffer::input, Buffer::output));
  return c;
}

// Every rank's block moves one rank on in one step: all chunks are read and written at once. Ends as a plain
// all_gather.
inline Case rotating_gather(Rank n) {
  Case c{"rotating_gather", Collective::all_gather, n, 0, n, {}};
  for (Rank r = 0; r < n; ++r) c.table.push_back(transfer(0, r, r, r, 0, false, 1, Buffer::data, Buffer::scratch));
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r)  // scratch[0] of all ranks turns around the ring: one big exchange per step
      c.table.push_back(transfer(2 * t + 1, r, 0, (r + 1) % n, 0, false, 1, Buffer::scratch, Buffer::scratch));
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r) {
      const Rank from = (r - t - 1 + n) % n;
      c.table.push_back(transfer(2 * t + 2, r, 0, r, from, false, 1, Buffer::scratch, Buffer::data));
    }
  return c;
}

inline Case dissemination(Rank n) {
  Case c{"dissemination", Collective::barrier, n, 0, 1, {}};
  std::int32_t step = 0;
  for (Rank hop = 1; hop < n; hop *= 2, ++step)
    for (Rank r = 0; r < n; ++r) c.table.push_back(transfer(step, r, 0, (r + hop) % n, 0, true));
  return c;
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Rank n : {1, 2, 3, 4, 5, 8}) {
    for (const Case& c : {ring(n), one_shot(n), two_shot(n), two_shot(n, 3), tree(n), all_to_all(n), rotating_gather(n),
                          dissemination(n)})
      cases.push_back(c);
    if ((n & (n - 1)) == 0) cases.push_back(doubling(n));
  }
  for (const Rank nodes : {1, 2, 3})
    for (const Rank per : {1, 2, 3}) cases.push_back(hierarchical(nodes, per));
  return cases;
}

// How the ranks of a case may lie on nodes.
inline std::vector<std::vector<std::int32_t>> placements(Rank n) {
  std::vector<std::vector<std::int32_t>> out(4);
  for (Rank r = 0; r < n; ++r) {
    out[0].push_back(0);      // one node
    out[1].push_back(r);      // all apart
    out[2].push_back(r / 2);  // neighbours together
    out[3].push_back(r % 2);  // neighbours apart
  }
  return out;
}

}  // namespace ringleader::testing
