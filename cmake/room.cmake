# Libraries, one a room of the house, and the instructions that files of kernels are compiled for.
get_filename_component(SLUICE_SOURCES ${CMAKE_CURRENT_LIST_DIR}/../src ABSOLUTE)

# room(NAME DIR LIBRARIES...): a static library of every .cc in src/DIR and its folders ops, jinja, grammar and simd,
# main.cc excepted. simd/*_TIER.cc is compiled for that tier's instructions, and only where the processor family has
# it. Of NAME_linux.cc and NAME_posix.cc one is compiled: the plain one where SLUICE_PLAIN_BASE is on. What such a file
# of a tier defines must be its own (anonymous namespace), or the linker may keep its copy of an inline
# function for everybody.
set(SLUICE_TIERS avx2 avxvnni avx512 avx512bf16 avx512fp16 amx neon i8mm)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(SLUICE_TIER_avx2 -mavx2 -mfma -mf16c)
  set(SLUICE_TIER_avx512 ${SLUICE_TIER_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
      -mprefer-vector-width=512)
  set(SLUICE_TIER_avx512bf16 ${SLUICE_TIER_avx512} -mavx512bf16 -mavx512vbmi)
  set(SLUICE_TIER_avx512fp16 ${SLUICE_TIER_avx512} -mavx512fp16)
  set(SLUICE_TIER_amx ${SLUICE_TIER_avx512} -mamx-tile -mamx-int8 -mamx-bf16 -mavx512bf16 -mavx512vbmi)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 takes the undefined vectors of its own intrinsics for ours (GCC bug 105593).
    foreach(tier avx512 avx512bf16 avx512fp16 amx)
      list(APPEND SLUICE_TIER_${tier} -Wno-maybe-uninitialized -Wno-uninitialized)
    endforeach()
  else()  # clang 14's conversions to half floats are macros with C's compound literals
    list(APPEND SLUICE_TIER_avx2 -Wno-c99-extensions)
  endif()
  set(SLUICE_TIER_avxvnni ${SLUICE_TIER_avx2} -mavxvnni)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(SLUICE_TIER_neon -march=armv8.2-a+dotprod)
  set(SLUICE_TIER_i8mm -march=armv8.2-a+dotprod+i8mm)
endif()

# neighbours(SOURCES): files that include the same of two costly headers, CLI11's and nlohmann-json's, side by side: so
# few batches of files that are compiled together have either.
function(neighbours list)
  set(sorted "")
  foreach(source ${${list}})
    file(STRINGS ${source} cli REGEX "#include <CLI/")
    file(STRINGS ${source} json REGEX "#include .*json")
    set(place 3)
    if(cli AND json)
      set(place 1)
    elseif(cli)
      set(place 0)
    elseif(json)
      set(place 2)
    endif()
    list(APPEND sorted "${place} ${source}")
  endforeach()
  list(SORT sorted)
  list(TRANSFORM sorted REPLACE "^. " "")
  set(${list} ${sorted} PARENT_SCOPE)
endfunction()

# Files that are compiled together, where they are.
set(SLUICE_TOGETHER 36)

function(room name dir)
  set_property(GLOBAL APPEND PROPERTY SLUICE_ROOMS ${name})
  file(GLOB sources CONFIGURE_DEPENDS ${SLUICE_SOURCES}/${dir}/*.cc ${SLUICE_SOURCES}/${dir}/ops/*.cc
       ${SLUICE_SOURCES}/${dir}/jinja/*.cc ${SLUICE_SOURCES}/${dir}/grammar/*.cc
       ${SLUICE_SOURCES}/${dir}/simd/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(SLUICE_PLAIN_BASE)
    list(FILTER sources EXCLUDE REGEX "_linux\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "_posix\\.cc$")
  endif()
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "/simd/")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  foreach(tier ${SLUICE_TIERS})
    set(files ${sources})
    list(FILTER files INCLUDE REGEX "/simd/[a-z_0-9]*_${tier}\\.cc$")
    if(DEFINED SLUICE_TIER_${tier})
      set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${SLUICE_TIER_${tier}}")
    elseif(files)
      list(REMOVE_ITEM sources ${files})
    endif()
  endforeach()
  neighbours(sources)
  add_library(${name} STATIC ${sources})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${SLUICE_UNITY} UNITY_BUILD_BATCH_SIZE ${SLUICE_TOGETHER})
  target_include_directories(${name} PUBLIC ${SLUICE_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARGN})
endfunction()

# cold(ROOM [HOT]): nobody waits for what this room does, but for its files that match HOT: the others are compiled with
# -Og, for little more than half of the time.
function(cold name)
  set(quick $<$<CONFIG:Release>:-Og>)
  if(ARGC EQUAL 1)
    target_compile_options(${name} PRIVATE ${quick})
    return()
  endif()
  get_target_property(hot_files ${name} SOURCES)
  set(cold_files ${hot_files})
  list(FILTER hot_files INCLUDE REGEX "${ARGV1}")
  list(REMOVE_ITEM cold_files ${hot_files})
  add_library(${name}_cold OBJECT ${cold_files})
  get_target_property(shared ${name} POSITION_INDEPENDENT_CODE)  # part of CUDA's library
  set_target_properties(${name}_cold PROPERTIES POSITION_INDEPENDENT_CODE ${shared}
    UNITY_BUILD ${SLUICE_UNITY} UNITY_BUILD_BATCH_SIZE ${SLUICE_TOGETHER})
  target_link_libraries(${name}_cold PRIVATE $<TARGET_PROPERTY:${name},LINK_LIBRARIES>)
  target_include_directories(${name}_cold PRIVATE ${SLUICE_SOURCES})
  target_compile_options(${name}_cold PRIVATE ${quick})
  set_target_properties(${name} PROPERTIES SOURCES "${hot_files};$<TARGET_OBJECTS:${name}_cold>")
endfunction()
