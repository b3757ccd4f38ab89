// Chooses the kernel of a GEMM by the weight's family, and whether weights are streamed through shared
// memory: few tokens a tile, rows that come in whole groups of 16.
#include <array>
#include <climits>
#include <span>

#include "backend/cuda/gemm/gemm_parts.h"
#include "backend/cuda/gemm/gemm_stream.cuh"
#include "backend/cuda/gemm/gemm_wgmma.cuh"
#include "backend/cuda/host/format.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/on_device.h"

namespace sluice::backend::cuda {
namespace {

/// Shared memory of an SM's one thread block on compute capabilities 9.0 and 10.0.
constexpr int64_t kStreamShared = 224 * 1024;

template <Family kFamily>
void multiply_family(const Product& product, int64_t tiles, bool by_wgmma, const Context& context) {
  if (by_wgmma) return launch_large<kFamily>(product, tiles, context);
  launch_tiles<kFamily>(product, tiles, context);
}

/// Any kernel of this file's, to ask what code the device runs.
__global__ void asked_for_version() {}

/// Major version of the device, and of the code that it runs: not another one's.
int native_version(const void* kernel) {
  int major = 0;
  cudaFuncAttributes attributes{};
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_device()));
  check(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90 ? major : 0;
}

bool has_bulk_copies() {
  static PerDevice<int> versions;
  const int version =
      versions.of_current([] { return native_version(reinterpret_cast<const void*>(asked_for_version)); });
  return version == 9 || version == 10;
}

/// Where a product's planes lie in a slot of so many columns; false: they are not copied whole.
bool planes_of(const Product& product, int64_t piece_columns, stream::Planes& planes, int32_t& side_bytes) {
  const Matrix& m = product.weight;
  const Format* format = find_format(m.type);
  if (format == nullptr || m.columns % 32 != 0) return false;
  const int64_t pieces = (m.columns + piece_columns - 1) / piece_columns;
  const auto bytes = [&](int64_t columns) {
    const PlaneBytes all = plane_bytes(m.type, columns);
    return std::array{all.codes, all.high, all.scale, all.super};
  };
  const auto row = bytes(m.columns), piece = bytes(std::min<int64_t>(m.columns, piece_columns));
  if (pieces > 1 && m.columns % 256 != 0) return false;
  side_bytes = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const int64_t last = row[i] - (pieces - 1) * piece[i];
    if (pieces > 1 && (row[i] % 16 != 0 || piece[i] % 16 != 0 || last % 16 != 0)) return false;
    planes.row_bytes[i] = static_cast<int32_t>(row[i]),
    planes.piece_bytes[i] = static_cast<int32_t>(piece[i]);
    planes.offset[i] = side_bytes;
    side_bytes += static_cast<int32_t>((stream::kRows * piece[i] + 127) / 128 * 128);
  }
  return true;
}

bool in_groups(const Matrix& m) {
  return m.rows % stream::kRows == 0 && m.first_row % stream::kRows == 0 &&
         (m.matrices == 1 || m.matrix_rows % stream::kRows == 0);
}

/// Fills in what the products' streaming takes in pieces of so many columns; false: they are not streamed.
bool plan_split(std::span<const Product> products, std::span<const int64_t> tiles, int64_t piece_columns,
                const Context& context, stream::Args& args) {
  const Product& first = products[0];
  const int tokens = first.plan.tile_tokens;
  if (tokens > stream::kMostTokens || products.size() > stream::kMostProducts || !has_bulk_copies())
    return false;
  int64_t items = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    if (product.weight.type != first.weight.type || product.weight.columns != first.weight.columns ||
        product.gated != first.gated || product.plan.tile_tokens != tokens || !in_groups(product.weight) ||
        (product.gated && (product.up.type != first.weight.type || !in_groups(product.up)))) {
      return false;
    }
    stream::Item& item = args.item[i];
    item.product = product;
    if (!planes_of(product, piece_columns, item.planes, args.side_bytes)) return false;
    item.across = product.weight.rows / stream::kRows, item.tiles = static_cast<int32_t>(tiles[i]);
    items += item.across * tiles[i];
  }
  args.products = static_cast<int32_t>(products.size());
  args.items = static_cast<int32_t>(std::min<int64_t>(items, INT32_MAX));
  args.piece_columns = static_cast<int32_t>(piece_columns);
  args.pieces = static_cast<int32_t>((first.weight.columns + piece_columns - 1) / piece_columns);
  args.n_tiles = tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4;
  args.slot_bytes = args.side_bytes * (first.gated ? 2 : 1);
  const int64_t room = kStreamShared - stream::reduction_bytes(args.n_tiles, first.gated) -
                       stream::token_slots_bytes(args.n_tiles);
  const int64_t slots = std::min<int64_t>(room / args.slot_bytes, stream::kMostSlots);
  // Where an SM has few items, more warps take one together, as far as there are columns.
  const int64_t each = (items + context.sm_count - 1) / context.sm_count;
  const int64_t chunks = (first.weight.columns + kChunkColumns - 1) / kChunkColumns;
  args.group_warps = each > 4 || chunks <= 4 ? 4 : each > 2 || chunks <= 8 ? 8 : 16;
  // A barrier's phase is one bit, and copies may end in any order: who waits for a slot has itself emptied it
  // the round before. So every group has slots of its own.
  const auto groups = [&] { return stream::kConsumerWarps / args.group_warps; };
  while (args.group_warps < stream::kConsumerWarps && groups() * args.pieces > slots) args.group_warps *= 2;
  const int64_t round = groups() > 1 ? groups() * args.pieces : 1;
  args.slots = static_cast<int32_t>(slots / round * round);
  return args.slots >= 2;
}

