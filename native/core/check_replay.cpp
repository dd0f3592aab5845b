#include <algorithm>
#include <queue>

#include "core/check.hpp"
#include "core/lowered_text.hpp"

namespace ringleader::checking {

namespace {

// A task is a rank's next in-order instruction (its number is the rank) or a message (n + its number). Tasks that
// cannot run sleep on the first thing they miss.
class Replay {
 public:
  Replay(const Facts& facts, std::uint64_t seed, Report& report)
      : facts_(facts),
        lowered_(facts.lowered),
        report_(report),
        memory_(make_memory(facts)),
        values_(facts, memory_, seed),
        order_(facts),
        random_(mix(seed ^ 0x5eed)),
        n_(lowered_.n),
        count_(lowered_.programs.size(), 0),
        sleepers_(lowered_.programs.size()),
        done_(facts.total, 0),
        waiting_(facts.total, -1),
        initial_readers_(lowered_.programs.size()) {}

  void run() {
    for (Rank rank = 0; rank < n_; ++rank) ready_.push_back(rank);
    for (const std::int32_t message : facts_.first) ready_.push_back(n_ + message);
    while (!ready_.empty() && !report_.full()) {
      random_ = mix(random_);
      std::swap(ready_[random_ % ready_.size()], ready_.back());
      const std::int32_t task = ready_.back();
      ready_.pop_back();
      if (task < n_)
        step(task);
      else
        move(task - n_);
    }
    if (finished_ != facts_.total) {
      if (!report_.full()) report_deadlock();
      return;
    }
    check_end();
    values_.check_final(memory_, report_);
  }

 private:
  static Memory make_memory(const Facts& facts) {
    bool used[kBufferCount];
    std::vector<std::int32_t> scratch;
    for (int b = 0; b < 3; ++b) used[b] = !facts.lowered.layouts[0].reach[b].empty();
    used[3] = true;
    for (const RankLayout& layout : facts.lowered.layouts) scratch.push_back(layout.scratch_chunks);
    return Memory(facts.state, used, scratch);
  }

  void step(Rank rank) {
    if (count_[rank] == 0) {  // enters the window
      reach_count(rank);
      ready_.push_back(rank);
      return;
    }
    if (at_end(rank)) return;
    const std::uint32_t index = facts_.in_order[rank][count_[rank] - 1];
    if (!may_run(rank, index, rank)) return;
    order_.advance(rank, facts_.instr(rank, index));
    reduce(rank, index);
    finish(rank, index);
    reach_count(rank);
    ready_.push_back(rank);
  }

  void move(std::int32_t number) {
    const Message& message = facts_.messages[number];
    const std::int32_t task = n_ + number;
    for (const Rank rank : {message.src, message.dst})
      if (count_[rank] < 1) return sleepers_[rank].push({1, task});
    if (!may_run(message.src, message.send, task) || !may_run(message.dst, message.recv, task)) return;
    transfer(message);
    finish(message.src, message.send);
    finish(message.dst, message.recv);
    if (message.next >= 0) ready_.push_back(n_ + message.next);
  }

  bool at_end(Rank rank) const { return count_[rank] == facts_.in_order[rank].size() + 1; }

  // What the instruction misses: -1 nothing, else the position of a wait, or (from wait_n on) of a dependency.
  std::int32_t missing(Rank rank, std::uint32_t index) const {
    const RankProgram& program = lowered_.programs[rank];
    const Instr& instr = program.instrs[index];
    for (std::uint32_t i = 0; i < instr.wait_n; ++i) {
      const Wait& wait = program.waits[instr.wait_first + i];
      if (count_[wait.rank] < wait.count) return static_cast<std::int32_t>(i);
    }
    for (std::uint32_t i = 0; i < instr.dep_n; ++i)
      if (!done_[facts_.number(rank, program.deps[instr.dep_first + i])])
        return static_cast<std::int32_t>(instr.wait_n + i);
    return -1;
  }

  bool may_run(Rank rank, std::uint32_t index, std::int32_t task) {
    const std::int32_t miss = missing(rank, index);
    if (miss < 0) return true;
    const RankProgram& program = lowered_.programs[rank];
    const Instr& instr = program.instrs[index];
    const auto at = static_cast<std::uint32_t>(miss);
    if (at < instr.wait_n) {
      const Wait& wait = program.waits[instr.wait_first + at];
      sleepers_[wait.rank].push({wait.count, task});
    } else {
      std::int32_t& head = waiting_[facts_.number(rank, program.deps[instr.dep_first + at - instr.wait_n])];
      sleep_list_.push_back({task, head});
      head = static_cast<std::int32_t>(sleep_list_.size()) - 1;
    }
    return false;
  }

