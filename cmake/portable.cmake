# The same objects linked once more, into a program that runs wherever the C library is 2.31 or newer: everything else is
# in it, and an old C library is what it is linked against (tools/sysroot.sh, tools/static_curl.sh; ./dev package).
# Headers say what is called by which name, and names that 2.31 lacks are undefined then.
set(SLUICE_OLD_ROOT ${CMAKE_SOURCE_DIR}/build/glibc-root)
set(SLUICE_STATIC_CURL ${CMAKE_SOURCE_DIR}/build/static-curl/libcurl.a)
get_property(portable_rooms GLOBAL PROPERTY SLUICE_ROOMS)  # all of the house: what nobody needs is left out
set(portable_archives ${SLUICE_STATIC_CURL})
foreach(library ssl crypto z zstd brotlidec brotlicommon pcre2-8 edit tinfo bsd md)
  list(APPEND portable_archives -l:lib${library}.a)
endforeach()
set(portable_files "")
foreach(room ${portable_rooms})
  list(APPEND portable_files $<TARGET_FILE:${room}>)
endforeach()
# -B: the files that start a program, too, are of the old C library; newer ones leave constructors to a newer one. -L: the
# compiler looks beside itself before it looks into a root.
set(portable_options -static-libstdc++ -static-libgcc --sysroot=${SLUICE_OLD_ROOT}
    -B${SLUICE_OLD_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/
    -L${SLUICE_OLD_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} -L${SLUICE_OLD_ROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE})

add_library(old_glibc OBJECT EXCLUDE_FROM_ALL packaging/portable/old_glibc.cc packaging/portable/fmt.cc)
set_target_properties(old_glibc PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
add_executable(sluice_portable EXCLUDE_FROM_ALL src/cli/main.cc $<TARGET_OBJECTS:old_glibc>)
add_dependencies(sluice_portable ${portable_rooms})
target_include_directories(sluice_portable PRIVATE src)
target_link_options(sluice_portable PRIVATE ${portable_options})
# The archives are this machine's, and the C library is not.
target_link_libraries(sluice_portable PRIVATE -Wl,--start-group ${portable_files} -Wl,--end-group
  -L/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} -Wl,--start-group ${portable_archives} -Wl,--end-group -lpthread -ldl)
set_target_properties(sluice_portable PROPERTIES OUTPUT_NAME sluice RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable
  LINK_DEPENDS "${SLUICE_STATIC_CURL}")
if(SLUICE_CUDA)
  add_library(sluice_cuda_portable SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:sluice_cuda> $<TARGET_OBJECTS:old_glibc>)
  set_target_properties(sluice_cuda_portable PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME sluice_cuda
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/portable)
  target_link_options(sluice_cuda_portable PRIVATE ${portable_options} -Wl,--exclude-libs,ALL)
  target_link_libraries(sluice_cuda_portable PRIVATE -Wl,--start-group $<TARGET_FILE:program> $<TARGET_FILE:quant>
    $<TARGET_FILE:base> -Wl,--end-group CUDA::cudart_static)
  add_dependencies(sluice_cuda_portable program quant base)
  add_dependencies(sluice_portable sluice_cuda_portable)
endif()
