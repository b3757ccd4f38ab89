// What g++'s own archives (libstdc++.a, libgcc_eh.a) want of a C library newer than 2.31, for the program
// that runs with that one, too. An undefined symbol at the link says when there is more.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

/// glibc 2.32: whether a process has one thread; false is always right.
char __libc_single_threaded = 0;  // NOLINT: their name

/// glibc 2.36.
uint32_t arc4random() {
  uint32_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}

/// glibc 2.35: where the unwinder's tables of the code at an address are. 0: found; it reads eh_frame alone.
int _dl_find_object(void* address, dl_find_object* result) {
  struct Search {
    ElfW(Addr) address;
    dl_find_object* result;
  } search{reinterpret_cast<ElfW(Addr)>(address), result};
  const auto look = [](dl_phdr_info* object, size_t, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    bool inside = false;
    void* table = nullptr;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      const ElfW(Addr) begin = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_LOAD && wanted.address - begin < part.p_memsz) {
        inside = true;
        wanted.result->dlfo_map_start = reinterpret_cast<void*>(begin);
        wanted.result->dlfo_map_end = reinterpret_cast<void*>(begin + part.p_memsz);
      } else if (part.p_type == PT_GNU_EH_FRAME) {
        table = reinterpret_cast<void*>(begin);
      }
    }
    if (!inside || table == nullptr) return 0;
    wanted.result->dlfo_flags = 0;
    wanted.result->dlfo_link_map = nullptr;
    wanted.result->dlfo_eh_frame = table;
    return 1;
  };
  return ::dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

}  // extern "C"
