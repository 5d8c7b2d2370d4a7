#include "interceptor/elf.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

namespace ravenstore::interceptor {
namespace {

// What the loader knows of an object's dynamic section.
struct Dynamic {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const uint32_t* hash = nullptr;
  const ElfW(Rela) * relocations = nullptr;
  size_t relocations_bytes = 0;
  const ElfW(Rela) * jumps = nullptr;
  size_t jumps_bytes = 0;
};

bool Read(const dl_phdr_info& object, Dynamic* dynamic) {
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type == PT_DYNAMIC) {
      entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
    }
  }
  if (entry == nullptr) return false;
  // glibc relocates these pointers in place, but not in every object (the vDSO's it leaves).
  auto at = [&](ElfW(Addr) value) {
    return value < object.dlpi_addr ? object.dlpi_addr + value : value;
  };
  for (; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) value = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB: dynamic->symbols = reinterpret_cast<const ElfW(Sym)*>(at(value)); break;
      case DT_STRTAB: dynamic->strings = reinterpret_cast<const char*>(at(value)); break;
      case DT_GNU_HASH: dynamic->gnu_hash = reinterpret_cast<const uint32_t*>(at(value)); break;
      case DT_HASH: dynamic->hash = reinterpret_cast<const uint32_t*>(at(value)); break;
      case DT_RELA: dynamic->relocations = reinterpret_cast<const ElfW(Rela)*>(at(value)); break;
      case DT_RELASZ: dynamic->relocations_bytes = value; break;
      case DT_JMPREL: dynamic->jumps = reinterpret_cast<const ElfW(Rela)*>(at(value)); break;
      case DT_PLTRELSZ: dynamic->jumps_bytes = value; break;
      default: break;
    }
  }
  return dynamic->symbols != nullptr && dynamic->strings != nullptr;
}

uint32_t GnuHash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != 0; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

bool Defines(const Dynamic& dynamic, uint32_t index, const char* name) {
  const ElfW(Sym)& symbol = dynamic.symbols[index];
  return symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
         strcmp(dynamic.strings + symbol.st_name, name) == 0;
}

const ElfW(Sym) * LookUp(const Dynamic& dynamic, const char* name) {
  if (dynamic.gnu_hash != nullptr) {
    const uint32_t buckets = dynamic.gnu_hash[0];
    const uint32_t first = dynamic.gnu_hash[1];
    const uint32_t bloom_words = dynamic.gnu_hash[2];
    const auto* bloom = reinterpret_cast<const uint64_t*>(dynamic.gnu_hash + 4);
    const auto* bucket = reinterpret_cast<const uint32_t*>(bloom + bloom_words);
    const uint32_t* chain = bucket + buckets;
    if (buckets == 0) return nullptr;
    const uint32_t hash = GnuHash(name);
    uint32_t i = bucket[hash % buckets];
    if (i < first) return nullptr;
    for (;; ++i) {
      if ((chain[i - first] | 1) == (hash | 1) && Defines(dynamic, i, name)) {
        return &dynamic.symbols[i];
      }
      if ((chain[i - first] & 1) != 0) return nullptr;
    }
  }
  if (dynamic.hash == nullptr) return nullptr;
  for (uint32_t i = 1; i < dynamic.hash[1]; ++i) {
    if (Defines(dynamic, i, name)) return &dynamic.symbols[i];
  }
  return nullptr;
}

bool Holds(const dl_phdr_info& object, const void* address) {
  const auto at = reinterpret_cast<ElfW(Addr)>(address);
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& header = object.dlpi_phdr[i];
    const ElfW(Addr) begin = object.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && at >= begin && at < begin + header.p_memsz) return true;
  }
  return false;
}

