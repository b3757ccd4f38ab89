# What makes a fault in memory harder to use, for programs that people run (docs/security.md has what it costs):
# guards of stack frames, checked variants of libc's functions, tables of addresses that nobody writes to after the
# start, a program that lies anywhere, and jumps that land at marked places alone. Sanitizers do without.
include(CheckCXXCompilerFlag)
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "SLUICE_HAS${flag}" known)
  check_cxx_compiler_flag("-Werror ${flag}" ${known})
  if(${known})
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endif()
endforeach()
# A library's own -fPIC comes behind -fPIE. Checked variants want optimisation.
string(APPEND CMAKE_CXX_FLAGS " -fPIE")
string(APPEND CMAKE_CXX_FLAGS_RELEASE " -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2")
string(APPEND CMAKE_EXE_LINKER_FLAGS " -pie")
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