  void reach_count(Rank rank) {
    const std::uint32_t count = ++count_[rank];
    auto& heap = sleepers_[rank];
    while (!heap.empty() && heap.top().count <= count) {
      ready_.push_back(heap.top().task);
      heap.pop();
    }
  }

  void finish(Rank rank, std::uint32_t index) {
    const std::size_t number = facts_.number(rank, index);
    done_[number] = 1;
    ++finished_;
    for (std::int32_t i = waiting_[number]; i >= 0; i = sleep_list_[i].next) ready_.push_back(sleep_list_[i].task);
    waiting_[number] = -1;
  }

  // ---- the work

  void reduce(Rank rank, std::uint32_t index) {
    const RankProgram& program = lowered_.programs[rank];
    const Instr& instr = program.instrs[index];
    if (instr.dst_n == 0) return;
    const Event event{rank, facts_.count[facts_.number(rank, index)]};
    const bool folds = instr.src_n > 1 && is_reducing(lowered_.collective);
    const std::int32_t chunks = program.operands[instr.dst_first].count;
    for (std::int32_t i = 0; i < chunks; ++i) {
      values_.begin();
      for (std::uint32_t s = 0; s < instr.src_n; ++s) {
        const Operand& src = program.operands[instr.src_first + s];
        const Values::Value value = read(rank, index, src, i, event);
        if ((src.raw != 0) != (folds && value.contributions == 1)) wrong_flag(rank, index, "raw mark of a source");
      }
      if (instr.flags & kRound) values_.round();
      check_final_mark(rank, index, folds);
      for (std::uint32_t d = 0; d < instr.dst_n; ++d)
        write(rank, index, program.operands[instr.dst_first + d], i, event);
    }
  }

  void transfer(const Message& message) {
    const RankProgram& from = lowered_.programs[message.src];
    const RankProgram& to = lowered_.programs[message.dst];
    const Instr& send = from.instrs[message.send];
    const Instr& recv = to.instrs[message.recv];
    const Operand& src = from.operands[send.src_first];
    const Operand& dst = to.operands[recv.dst_first];
    const Event sent{message.src, kNetwork | message.send}, received{message.dst, kNetwork | message.recv};
    const bool folds = recv.op == Op::recv_reduce;
    const bool scales = folds && is_reducing(lowered_.collective);
    for (std::int32_t i = 0; i < src.count; ++i) {
      Values::Value incoming, own;
      const auto take = [&] { incoming = read(message.src, message.send, src, i, sent, lowered_.wire); };
      values_.begin();
      if (recv.flags & kIncomingFirst) take();
      if (folds) own = read(message.dst, message.recv, dst, i, received);
      if (!(recv.flags & kIncomingFirst)) take();
      if (((recv.flags & kDstRaw) != 0) != (scales && own.contributions == 1) ||
          ((recv.flags & kIncomingRaw) != 0) != (scales && incoming.contributions == 1))
        wrong_flag(message.dst, message.recv, "raw mark");
      if (recv.flags & kRound) values_.round();
      check_final_mark(message.dst, message.recv, scales);
      write(message.dst, message.recv, dst, i, received);
    }
  }

  // n contributions with one among them twice are no result and become none: marked or not, nobody needs that value.
  void check_final_mark(Rank rank, std::uint32_t index, bool folds) {
    const bool marked = (lowered_.programs[rank].instrs[index].flags & kFinal) != 0;
    const bool expected = folds && values_.accumulator().contributions == n_ && n_ > 1;
    if (marked != expected && (!expected || values_.complete())) wrong_flag(rank, index, "final mark");
  }

