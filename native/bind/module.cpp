#include "bind/bind.hpp"

NB_MODULE(_core, m)
{
  // Objects alive at interpreter exit (a communicator in a global, say) are normal use, not leaks worth a page of text.
  nanobind::set_leak_warnings(false);
  ringleader::bind_errors(m);
  ringleader::bind_schedule(m);
  ringleader::bind_reduce(m);
  ringleader::bind_memory(m);
  ringleader::bind_plan(m);
  ringleader::bind_comm(m);
  ringleader::bind_compress(m);
  ringleader::bind_calls(m);
  ringleader::bind_operation(m);
}
