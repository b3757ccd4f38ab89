# The Vulkan backend, where its headers and a compiler of shaders are installed: everything else of Vulkan is
# found when the program runs. Sets SLUICE_HAS_VULKAN.
find_path(SLUICE_VULKAN_HEADERS vulkan/vulkan.h)
find_program(SLUICE_GLSLANG glslangValidator)
set(SLUICE_HAS_VULKAN OFF)
if(SLUICE_VULKAN_HEADERS AND SLUICE_GLSLANG)
  set(SLUICE_HAS_VULKAN ON)
else()
  message(STATUS "no Vulkan backend: libvulkan-dev and glslang-tools are not both installed")
  return()
endif()

# Each shader becomes words of SPIR-V that pipelines.cc includes; those that multiply codes once more, as NAME_dot4,
# for devices that multiply four bytes at a time.
set(shader_folder ${CMAKE_SOURCE_DIR}/src/backend/vulkan/shaders)
set(words_folder ${CMAKE_BINARY_DIR}/generated/vulkan_shaders)
file(MAKE_DIRECTORY ${words_folder})
file(GLOB shaders CONFIGURE_DEPENDS ${shader_folder}/*.comp)
file(GLOB shader_parts CONFIGURE_DEPENDS ${shader_folder}/*.glsl)
set(all "")
set(words_files "")
set(binaries "")
function(add_shader name shader)
  add_custom_command(OUTPUT ${words_folder}/${name}.inc
    COMMAND ${SLUICE_GLSLANG} --quiet -V --target-env vulkan1.1 ${ARGN} -x -o ${words_folder}/${name}.inc ${shader}
    DEPENDS ${shader} ${shader_parts} VERBATIM)
  add_custom_command(OUTPUT ${words_folder}/${name}.spv
    COMMAND ${SLUICE_GLSLANG} --quiet -V --target-env vulkan1.1 ${ARGN} -o ${words_folder}/${name}.spv ${shader}
    DEPENDS ${shader} ${shader_parts} VERBATIM)
  string(APPEND all "constexpr uint32_t ${name}[] = {\n#include \"vulkan_shaders/${name}.inc\"\n};\n")
  list(APPEND words_files ${words_folder}/${name}.inc)
  list(APPEND binaries ${words_folder}/${name}.spv)
  set(all "${all}" PARENT_SCOPE)
  set(words_files "${words_files}" PARENT_SCOPE)
  set(binaries "${binaries}" PARENT_SCOPE)
endfunction()
foreach(shader ${shaders})
  get_filename_component(name ${shader} NAME_WE)
  add_shader(${name} ${shader})
endforeach()
foreach(name product down)
  add_shader(${name}_dot4 ${shader_folder}/${name}.comp -DDOT4)
endforeach()
add_custom_target(vulkan_shaders DEPENDS ${binaries})  # for tests alone
add_custom_target(vulkan_words DEPENDS ${words_files})
file(CONFIGURE OUTPUT ${words_folder}/all.inc CONTENT "${all}" @ONLY)
room(backend_vulkan backend/vulkan program)
target_include_directories(backend_vulkan PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_link_libraries(backend_vulkan PRIVATE ${CMAKE_DL_LIBS})
set_source_files_properties(src/backend/vulkan/pipelines.cc PROPERTIES OBJECT_DEPENDS "${words_files}")
