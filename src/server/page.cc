#include "server/page.h"

#ifdef SLUICE_PAGE
// The assembler copies the file in as it is.
__asm__(
    ".pushsection .rodata\n"
    ".global sluice_page_begin\n"
    ".global sluice_page_end\n"
    "sluice_page_begin:\n"
    ".incbin \"" SLUICE_PAGE
    "\"\n"
    "sluice_page_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const char sluice_page_begin[], sluice_page_end[];
#endif

namespace sluice::server {

std::string_view page() {
#ifdef SLUICE_PAGE
  return {sluice_page_begin, static_cast<size_t>(sluice_page_end - sluice_page_begin)};
#else
  return {};
#endif
}

}  // namespace sluice::server