/// Whole rows where two slots have room for them: their copies are few and large.
bool plan_stream(std::span<const Product> products, std::span<const int64_t> tiles, const Context& context,
                 stream::Args& args) {
  constexpr int64_t kPieceColumns = 2048;
  return plan_split(products, tiles, products[0].weight.columns, context, args) ||
         (products[0].weight.columns > kPieceColumns &&
          plan_split(products, tiles, kPieceColumns, context, args));
}

}  // namespace

bool has_wgmma() {
  static PerDevice<bool> has;
  return has.of_current([] {
    return native_version(reinterpret_cast<const void*>(
               multiply_large<Family::Bits4, quant::Type::Q4_0, kLargeTokens>)) == 9;
  });
}

bool multiply_streamed(std::span<const Product> products, std::span<const int64_t> tiles,
                       const Context& context) {
  stream::Args args{};
  Family family{};
  if (!family_of(products[0].weight.type, family) || !plan_stream(products, tiles, context, args))
    return false;
  switch (family) {
    case Family::Bits4: launch_stream<Family::Bits4>(args, context); break;
    case Family::Bits5: launch_stream<Family::Bits5>(args, context); break;
    case Family::Bits6: launch_stream<Family::Bits6>(args, context); break;
    case Family::Bits8: launch_stream<Family::Bits8>(args, context); break;
    case Family::Bits2And3: launch_stream<Family::Bits2And3>(args, context); break;
    case Family::Table: launch_stream<Family::Table>(args, context); break;
    case Family::Points: launch_stream<Family::Points>(args, context); break;
    case Family::F16:
    case Family::Bf16:
    case Family::F32: return false;
  }
  return true;
}

void multiply_gemm(const Product& product, int64_t tiles, bool by_wgmma, const Context& context) {
  Family family{};
  if (!family_of(product.weight.type, family)) return;  // who binds has asked before
  if (!by_wgmma && multiply_streamed({&product, 1}, {&tiles, 1}, context)) return;
  switch (family) {
    case Family::Bits4: return multiply_family<Family::Bits4>(product, tiles, by_wgmma, context);
    case Family::Bits5: return multiply_family<Family::Bits5>(product, tiles, by_wgmma, context);
    case Family::Bits6: return multiply_family<Family::Bits6>(product, tiles, by_wgmma, context);
    case Family::Bits8: return multiply_family<Family::Bits8>(product, tiles, by_wgmma, context);
    case Family::Bits2And3: return multiply_family<Family::Bits2And3>(product, tiles, by_wgmma, context);
    case Family::Table: return multiply_family<Family::Table>(product, tiles, by_wgmma, context);
    case Family::Points: return multiply_family<Family::Points>(product, tiles, by_wgmma, context);
    case Family::F16: return multiply_family<Family::F16>(product, tiles, by_wgmma, context);
    case Family::Bf16: return multiply_family<Family::Bf16>(product, tiles, by_wgmma, context);
    case Family::F32: return multiply_family<Family::F32>(product, tiles, by_wgmma, context);
  }
}

}  // namespace sluice::backend::cuda