  Values::Value read(Rank rank, std::uint32_t index, const Operand& operand, std::int32_t i, Event event,
                     bool rounds = false) {
    const LocId id = memory_.id(operand.rank, operand.buffer, operand.chunk + i);
    if (i == 0) entered(rank, index, operand);
    Values::Value value = values_.at(id);
    if (operand.initial) {
      value = {};
      const bool loaded = lowered_.layouts[operand.rank].loaded[static_cast<int>(operand.buffer)][operand.chunk + i];
      if (loaded && facts_.state.valid_at_start(operand.rank, operand.buffer, operand.chunk + i))
        value = values_.initial(operand.rank, operand.buffer, operand.chunk + i);
      std::vector<Event>& readers = initial_readers_[operand.rank];
      if (readers.empty() || !(readers.back() == event)) readers.push_back(event);
    } else {
      ordered(rank, index, event, memory_[id].writer, operand, i, "reads");
      memory_.add_reader(id, event);
    }
    if (value.contributions == 0)
      report_.add("content: " + facts_.text(rank, index) + ": reads " +
                  chunk_text(operand.rank, operand.buffer, operand.chunk + i, 1) + ", which holds nothing");
    if (rounds) Values::round(value);
    values_.fold(value, id, operand.initial, operand.rank);
    return value;
  }

  void write(Rank rank, std::uint32_t index, const Operand& operand, std::int32_t i, Event event) {
    const LocId id = memory_.id(operand.rank, operand.buffer, operand.chunk + i);
    if (i == 0) entered(rank, index, operand);
    if (memory_[id].writer == event)
      report_.add("race: " + facts_.text(rank, index) + ": writes " +
                  chunk_text(operand.rank, operand.buffer, operand.chunk + i, 1) + " twice");
    ordered(rank, index, event, memory_[id].writer, operand, i, "writes");
    memory_.each_reader(memory_[id], [&](Event other) { ordered(rank, index, event, other, operand, i, "writes"); });
    memory_[id].writer = event;
    memory_.forget_readers(id);
    values_.store(id);
  }

  void entered(Rank rank, std::uint32_t index, const Operand& operand) {
    if (operand.rank != rank && !order_.before({operand.rank, 1}, rank, index))
      report_.add("race: " + facts_.text(rank, index) + ": touches rank " + std::to_string(operand.rank) +
                  " without waiting for it to enter");
  }

  void ordered(Rank rank, std::uint32_t index, Event event, Event other, const Operand& operand, std::int32_t i,
               const char* verb) {
    if (other.rank == kNobody || other == event) return;
    // Chunks side by side have mostly the same history: what was just found for this instruction is not asked again.
    if (other == behind_ && event == before_which_) return;
    if (order_.before(other, rank, index)) {
      behind_ = other;
      before_which_ = event;
      return;
    }
    report_.add("race: " + facts_.text(rank, index) + ": " + verb + " " +
                chunk_text(operand.rank, operand.buffer, operand.chunk + i, 1) + " without waiting for " +
                event_text(other));
  }

  std::string event_text(Event event) const {
    if (event.code & kNetwork) return facts_.text(event.rank, event.code & ~kNetwork);
    return facts_.text(event.rank, facts_.in_order[event.rank][event.code - 2]);
  }

  void wrong_flag(Rank rank, std::uint32_t index, const char* what) {
    report_.add("flags: " + facts_.text(rank, index) + ": " + what +
                " does not agree with the number of contributions");
  }

  // ---- the end

  // Results may be read out once out_waits are over, memory reused once free_waits are.
  void check_end() {
    for (Rank rank = 0; rank < n_; ++rank) {
      const RankProgram& program = lowered_.programs[rank];
      for (const auto* waits : {&program.out_waits, &program.free_waits})
        for (const Wait& wait : *waits)
          if (wait.count > facts_.in_order[wait.rank].size() + 1)
            report_.add("deadlock: rank " + std::to_string(rank) + " waits at its end for count " +
                        std::to_string(wait.count) + " of rank " + std::to_string(wait.rank) + ", which stops at " +
                        std::to_string(facts_.in_order[wait.rank].size() + 1));
      for (const Buffer buffer : {Buffer::data, Buffer::input, Buffer::output})
        for (std::int32_t chunk = 0; memory_.has(buffer) && chunk < lowered_.chunks; ++chunk)
          check_end_of(rank, {rank, buffer, chunk});
      for (std::int32_t chunk = 0; chunk < lowered_.layouts[rank].scratch_chunks; ++chunk)
        check_end_of(rank, {rank, Buffer::scratch, chunk});
      for (const Event event : initial_readers_[rank])
        check_free(rank, event, [] { return std::string("its initial copies"); });
      if (report_.full()) return;
    }
  }

