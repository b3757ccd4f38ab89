# The CUDA backend: libsluice_cuda.so beside the binary, which loads it where a driver is present. It carries the rooms
# that it speaks with (base, quant, program) and CUDA's runtime, so the binary itself knows no CUDA.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(SLUICE_NVCC nvcc PATHS /usr/local/cuda/bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${SLUICE_NVCC})
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # a CMake older than the compiler
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

foreach(room base quant program)
  set_target_properties(${room} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cc ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
add_library(sluice_cuda SHARED ${sources})
target_include_directories(sluice_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(sluice_cuda PRIVATE program CUDA::cudart_static ${CMAKE_DL_LIBS})
# What was measured of kernels says nothing of others: records and tuning name the kernels by a hash of their sources.
file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*)
list(FILTER kernels EXCLUDE REGEX "/host/[^/]*\\.(cc|h)$|\\.md$")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernels})
set(hashes "")
foreach(kernel ${kernels})
  file(SHA256 ${kernel} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hashes "${hashes}")
string(SUBSTRING ${hashes} 0 8 hashes)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/backend/cuda/host/cuda_backend.cc PROPERTIES
  COMPILE_DEFINITIONS "SLUICE_CUDA_KERNELS=\"${hashes}\"")
target_link_options(sluice_cuda PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(sluice_cuda PROPERTIES
  CUDA_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} INSTALL_RPATH "\$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
# Device code is compiled with the host's flags except those that nvcc's own code breaks.
target_compile_options(sluice_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-Wno-pedantic -Wno-shadow --expt-relaxed-constexpr --extended-lambda --compress-mode=size>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SLUICE_CUDA_LINES}>>:-lineinfo>)
include(GNUInstallDirs)
install(TARGETS sluice_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})
