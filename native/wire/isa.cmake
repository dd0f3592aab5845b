# The same codecs, once per instruction set (wire/codecs.hpp), with the flags of the reduction kernels; wire.cpp picks the set that
# reduce.cpp chose.
foreach(isa baseline avx2 avx512)
  get_source_file_property(flags native/reduce/isa_${isa}.cpp COMPILE_OPTIONS)
  if(flags)
    set_source_files_properties(native/wire/isa_${isa}.cpp PROPERTIES COMPILE_OPTIONS "${flags}")
  endif()
endforeach()