const char* BaseName(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

struct Wanted {
  const char* library;
  const char* symbol;
  void* found;
};

int VisitForSymbol(dl_phdr_info* object, size_t, void* argument) {
  auto* wanted = static_cast<Wanted*>(argument);
  const char* name = object->dlpi_name == nullptr ? "" : BaseName(object->dlpi_name);
  if (strncmp(name, wanted->library, strlen(wanted->library)) != 0) return 0;
  Dynamic dynamic;
  if (!Read(*object, &dynamic) || IsOurs(dynamic.symbols)) return 0;
  const ElfW(Sym)* symbol = LookUp(dynamic, wanted->symbol);
  if (symbol == nullptr) return 0;
  wanted->found = reinterpret_cast<void*>(object->dlpi_addr + symbol->st_value);
  return 1;
}

struct Owner {
  const void* address;
  const char* object;
};

int VisitForOwner(dl_phdr_info* object, size_t, void* argument) {
  auto* owner = static_cast<Owner*>(argument);
  if (!Holds(*object, owner->address)) return 0;
  owner->object = object->dlpi_name == nullptr ? "" : object->dlpi_name;
  return 1;
}

// What is read-only once it was relocated: whole pages.
struct Sealed {
  ElfW(Addr) begin = 0;
  ElfW(Addr) end = 0;
};

constexpr ElfW(Addr) kPageMask = ~ElfW(Addr){4095};

Sealed SealedOf(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& header = object.dlpi_phdr[i];
    if (header.p_type != PT_GNU_RELRO) continue;
    const ElfW(Addr) begin = object.dlpi_addr + header.p_vaddr;
    return {begin & kPageMask, (begin + header.p_memsz) & kPageMask};
  }
  return {};
}

struct Imports {
  void (*visit)(const Import&, void*);
  void* argument;
};

void VisitRelocations(const dl_phdr_info& object, const Dynamic& dynamic,
                      const ElfW(Rela) * relocations, size_t bytes, const Imports& imports) {
  const Sealed sealed = SealedOf(object);
  for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); ++i) {
    const ElfW(Rela)& relocation = relocations[i];
    const auto type = ELF64_R_TYPE(relocation.r_info);
    if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) continue;
    const ElfW(Sym)& symbol = dynamic.symbols[ELF64_R_SYM(relocation.r_info)];
    const char* name = dynamic.strings + symbol.st_name;
    if (symbol.st_shndx != SHN_UNDEF) continue;
    if (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0 && strncmp(name, "dl", 2) != 0)
      continue;
    const ElfW(Addr) slot = object.dlpi_addr + relocation.r_offset;
    imports.visit(
        {object.dlpi_name == nullptr ? "" : object.dlpi_name, name, reinterpret_cast<void**>(slot),
         type != R_X86_64_64, slot >= sealed.begin && slot < sealed.end},
        imports.argument);
  }
}

int VisitForImports(dl_phdr_info* object, size_t, void* argument) {
  Dynamic dynamic;
  if (!Read(*object, &dynamic) || IsOurs(dynamic.symbols)) return 0;
  const auto* imports = static_cast<const Imports*>(argument);
  VisitRelocations(*object, dynamic, dynamic.relocations, dynamic.relocations_bytes, *imports);
  VisitRelocations(*object, dynamic, dynamic.jumps, dynamic.jumps_bytes, *imports);
  return 0;
}

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
extern "C" __attribute__((visibility("hidden"))) const char _end;

}  // namespace

bool IsOurs(const void* address) {
  return address >= &__ehdr_start && address < &_end;
}

void* FindInLibrary(const char* library, const char* symbol) {
  Wanted wanted{library, symbol, nullptr};
  dl_iterate_phdr(VisitForSymbol, &wanted);
  return wanted.found;
}

void ForEachImport(void (*visit)(const Import&, void*), void* argument) {
  Imports imports{visit, argument};
  dl_iterate_phdr(VisitForImports, &imports);
}

bool Rebind(const Import& import, void* function) {
  void* page = reinterpret_cast<void*>(reinterpret_cast<ElfW(Addr)>(import.slot) & kPageMask);
  if (import.sealed && mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(import.slot, function, __ATOMIC_RELEASE);
  if (import.sealed) mprotect(page, 4096, PROT_READ);
  return true;
}

uint64_t ObjectsAdded() {
  uint64_t added = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* argument) {
        *static_cast<uint64_t*>(argument) = object->dlpi_adds;
        return 1;
      },
      &added);
  return added;
}

bool BringsHooked(const char* object) {
  const char* name = BaseName(object);
  return strncmp(name, "libcuda.so", 10) == 0 || strncmp(name, "libnvidia", 9) == 0 ||
         strncmp(name, "libc.so", 7) == 0 || strncmp(name, "ld-linux", 8) == 0;
}

const char* ObjectOf(const void* address) {
  Owner owner{address, ""};
  dl_iterate_phdr(VisitForOwner, &owner);
  return owner.object;
}

}  // namespace ravenstore::interceptor
