// Template members of Emitter, shared by lower_emit.cpp and lower_fuse.cpp.
#pragma once

#include "core/lower_emit.hpp"

namespace ringleader::lowering {

// Events that chunk i of an in-order draft conflicts with.
template <class Visit>
void Emitter::each_conflict(const Draft& draft, std::int32_t i, Visit&& visit) const {
  for (const Source& source : draft.sources)
    if (!source.own)
      builder_.each_read_conflict(draft.executor, source.place.rank, id(source.place, i), source.initial, visit);
  builder_.each_write_conflict(draft.executor, draft.dst.rank, id(draft.dst, i), visit);
}

}  // namespace ringleader::lowering
