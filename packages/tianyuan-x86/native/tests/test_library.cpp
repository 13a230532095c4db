// The built library: its table, its tiers and a kernel of each run through the ABI.
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "api.hpp"
#include "check.hpp"
#include "detect.hpp"

namespace {

using tianyuan_x86::Api;

const Api &api() { return *tianyuan_x86_api(); }

void tiers_need_their_features() {
  const uint32_t found = api().features();
  for (int64_t rank = 0; api().tier(rank) != nullptr; ++rank) {
    const std::string name = api().tier(rank);
    CHECK(name == "avx2" || name == "avx512" || name == "vnni" || name == "bf16" || name == "amx");
    CHECK((found & TY_X86_AVX2) != 0 && (found & TY_X86_OS_YMM) != 0);
    if (name == "amx") CHECK(rank == 0);
    if (name == "bf16") CHECK((found & TY_X86_AVX512_BF16) != 0);
    if (name == "vnni" || name == "amx") {
      CHECK((found & TY_X86_AVX512_VNNI) != 0);
    }
    if (name != "avx2") {
      CHECK((found & TY_X86_AVX512F) != 0 && (found & TY_X86_OS_ZMM) != 0);
    }
  }
}

void kernels_are_well_formed() {
  const ty_kernel_table &table = *api().kernels();
  CHECK(table.abi_version == TY_ABI_VERSION && table.struct_size == sizeof(ty_kernel_table));
  CHECK(table.count > 0 || api().tier(0) == nullptr);
  std::set<std::string> names;
  for (int64_t i = 0; i < table.count; ++i) {
    const ty_kernel &kernel = table.kernels[i];
    CHECK(kernel.abi_version == TY_ABI_VERSION && kernel.struct_size == sizeof(ty_kernel));
    CHECK(kernel.run != nullptr);
    CHECK(std::strstr(kernel.name, "__avx") != nullptr ||
          std::strstr(kernel.name, "__vnni_") != nullptr ||
          std::strstr(kernel.name, "__bf16_") != nullptr ||
          std::strstr(kernel.name, "__amx_") != nullptr);
    CHECK(names.insert(kernel.name).second);
  }
}

ty_run find(const std::string &name) {
  const ty_kernel_table &table = *api().kernels();
  for (int64_t i = 0; i < table.count; ++i) {
    if (name == table.kernels[i].name) return table.kernels[i].run;
  }
  return nullptr;
}

void copy_copies_in_every_tier() {
  const ty_thread_pool &pool = *api().pool();
  CHECK(&pool == api().own_pool());
  for (int64_t rank = 0; api().tier(rank) != nullptr; ++rank) {
    const std::string name = api().tier(rank);
    if (name.compare(0, 3, "avx") != 0) continue;  // the others have kernels of their types only
    const ty_run run = find("copy_any__" + name + "_memcpy");
    CHECK(run != nullptr);
    std::vector<double> from(100003), to(100003, -1.0);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<double>(i);
    ty_tensor x = {};
    x.abi_version = TY_ABI_VERSION;
    x.struct_size = sizeof x;
    x.dtype = TY_FLOAT64;
    x.ndim = 1;
    x.shape[0] = static_cast<int64_t>(from.size());
    ty_tensor y = x;
    x.data = from.data();
    y.data = to.data();
    const ty_attrs attrs = {TY_ABI_VERSION, sizeof(ty_attrs), 1, 1, 1};
    char error[64] = "";
    const ty_ctx ctx = {
        TY_ABI_VERSION, sizeof(ty_ctx), pool.size(pool.self), 0,      pool.parallel_for,
        pool.self,      error,          sizeof error,         nullptr};
    CHECK(run(&ctx, &x, &y, &attrs, nullptr) == 0);
    CHECK(from == to);
  }
}

void bad_programs_come_back_with_the_reason() {
  tianyuan::runtime::SlotDesc slot = {};
  slot.kind = 99;
  tianyuan::runtime::ProgramDesc program = {};
  program.slots = &slot;
  program.n_slots = 1;
  char error[128] = "";
  CHECK(api().executor_create(&program, error, sizeof error) == nullptr);
  CHECK(std::strstr(error, "slot 0 is of an unknown kind, got 99") != nullptr);
}

}  // namespace

int main() {
  RUN(tiers_need_their_features);
  RUN(kernels_are_well_formed);
  RUN(copy_copies_in_every_tier);
  RUN(bad_programs_come_back_with_the_reason);
  return 0;
}
