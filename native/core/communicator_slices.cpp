// An operation in slices: the progress thread of each slice's communicator runs it, while this communicator's runs the
// first.
//
// Invariant: nobody is told that the operation is over - well or badly - before every slice is over, because slices
// work in the caller's memory. And the slices' communicators see operations in this one's order, since this one holds
// its turn until all slices are done.
#include "core/communicator.hpp"

namespace ringleader {

std::vector<std::shared_ptr<WorkState>> Communicator::start_slices(const Job& job) {
  std::vector<std::shared_ptr<WorkState>> works;
  works.reserve(job.plan->beside.size());
  try {
    for (const Slice& slice : job.plan->beside) {
      const auto at = [&](void* pointer) {
        return pointer ? static_cast<std::byte*>(pointer) + slice.offset : nullptr;
      };
      works.push_back(slice.communicator->start(slice.plan, at(job.in), at(job.out), job.timeout));
    }
  } catch (const Error& error) {
    give_up_slices(*job.plan, works, error);
    throw;
  }
  return works;
}

// Waits for all slices. A slice that failed fails this communicator too: its ranks no longer agree on what was done.
void Communicator::join_slices(const Plan& plan, const std::vector<std::shared_ptr<WorkState>>& works) {
  for (const auto& work : works)
    while (!work->wait_until(Clock::now() + std::chrono::milliseconds(20)))
      if (aborted(mesh_.own->control)) give_up_slices(plan, works, Error(ErrorKind::aborted, abort_reason()));
  // The cause, rather than what it made of the other slices.
  std::optional<Error> first;
  for (const auto& work : works)
    if (const auto error = work->error(); error && (!first || first->kind == ErrorKind::aborted)) first = error;
  if (first) {
    fail(*first);
    throw *first;
  }
  if (aborted(mesh_.own->control)) throw_aborted();
}

// Ends the slices that still run and waits for them; an abort makes that a matter of moments.
void Communicator::give_up_slices(const Plan& plan, const std::vector<std::shared_ptr<WorkState>>& works,
                                  const Error& cause) {
  for (std::size_t i = 0; i < works.size(); ++i)
    if (!works[i]->done()) plan.beside[i].communicator->abort(ErrorKind::aborted, rank(), cause.what());
  for (const auto& work : works) work->wait_until(Clock::time_point::max());
}

}  // namespace ringleader
