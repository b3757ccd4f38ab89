# What is installed beside the program, and packages of it (./dev package). Debian has another `sluice`, a limiter of
# pipes whose version sorts above ours: the packages' name is sluice-llm, and they cannot stand beside it.
set(SLUICE_PAGES ${CMAKE_BINARY_DIR}/pages)  # tools/man_pages.py
install(DIRECTORY ${SLUICE_PAGES}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/sluice.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME sluice OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/_sluice DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions OPTIONAL)
install(FILES ${SLUICE_PAGES}/completions/sluice.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)

file(READ packaging/sluice.service unit)
string(REPLACE "/usr/local/bin/" "/usr/bin/" unit "${unit}")
file(WRITE ${CMAKE_BINARY_DIR}/sluice.service "${unit}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS packaging/sluice.service)
install(FILES ${CMAKE_BINARY_DIR}/sluice.service DESTINATION lib/systemd/system)

set(CPACK_PACKAGE_NAME sluice-llm)
set(other sluice-llm-cuda)
if(SLUICE_CUDA)
  set(CPACK_PACKAGE_NAME sluice-llm-cuda)
  set(other sluice-llm)
  install(TARGETS sluice_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})  # beside the program, which looks there
endif()
set(CPACK_PACKAGE_VENDOR "Sluice")
set(CPACK_PACKAGE_CONTACT "Sluice <sluice@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "run language models from GGUF files: command line and server")
set(CPACK_PACKAGE_DESCRIPTION "Sluice runs mixtures of experts and other language models from GGUF files, on CPUs and \
NVIDIA GPUs, with a server that speaks the APIs of OpenAI, Anthropic and Ollama.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONFLICTS "sluice, ${other}")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGE_FILE_NAME "${CPACK_PACKAGE_NAME}-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
include(CPack)
