#include "backend/ranks/mpi.h"

#include <dlfcn.h>
#include <sched.h>

#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace sluice::backend {
namespace {

constexpr const char* kLibrary = "libmpi.so.40";
constexpr int kTag = 60;
constexpr int kSerialized = 2;        // MPI_THREAD_SERIALIZED: one thread at a time calls
void* in_place() {                    // MPI_IN_PLACE
  return reinterpret_cast<void*>(1);  // NOLINT(performance-no-int-to-ptr): so it is defined
}

int count_of(std::span<const float> values) {
  CHECK(values.size() <= static_cast<size_t>(std::numeric_limits<int>::max()), "MPI counts in int");
  return static_cast<int>(values.size());
}

}  // namespace

struct Mpi::Functions {
  // Handles are addresses of these.
  void *world, *bytes, *floats, *return_errors;
  int (*init)(int*, char***, int, int*);
  int (*finalize)();
  int (*comm_rank)(void*, int*);
  int (*comm_size)(void*, int*);
  int (*set_errors)(void*, void*);
  int (*bcast)(void*, int, void*, int, void*);
  int (*allgather)(const void*, int, void*, void*, const int*, const int*, void*, void*, void**);
  int (*send)(const void*, int, void*, int, int, void*, void**);
  int (*receive)(void*, int, void*, int, int, void*, void**);
  int (*test)(void**, int*, void*);
};

Mpi::Mpi() : f_(std::make_unique<Functions>()) {}

std::unique_ptr<Mpi> Mpi::load(std::string& why) {
  // Its own modules look for its symbols among everybody's.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    why = fmt::format("OpenMPI's library cannot be loaded: {}", ::dlerror());
    return nullptr;
  }
  std::unique_ptr<Mpi> mpi(new Mpi);
  Functions& f = *mpi->f_;
  std::string missing;
  const auto find = [&](const char* name, auto& to) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr && missing.empty()) missing = name;
    to = reinterpret_cast<std::decay_t<decltype(to)>>(found);
  };
  find("ompi_mpi_comm_world", f.world);
  find("ompi_mpi_byte", f.bytes);
  find("ompi_mpi_float", f.floats);
  find("ompi_mpi_errors_return", f.return_errors);
  find("MPI_Init_thread", f.init);
  find("MPI_Finalize", f.finalize);
  find("MPI_Comm_rank", f.comm_rank);
  find("MPI_Comm_size", f.comm_size);
  find("MPI_Comm_set_errhandler", f.set_errors);
  find("MPI_Bcast", f.bcast);
  find("MPI_Iallgatherv", f.allgather);
  find("MPI_Isend", f.send);
  find("MPI_Irecv", f.receive);
  find("MPI_Test", f.test);
  if (!missing.empty()) {
    why = fmt::format("{} lacks {}: expected OpenMPI's", kLibrary, missing);
    mpi->left_ = true;
    return nullptr;
  }
  int provided = 0;
  if (f.init(nullptr, nullptr, kSerialized, &provided) != 0 || provided < kSerialized) {
    why = "OpenMPI does not start, or not for several threads";
    mpi->left_ = true;
    return nullptr;
  }
  f.set_errors(f.world, f.return_errors);
  f.comm_rank(f.world, &mpi->rank_);
  f.comm_size(f.world, &mpi->ranks_);
  return mpi;
}

Mpi::~Mpi() {
  if (!left_) f_->finalize();
}

void Mpi::broadcast(std::span<std::byte> bytes) const {
  if (f_->bcast(bytes.data(), static_cast<int>(bytes.size()), f_->bytes, 0, f_->world) != 0)
    fail("MPI_Bcast failed");
}

bool Mpi::gather(std::span<float> all, std::span<const int64_t> counts, const std::function<bool()>& go_on) {
  (void)count_of(all);
  counts_.clear(), firsts_.clear();
  int first = 0;
  for (const int64_t count : counts) {
    counts_.push_back(static_cast<int>(count));
    firsts_.push_back(first);
    first += counts_.back();
  }
  void* request = nullptr;
  if (f_->allgather(in_place(), 0, f_->floats, all.data(), counts_.data(), firsts_.data(), f_->floats,
                    f_->world, &request) != 0)
    fail("MPI_Iallgatherv failed");
  return wait(request, go_on);
}

bool Mpi::give(int rank, std::span<const float> values, const std::function<bool()>& go_on) const {
  void* request = nullptr;
  if (f_->send(values.data(), count_of(values), f_->floats, rank, kTag, f_->world, &request) != 0)
    fail("MPI_Isend failed");
  return wait(request, go_on);
}

bool Mpi::take(int rank, std::span<float> values, const std::function<bool()>& go_on) const {
  void* request = nullptr;
  if (f_->receive(values.data(), count_of(values), f_->floats, rank, kTag, f_->world, &request) != 0)
    fail("MPI_Irecv failed");
  return wait(request, go_on);
}

bool Mpi::wait(void* request, const std::function<bool()>& go_on) const {
  for (int done = 0;;) {
    if (f_->test(&request, &done, nullptr) != 0) fail("MPI_Test failed");
    if (done != 0) return true;
    if (!go_on()) return false;
    ::sched_yield();
  }
}

}  // namespace sluice::backend
