# The same objects linked once more, into a program that runs wherever the C library is 2.31 or newer: everything else is
# in it, and an old C library is what it is linked against (tools/sysroot.sh, tools/static_curl.sh; ./dev package).
# Headers say what is called by which name, and names that 2.31 lacks are undefined then.
set(SLUICE_OLD_ROOT ${CMAKE_SOURCE_DIR}/build/glibc-root)
set(SLUICE_STATIC_CURL ${CMAKE_SOURCE_DIR}/build/static-curl/libcurl.a)
set(portable_archives ssl crypto z zstd brotlidec brotlicommon pcre2-8 edit tinfo bsd)  # this machine's
set(portable_missing "")  # those that it lacks
foreach(library ${portable_archives})
  find_library(SLUICE_ARCHIVE_${library} lib${library}.a)
  mark_as_advanced(SLUICE_ARCHIVE_${library})
  if(NOT SLUICE_ARCHIVE_${library})
    list(APPEND portable_missing lib${library}.a)
  endif()
endforeach()
list(TRANSFORM portable_archives REPLACE "(.+)" "-l:lib\\1.a")
# -B: the files that start a program, too, are of the old C library; newer ones leave constructors to a newer one. -L: the
# compiler looks beside itself before it looks into a root.
set(portable_options --sysroot=${SLUICE_OLD_ROOT} -B${SLUICE_OLD_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/
    -L${SLUICE_OLD_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} -L${SLUICE_OLD_ROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE})

add_library(old_glibc OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/packaging/portable/old_glibc.cc
            ${CMAKE_SOURCE_DIR}/packaging/portable/fmt.cc)
set_target_properties(old_glibc PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)

# portable_program(NAME CURL OPTIONS...): of all rooms of the house (what nobody needs is left out) and what they need of
# others, but for the C library. CURL: a libcurl, as the linker takes it.
function(portable_program name curl)
  get_property(rooms GLOBAL PROPERTY SLUICE_ROOMS)
  set(files "")
  foreach(room ${rooms})
    list(APPEND files $<TARGET_FILE:${room}>)
  endforeach()
  add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/src/cli/main.cc $<TARGET_OBJECTS:old_glibc>)
  add_dependencies(${name} ${rooms})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc ${ARGN})
  target_link_libraries(${name} PRIVATE -Wl,--start-group ${files} -Wl,--end-group -L/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}
    -Wl,--start-group ${curl} ${portable_archives} -Wl,--end-group -lpthread -ldl)
endfunction()

portable_program(sluice_portable ${SLUICE_STATIC_CURL} ${portable_options})
set_target_properties(sluice_portable PROPERTIES OUTPUT_NAME sluice RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable)
if(SLUICE_CUDA)
  add_library(sluice_cuda_portable SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:sluice_cuda> $<TARGET_OBJECTS:old_glibc>)
  set_target_properties(sluice_cuda_portable PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME sluice_cuda
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable)
  target_link_options(sluice_cuda_portable PRIVATE -static-libstdc++ -static-libgcc ${portable_options} -Wl,--exclude-libs,ALL)
  target_link_libraries(sluice_cuda_portable PRIVATE -Wl,--start-group $<TARGET_FILE:program> $<TARGET_FILE:quant>
    $<TARGET_FILE:base> -Wl,--end-group CUDA::cudart_static)
  add_dependencies(sluice_cuda_portable program quant base)
  add_dependencies(sluice_portable sluice_cuda_portable)
endif()
