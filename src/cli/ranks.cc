#include "cli/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string_view>
#include <thread>

#include "backend/places/places_backend.h"
#include "backend/ranks/ranks_backend.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/cuda_library.h"
#include "cli/output.h"
#include "cli/page_cache.h"
#include "cli/rank_fit.h"
#include "cli/version.h"
#include "program/places.h"

namespace sluice::cli {
namespace {

using backend::Channel;
using backend::Launch;

/// The one of this process.
std::weak_ptr<Channel>& channel_here() {
  static std::weak_ptr<Channel> channel;
  return channel;
}

/// Who this process is. Throws UsageError where it is not one of so many.
Launch launch_of(const RankOptions& options) {
  const auto launch = backend::read_launch([](const char* name) { return std::getenv(name); });
  if (options.tensor_parallel > 1 && options.pipeline_parallel > 1)
    throw UsageError("--tensor-parallel, --pipeline-parallel: expected one of them");
  const int wanted = std::max(options.tensor_parallel, options.pipeline_parallel);
  if (!launch)
    throw UsageError(fmt::format(
        "{0} {1}: this process was started alone; expected {1} of them (mpirun -n {1} sluice ..., srun, or "
        "RANK, WORLD_SIZE and MASTER_ADDR in their environments)",
        options.flag(), wanted));
  if (launch->ranks != wanted)
    throw UsageError(fmt::format("{} {}: {} says that there are {} processes", options.flag(), wanted,
                                 launch->starter, launch->ranks));
  return *launch;
}

/// Threads of a rank: where ranks share a host's processors and nobody bound them, each its part.
int threads_of(const Launch& launch, int wanted) {
  const int usable = usable_threads();
  const bool bound = usable < static_cast<int>(std::thread::hardware_concurrency());
  if (wanted > 0 || bound || launch.local_ranks < 2) return wanted;
  return std::max(1, usable / launch.local_ranks);
}

/// A rank's own device: of several GPUs the one with its number, unless it was given one alone.
std::string device_of(const Launch& launch, const std::string& backend) {
  if (backend != "cuda" && backend != "auto") return backend;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool one =
      visible != nullptr && *visible != '\0' && std::string_view(visible).find(',') == std::string_view::npos;
  const int number = one ? 0 : launch.local_rank;
  std::string why;
  const bool is_there = backend == "cuda" || load_cuda_backend(number, why) != nullptr;
  return is_there ? fmt::format("cuda:{}", number) : "cpu";
}

/// What a rank's sums depend on: the kernels that its ops are bound to.
std::string kernels_of(const program::Backend& backend, const model::Model& model) {
  std::set<std::string> names;
  for (const program::BoundKernel& kernel : backend.bind({model.program, model.weights}, {}).kernels)
    names.insert(kernel.name.substr(0, kernel.name.find(':')));  // what follows changes no sum
  return fmt::format("{}", fmt::join(names, "; "));
}

std::unique_ptr<backend::Mpi> mpi_for(const RankOptions& options, const Launch& launch) {
  if (options.transport == "tcp" || (options.transport == "auto" && !launch.open_mpi)) return nullptr;
  std::string why;
  auto mpi = backend::Mpi::load(why);
  if (mpi && (mpi->rank() != launch.rank || mpi->ranks() != launch.ranks))
    why = fmt::format("MPI calls this rank {} of {}, {} rank {} of {}", mpi->rank(), mpi->ranks(),
                      launch.starter, launch.rank, launch.ranks);
  if (why.empty()) return mpi;
  if (options.transport == "mpi") fail("--transport mpi: {}", why);
  if (launch.rank == 0) note("sluice: {}; the ranks use TCP\n", terminal_safe(why));
  return nullptr;
}

std::shared_ptr<Channel> meet(const RankOptions& options, const Launch& launch,
                              const program::Backend& backend, const model::Model& model) {
  const bool is_gpu = backend.name() == "cuda";
  if (!backend.facts().parts)
    fail("{}: the backend {} runs whole steps alone", options.flag(), backend.name());
  backend::ChannelOptions channel{.launch = launch};
  channel.identity = {version(), content_identity(model.file), kernels_of(backend, model),
                      backend.available_bytes(), !is_gpu};
  if (!is_gpu) channel.mpi = mpi_for(options, launch);
  channel.tell = [](const std::string& line) { note("sluice: {}\n", terminal_safe(line)); };
  if (launch.rank != 0) {
    channel.on_loss = [](const std::string& why) {
      note("sluice: {}\n", terminal_safe(why));
      ::_exit(1);  // whatever it computes, nobody waits for
    };
  } else if (is_gpu) {
    channel.on_loss = [](const std::string&) { abort_cuda_ranks(); };
  }
  auto shared = std::make_shared<Channel>(std::move(channel));
  channel_here() = shared;
  return shared;
}

/// A rank among the others.
struct Joined {
  std::shared_ptr<program::Backend> backend;
  std::shared_ptr<Channel> channel;
  backend::Together together = {};
  std::vector<std::shared_ptr<program::Backend>> alike = {};  ///< make_ranks_backend()'s
};

/// GPUs find each other by what rank 0 makes up.
std::shared_ptr<program::Backend> join_gpus(const char* flag, const Launch& launch, int device,
                                            Channel& channel) {
  std::string why;
  std::vector<std::byte> id;
  if (launch.rank == 0) {
    id = make_cuda_rank_id(why);
    if (id.empty()) fail("{}: {}", flag, why);
    channel.send(backend::Frame::Values, backend::Packet().add_list(std::span<const std::byte>(id)));
  } else {
    const backend::Received received = channel.receive();
    if (received.kind != backend::Frame::Values) fail("rank 0 has ended");
    backend::PacketReader(received.data).list(id);
  }
  std::shared_ptr<program::Backend> backend = load_cuda_rank(device, launch.rank, launch.ranks, id, why);
  if (backend == nullptr) fail("{}: {}", flag, why);
  return backend;
}

/// Where the layers of some rank do not fit its GPU, or its memory is to be held to a size, every rank runs
/// its own by its GPU and the CPU, and hosts hand over what goes between ranks. Whether that is so.
bool share_layers(Joined& joined, const Launch& launch, int threads, const model::Model& model,
                  const Fit& fit) {
  Channel& channel = *joined.channel;
  const std::shared_ptr<program::Backend> gpu = joined.backend, cpu = make_cpu_beside_gpu(threads);
  const program::Program cut = backend::program_of_ranks(model.program, launch.ranks, backend::Deal::Layers);
  const int64_t cpu_bytes = cpu->available_bytes() / std::max(1, launch.local_ranks);
  const RankFits fits = fit_ranks(channel, fit, [&](const Fit& asked) {
    const Fitted fitted =
        fit_side_to(*gpu, program::program_at(cut, launch.rank), model.spec.context, asked, cpu_bytes);
    if (fitted.moved_bytes > cpu_bytes) fail("{}, which has too little memory", fitted.text());
    return fitted;
  });
  if (!fits.shared()) return false;
  for (const Fitted& one : fits.by_rank)
    joined.alike.push_back(backend::make_offload_side_backend(gpu, cpu, one.offload()));
  joined.backend = joined.alike[static_cast<size_t>(launch.rank)];
  if (launch.rank != 0) return true;
  for (int rank = 0; rank < launch.ranks; ++rank)
    note("[ {}: {} ]\n", channel.name(rank), fits.by_rank[static_cast<size_t>(rank)].text());
  return true;
}

/// fit: rank 0's.
Joined join(const RankOptions& options, const Launch& launch, const RankModel& wanted, const Loading& loading,
            const model::Model& model, const Fit& fit = {}) {
  const std::string device = device_of(launch, wanted.backend);
  Joined joined;
  joined.backend = make_backend(device, threads_of(launch, wanted.threads), loading);
  joined.channel = meet(options, launch, *joined.backend, model);
  if (options.pipeline_parallel > 1) joined.together.deal = backend::Deal::Layers;
  if (joined.backend->name() != "cuda") {
    if (fit.share.bytes > 0) throw UsageError("--gpu-memory: the backend is " + joined.backend->name());
    return joined;
  }
  try {
    if (options.pipeline_parallel > 1 &&
        share_layers(joined, launch, threads_of(launch, wanted.threads), model, fit))
      return joined;
    joined.backend =
        join_gpus(options.flag(), launch, std::stoi(device.substr(device.find(':') + 1)), *joined.channel);
  } catch (const Error& error) {
    joined.channel->abort(error.what());
    throw;
  }
  joined.together.exchange = backend::Exchange::ByDevices;
  return joined;
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  command
      .add_option(
          "--tensor-parallel", options.tensor_parallel,
          "cut the model into so many parts, one for each of so many processes (ranks), which mpirun, "
          "srun or RANK, WORLD_SIZE and MASTER_ADDR start with the same flags")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option(
          "--pipeline-parallel", options.pipeline_parallel,
          "deal the model's layers out to so many processes, started likewise: for models that fit no "
          "single one")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--transport", options.transport,
                  "how ranks reach each other: auto (mpi where OpenMPI's mpirun started them), mpi or tcp")
      ->check(CLI::IsMember({"auto", "mpi", "tcp"}))
      ->capture_default_str();
}

bool follows(const RankOptions& options, const RankModel& wanted) {
  if (!options.several()) return false;
  const Launch launch = launch_of(options);
  if (launch.rank == 0) return false;
  const OpenedModel model = open_model(model_path_or_bundled(wanted.path), wanted.cache);
  const Joined joined = join(options, launch, wanted, {!wanted.no_repack, model.packed}, model);
  // Who asks for an end asks rank 0, too, which may let answers end first.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_IGN);
  backend::follow(*joined.channel, *joined.backend, {model.program, model.weights}, joined.together);
  return true;
}

std::unique_ptr<program::Backend> make_ranks_backend(const RankOptions& options, const std::string& device,
                                                     int threads, const Loading& loading,
                                                     const model::Model& model, const Fit& fit) {
  Joined joined =
      join(options, launch_of(options), {.backend = device, .threads = threads}, loading, model, fit);
  note(
      "[ {} ranks by {} ]\n", joined.channel->ranks(),
      joined.together.exchange == backend::Exchange::ByDevices ? "their devices" : joined.channel->carrier());
  return backend::make_ranks_backend(std::move(joined.backend), std::move(joined.channel), joined.together,
                                     std::move(joined.alike));
}

int64_t rank_exchange_ns() {
  const auto channel = channel_here().lock();
  return channel ? channel->exchanged_ns() + cuda_rank_sums_ns() : 0;
}

std::string rank_failure() {
  const auto channel = channel_here().lock();
  return channel ? channel->failure() : "";
}

}  // namespace sluice::cli
