// One collective in flight: a resumable machine that never blocks. See docs/architecture.md, "Windows and memory".
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mesh.hpp"
#include "core/plan.hpp"
#include "core/recorder.hpp"

namespace ringleader {

class Execution {
 public:
  enum class Step { done, moved, idle };

  explicit Execution(Mesh& mesh) : mesh_(mesh) {}

  // Throws Error(invalid | memory) before anything is visible to peers.
  // The plan must live until finish().
  // `queued` and `site` are for the recorder.
  void begin(const Plan& plan, void* in, void* out, std::uint64_t sequence, std::uint64_t queued, std::uint32_t site);
  // Does what can be done without waiting. Throws Error(mismatch | peer_lost | internal).
  Step progress() { return plan_->inlined ? progress_inline() : progress_slots(); }
  // Call before anything that takes longer than another progress(): what was published is made known to sleeping peers
  // then.
  void settle();
  // Whether progress() would move something now, links aside: what a sleeper asks before it sleeps.
  bool can_move() const;
  // Descriptors to sleep on.
  void poll_descriptors(std::vector<pollfd>& fds) const;
  bool unhurried() const;  // only slow links are waited for, see Link::haste
  // The ranks that this rank waits for now, and a description, for messages.
  std::vector<Rank> blocked_on() const;
  std::string describe() const;
  std::string past_text() const;
  std::uint64_t sequence() const {
    return sequence_.load(std::memory_order_relaxed);
  }  // of the last operation begun; any thread
  const OpInfo& info() const { return info_; }
  // Throws Error(mismatch) if a peer of this node is in another operation than this rank is, or was when it was there.
  // Peers' control blocks are read for it: for waits that have lasted.
  void compare_local() const;
  // The same with what a peer says that it is in.
  void compare(Rank rank, const OpInfo& theirs) const;
  // Whether this rank only sends in this operation, to other nodes too, so that no message could tell it of a failure.
  bool unanswered() const;
  std::uint64_t window_number() const { return first_window_ + window_; }
  void finish(RecordState state);  // drops the plan
  Recorder& recorder() { return recorder_; }
  // The user's memory that peers can reach in this operation, as far as they have been told. Until finish().
  std::vector<std::span<std::byte>> shown() const;
  // Whether all peers that this rank waits for now were last seen on cores other than `core` (ControlBlock::core).
  bool waits_elsewhere(std::uint32_t core) const;

 private:
  enum class Phase { enter, finish_previous, run, finish_last, release, done };
  static constexpr std::size_t kPast = 256;

  // A peer as seen in the current window.
  struct View {
    std::uint64_t window = 0;           // 0 = not looked at in this window yet
    std::byte* slot = nullptr;          // null = it has none
    std::uint8_t registered = 0;        // a bit each: which of data, input, output it shows
    std::uint64_t base[3] = {0, 0, 0};  // and their arena offsets, which it could have made up
  };
  struct LinkState {
    Link* link = nullptr;
    std::size_t next_send = 0, next_receive = 0;
  };

  Step progress_slots();
  Step progress_inline();
  bool mailbox_free() const;
  void fill_mailbox();
  bool arrived(Rank rank);
  void finish_inline();

  bool wait_satisfied(const Wait& wait);
  bool waits_satisfied(const Wait* first, std::size_t n);
  bool reached(const Wait& wait, std::uint64_t window) const;
  template <class Visit>  // bool visit(const Wait& wait, std::uint64_t window); stops when it says false
  bool each_wait(Visit&& visit) const;
  bool reached_all(const std::vector<Wait>& waits, std::uint64_t window) const;
  bool waits_in_memory() const;
  void look_at(Rank rank);
  void check_fingerprint(Rank rank) const;
  void look_around();
  bool parted(const OpInfo& theirs) const;
  [[noreturn]] void throw_mismatch(Rank rank) const;
  [[noreturn]] void throw_mismatch(Rank rank, OpInfo theirs) const;
  bool ready(const BoundInstr& instr);

  bool enter();
  bool finish_window(std::uint32_t window);
  bool run();
  bool post_network();
  void post_send(LinkState& state, const BoundInstr& instr, std::uint32_t index);
  void post_receive(LinkState& state, const BoundInstr& instr, std::uint32_t index);
  MessageHeader header(std::size_t index, std::uint64_t bytes) const;
  std::vector<Piece> message_pieces(const BoundInstr& instr, std::uint64_t& bytes) const;
  bool network_done();
  void execute(const BoundInstr& instr);
  void fold_rounded(const BoundInstr& instr, std::size_t items);
  void publish(std::uint32_t count);

  std::uint64_t length(const Place& place, std::uint32_t window) const;
  std::byte* address(const Place& place, std::uint32_t window) const;
  std::byte* slot(const Place& place, std::uint32_t window) const;
  std::byte* peer_memory(const Place& place, std::uint32_t window) const;
  bool registered(std::uint8_t buffer) const { return (registered_bits_ >> buffer) & 1; }
  void stage_in();
  void stage_out(std::uint32_t window);
  void find_registered();
  void check_shown() const;
  void prepare_slot();

  Mesh& mesh_;
  const Plan* plan_ = nullptr;
  const RankProgram* program_ = nullptr;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::atomic<std::uint64_t> sequence_{0};  // written by whoever runs an operation
  OpInfo info_;                             // of this operation
  Recorder recorder_;                       // of the last ones
  std::uint64_t past_[kPast] = {};          // history_ of more of them, by sequence
  std::uint64_t history_ = 0;               // hash of all operations so far
  std::uint64_t fingerprint_ = 0;           // what is published of it
  std::uint64_t looked_ = 0;                // Plan::info_hash of the operation that looked around last
  std::uint64_t registered_bits_ = 0;
  std::uint64_t seclusions_ = 0;  // when registered_bits_ was found
  std::uint64_t base_[3] = {0, 0, 0};
  std::byte* own_registered_[3] = {nullptr, nullptr, nullptr};
  std::byte* own_slots_ = nullptr;  // the pair of the plan's class
  std::uint64_t own_slot_bytes_ = 0;

  Phase phase_ = Phase::done;
  std::uint64_t first_window_ = 0;
  std::uint32_t window_ = 0;
  std::size_t cursor_ = 0;           // next in-order instruction
  std::size_t network_cursor_ = 0;   // network instructions before it are done
  std::vector<std::uint32_t> done_;  // per instruction, this window; Links write into it
  std::vector<LinkState> links_;
  std::vector<View> views_;  // by rank
  bool ring_due_ = false;    // something was published, and peers that sleep have not been woken yet
  std::uint32_t polls_ = 0;  // of mailboxes, in vain, in this operation
  std::vector<void*> dsts_;  // scratch of execute()
  std::vector<const void*> srcs_;
};

}  // namespace ringleader
