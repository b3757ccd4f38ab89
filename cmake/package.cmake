# What is installed beside the program, and packages of it (./dev package). Debian has another `sluice`, a limiter of
# pipes whose version sorts above ours: the packages' name is sluice-llm, and they cannot stand beside it.
set(SLUICE_CUDA_LIBRARY "" CACHE FILEPATH "a libsluice_cuda.so that was built before, to be packaged with this program")
set(CPACK_PACKAGE_NAME sluice-llm)
set(other sluice-llm-cuda)
if(SLUICE_CUDA OR SLUICE_CUDA_LIBRARY)
  set(CPACK_PACKAGE_NAME sluice-llm-cuda)
  set(other sluice-llm)
endif()
if(SLUICE_CUDA_LIBRARY)  # beside the program, which looks there
  install(PROGRAMS ${SLUICE_CUDA_LIBRARY} DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME libsluice_cuda.so)
endif()
if(SLUICE_CUDA OR SLUICE_CUDA_LIBRARY)  # its service may open the GPU
  install(FILES packaging/sluice-gpu.conf DESTINATION lib/systemd/system/sluice.service.d COMPONENT debian EXCLUDE_FROM_ALL)
endif()

set(SLUICE_PAGES ${CMAKE_BINARY_DIR}/pages)  # tools/man_pages.py
install(DIRECTORY ${SLUICE_PAGES}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/sluice.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME sluice OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/_sluice DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/sluice.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
install(FILES packaging/sluice.service DESTINATION lib/systemd/system)
install(FILES packaging/sluice-gpu.conf DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice)
# For a Debian package alone: what lies outside of its prefix.
install(FILES packaging/debian/sluice.default DESTINATION /etc/default RENAME sluice COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_PACKAGE_NAME} RENAME copyright COMPONENT debian
        EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_VENDOR "Sluice")
set(CPACK_PACKAGE_CONTACT "Sluice <sluice@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "run language models from GGUF files: command line and server")
set(CPACK_PACKAGE_DESCRIPTION "Sluice runs mixtures of experts and other language models from GGUF files, on CPUs and \
NVIDIA GPUs, with a server that speaks the APIs of OpenAI, Anthropic and Ollama.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};sluice;ALL;/;${CMAKE_BINARY_DIR};sluice;debian;/")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONFLICTS "sluice, ${other}")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
# What is loaded at run time where it is there: serve --kv-events, --backend vulkan, and programs of several processes.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libzmq5, libvulkan1, mesa-vulkan-drivers, libopenmpi3")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(script conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/packaging/debian/${script})
endforeach()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")  # whatever machine builds it
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu ${CMAKE_SYSROOT}/lib/aarch64-linux-gnu)
endif()
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
include(CPack)