  void check_end_of(Rank rank, lowering::Place place) {
    const LocId id = memory_.id(place.rank, place.buffer, place.chunk);
    const lowering::Location& location = memory_[id];
    const RankProgram& program = lowered_.programs[rank];
    const bool result = place.buffer == Buffer::data || place.buffer == Buffer::output;
    if (result && location.writer.rank != kNobody &&
        !order_.before_end(location.writer, rank, program.out_waits, nullptr))
      report_.add("race: rank " + std::to_string(rank) + " reads out " +
                  chunk_text(place.rank, place.buffer, place.chunk, 1) + " without waiting for " +
                  event_text(location.writer));
    const auto free = [&](Event event) {
      check_free(rank, event, [&] { return chunk_text(place.rank, place.buffer, place.chunk, 1); });
    };
    if (location.writer.rank != kNobody && location.writer.rank != rank) free(location.writer);
    memory_.each_reader(location, [&](Event event) {
      if (event.rank != rank) free(event);
    });
  }

  template <class What>
  void check_free(Rank rank, Event event, What&& what) {
    const RankProgram& program = lowered_.programs[rank];
    if (!order_.before_end(event, rank, program.out_waits, &program.free_waits))
      report_.add("race: rank " + std::to_string(rank) + " reuses " + what() + " without waiting for " +
                  event_text(event));
  }

  std::string missing_text(Rank rank, std::uint32_t index) const {
    const RankProgram& program = lowered_.programs[rank];
    const Instr& instr = program.instrs[index];
    const std::int32_t miss = missing(rank, index);
    if (miss < 0) return "is ready, the other end is not";
    const auto at = static_cast<std::uint32_t>(miss);
    if (at >= instr.wait_n)
      return "needs instruction #" + std::to_string(program.deps[instr.dep_first + at - instr.wait_n]) + " to finish";
    const Wait& wait = program.waits[instr.wait_first + at];
    return "needs rank " + std::to_string(wait.rank) + " to reach " + std::to_string(wait.count) +
           ", which stands at " + std::to_string(count_[wait.rank]);
  }

  void report_deadlock() {
    std::string text = "deadlock: " + std::to_string(finished_) + " of " + std::to_string(facts_.total) +
                       " instructions finish; then";
    int named = 0;
    const auto name_one = [&](Rank rank, std::uint32_t index) {
      if (++named <= 6) text += "\n  " + facts_.text(rank, index) + ": " + missing_text(rank, index);
      if (named == 7) text += "\n  and others";
    };
    for (Rank rank = 0; rank < n_; ++rank)
      if (!at_end(rank)) name_one(rank, facts_.in_order[rank][count_[rank] - 1]);
    for (std::int32_t message : facts_.first) {
      while (message >= 0 && done_[facts_.number(facts_.messages[message].src, facts_.messages[message].send)])
        message = facts_.messages[message].next;
      if (message < 0) continue;
      name_one(facts_.messages[message].src, facts_.messages[message].send);
      name_one(facts_.messages[message].dst, facts_.messages[message].recv);
    }
    report_.add(std::move(text));
  }

  struct Sleeper {
    std::uint32_t count;
    std::int32_t task;
    bool operator<(const Sleeper& other) const { return count > other.count; }  // least count on top
  };
  struct SleepNode {
    std::int32_t task, next;
  };

  const Facts& facts_;
  const Lowered& lowered_;
  Report& report_;
  Memory memory_;
  Values values_;
  Order order_;
  std::uint64_t random_;
  Rank n_;
  std::vector<std::int32_t> ready_;
  std::vector<std::uint32_t> count_;  // progress counters; 0 = not entered
  std::vector<std::priority_queue<Sleeper>> sleepers_;
  std::vector<std::uint8_t> done_;
  std::vector<std::int32_t> waiting_;  // per instruction: tasks that depend on it
  std::vector<SleepNode> sleep_list_;
  std::size_t finished_ = 0;
  Event behind_{kNobody, 0}, before_which_{kNobody, 0};  // found to be before it
  std::vector<std::vector<Event>> initial_readers_;
};

}  // namespace

void replay(const Facts& facts, std::uint64_t seed, Report& report) { Replay(facts, seed, report).run(); }

}  // namespace ringleader::checking
