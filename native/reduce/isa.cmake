# The same kernels, once per instruction set (reduce/kernels.hpp); reduce.cpp picks one at run time. They are optimised in every
# kind of build, and never contract a*b+c into a fused operation: results must not depend on the machine.
set(kernel_flags -O3 -ffp-contract=off -fno-trapping-math -fno-math-errno)
set_source_files_properties(native/reduce/isa_baseline.cpp PROPERTIES COMPILE_OPTIONS "${kernel_flags}")
# GCC's own header for AVX-512 trips its uninitialised-variable warning.
set(avx512_flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512 -Wno-uninitialized)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND avx512_flags -Wno-maybe-uninitialized)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(native/reduce/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS
    "${kernel_flags};-mavx2;-mf16c")
  set_source_files_properties(native/reduce/isa_avx512.cpp PROPERTIES COMPILE_OPTIONS
    "${kernel_flags};-mavx2;-mf16c;${avx512_flags}")
endif()
# The reference of the tests is held to the same arithmetic.
set_source_files_properties(native/tests/test_reduce.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
