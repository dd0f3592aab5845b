# The same kernels, once per instruction set (compress/kernels.hpp), with the flags of the reduction kernels; compress.cpp picks the set
# that reduce.cpp chose.
foreach(isa baseline avx2 avx512)
  get_source_file_property(flags native/reduce/isa_${isa}.cpp COMPILE_OPTIONS)
  if(flags)
    set_source_files_properties(native/compress/isa_${isa}.cpp PROPERTIES COMPILE_OPTIONS "${flags}")
  endif()
endforeach()
# Gram-Schmidt must give the same bits on every machine.
set_source_files_properties(native/compress/lowrank.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
