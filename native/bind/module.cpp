#include "bind/bind.hpp"

NB_MODULE(_core, m) {
  ringleader::bind_errors(m);
  ringleader::bind_schedule(m);
  ringleader::bind_reduce(m);
  ringleader::bind_memory(m);
  ringleader::bind_comm(m);
}
