// Products: of few rows (product.comp), of many (tiled.comp), along stored rows (transposed.comp), of experts
// with their sum (down.comp).
#include <algorithm>

#include "backend/vulkan/emit.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

constexpr int64_t kWorkgroup = 128;  ///< of product.comp and down.comp
/// In place of infinity, which not every device has.
constexpr float kUnlimited = 3.4e38F;
/// From so many rows on tiles are quicker.
constexpr int64_t kTiledFrom = 9;

uint32_t type_of(const Tensor& tensor) { return static_cast<uint32_t>(tensor.type); }

/// What an invocation of product.comp has at once: registers are shared by units under way, outputs and rows.
struct Shares {
  int64_t outputs, ahead;
};

/// Units under way of so many: all trips to memory about alike, and no more under way than `most`.
int64_t units_ahead(int64_t units, int64_t invocations, int64_t most) {
  const int64_t each = std::max<int64_t>(1, (units + invocations - 1) / invocations);
  const int64_t trips = (each + most - 1) / most;
  return (each + trips - 1) / trips;
}

/// Outputs share what is read of the activations; more workgroups keep a large device busy.
Shares shares_of(const Emit& emit, int64_t columns, int64_t outputs, int64_t rows, bool gated) {
  constexpr int64_t kWorkgroups = 512;  ///< that keep a large device busy
  constexpr int64_t kUnderWay = 8;      ///< units of all rows and outputs
  const int64_t subgroups = std::max<int64_t>(1, kWorkgroup / emit.layout.subgroup_size);
  Shares shares{1, 1};
  const int64_t most_outputs = rows >= 4 && !gated ? 4 : 2;
  while (shares.outputs < most_outputs && outputs >= 2 * shares.outputs * kWorkgroups * subgroups)
    shares.outputs *= 2;
  const int64_t most = std::max<int64_t>(1, kUnderWay / std::max(rows, shares.outputs * (gated ? 2 : 1)));
  shares.ahead = units_ahead((columns + 7) / 8, emit.layout.subgroup_size, most);
  return shares;
}

/// Workgroups of subgroups that have `each` outputs.
uint32_t output_groups(const Emit& emit, int64_t outputs, int64_t each) {
  return groups(outputs, std::max<int64_t>(1, kWorkgroup / emit.layout.subgroup_size) * each);
}

}  // namespace

void emit_product(Emit& emit, const ProductOf& product) {
  const Tensor& weight = emit[product.weight];
  const bool gated = product.gate != kNoTensor, selected = product.ids != kNoTensor,
             normed = product.norm != kNoTensor, adds = product.added != kNoTensor;
  const int64_t rows = emit.rows(product.out), columns = weight.columns(), outputs = weight.shape[1];
  const bool tiled = rows >= kTiledFrom && !gated && !selected && !emit.layout.options.batch_invariant;
  int64_t together = 1;
  while (!selected && !emit.layout.options.batch_invariant && together < 8 && together < rows) together *= 2;
  const Place in = emit.place(product.in), out = emit.place(product.out);
  const Place added = adds ? emit.place(product.added) : Place{},
              ids = selected ? emit.place(product.ids) : Place{};
  const WeightBytesAt at = bytes_at(weight), gate = gated ? bytes_at(emit[product.gate]) : WeightBytesAt{};
  // Heads of a plain product are more columns; experts may all have the same row.
  const bool by_head = product.by_head || selected;
  const uint32_t in_head = !by_head || (selected && emit.heads(product.in) == 1) ? 0 : in.head;
  const int64_t each_head = by_head ? emit.heads(product.out) : 1;
  const Shares shares =
      shares_of(emit, columns, outputs * each_head * groups(rows, together), together, gated);
  Dispatch dispatch{.shader = tiled ? Shader::tiled : Shader::product};
  dispatch.constants = {type_of(weight),
                        gated ? type_of(emit[product.gate]) : type_of(weight),
                        static_cast<uint32_t>(together),
                        static_cast<uint32_t>(shares.outputs),
                        selected,
                        adds,
                        normed,
                        gated,
                        emit.is_aligned(product.in),
                        columns % 8 == 0,
                        static_cast<uint32_t>(shares.ahead)};
  dispatch.params = {in.at,
                     in.row,
                     in_head,
                     out.at,
                     out.row,
                     by_head ? out.head : 0,
                     added.at,
                     added.row,
                     ids.at,
                     ids.row,
                     at.first,
                     at.matrix,
                     at.row,
                     gate.first,
                     gate.matrix,
                     gate.row,
                     static_cast<uint32_t>(columns),
                     static_cast<uint32_t>(outputs),
                     emit.rows_word(product.out),
                     bits(product.epsilon),
                     bits(product.form.alpha),
                     bits(std::min(product.form.limit, kUnlimited)),
                     bits(product.form.shift)};
  const auto z = static_cast<uint32_t>(each_head);
  dispatch.groups = tiled
                        ? std::array{groups(outputs, 64), groups(rows, 64), z}
                        : std::array{output_groups(emit, outputs, shares.outputs), groups(rows, together), z};
  dispatch.weights[0] = emit.weight(product.weight);
  if (gated) dispatch.weights[1] = emit.weight(product.gate);
  if (normed) dispatch.weights[2] = emit.vector(product.norm);
  emit.list.push_back(std::move(dispatch));
}

void emit(Emit& emit, const MoeDownAdd& op) {
  const bool shared = bool(op.shared_in), adds = bool(op.residual);
  const Tensor& down = emit[op.down.id];
  const Place in = emit.place(op.in.id), out = emit.place(op.out.id), ids = emit.place(op.ids.id),
              weights = emit.place(op.weights.id), other = adds ? emit.place(op.residual.id) : Place{},
              from = shared ? emit.place(op.shared_in.id) : Place{};
  const WeightBytesAt at = bytes_at(down),
                      at_shared = shared ? bytes_at(emit[op.shared_down.id]) : WeightBytesAt{};
  const uint32_t outputs = emit.columns(op.out.id);
  constexpr int64_t kTogether = 2, kUnderWay = 8 / kTogether;
  const int64_t units = down.columns() / 8, used = emit.columns(op.ids.id);
  const int64_t shared_units = shared ? emit[op.shared_down.id].columns() / 8 : 1;
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  Dispatch dispatch{.shader = Shader::down};
  dispatch.constants = {type_of(down),
                        shared ? type_of(emit[op.shared_down.id]) : type_of(down),
                        shared,
                        u(kTogether),
                        u(units_ahead(used * units, kWorkgroup, kUnderWay)),
                        adds,
                        u(units),
                        u(shared_units),
                        u(units_ahead(shared_units, kWorkgroup, kUnderWay))};
  dispatch.params = {in.at,   in.row,   in.head,         out.at,        out.row,  other.at,  other.row,
                     ids.at,  ids.row,  weights.at,      weights.row,   at.first, at.matrix, at.row,
                     from.at, from.row, at_shared.first, at_shared.row, outputs,  u(used)};
  dispatch.groups = {groups(outputs, kTogether), static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.weights[0] = emit.weight(op.down.id);
  if (shared) dispatch.weights[1] = emit.weight(op.shared_down.id);
  emit.list.push_back(std::move(dispatch));
}

void emit_rows_product(Emit& emit, const HeadMatmul& op) {
  const Tensor& weight = emit[op.weight.id];
  const Place in = emit.place(op.in.id), out = emit.place(op.out.id);
  const WeightBytesAt at = bytes_at(weight);
  Dispatch dispatch{.shader = Shader::transposed, .constants = {type_of(weight), 0, 0}};
  dispatch.params = {in.at,
                     in.row,
                     in.head,
                     out.at,
                     out.row,
                     out.head,
                     at.first,
                     at.matrix,
                     at.row,
                     emit.columns(op.in.id),
                     static_cast<uint32_t>(weight.columns()),
                     emit.rows_word(op.out.id)};
  dispatch.groups = {groups(weight.columns(), 64 * 8), static_cast<uint32_t>(emit.rows(op.out.id)),
                     emit.heads(op.out.id)};
  dispatch.weights[0] = emit.weight(op.weight.id);
  emit.list.push_back(std::move(dispatch));
}

void emit(Emit& emit, const Embed& op) {
  const Tensor& table = emit[op.table.id];
  const Place out = emit.place(op.out.id);
  const WeightBytesAt at = bytes_at(table);
  Dispatch dispatch{.shader = Shader::transposed, .constants = {type_of(table), 1, emit.layout.step.tokens}};
  dispatch.params = {0,
                     0,
                     0,
                     out.at,
                     out.row,
                     0,
                     at.first,
                     at.matrix,
                     at.row,
                     0,
                     static_cast<uint32_t>(table.columns()),
                     emit.rows_word(op.out.id)};
  dispatch.groups = {groups(table.columns(), 64 * 8), static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.weights[0] = emit.weight(op.table.id);
  emit.list.push_back(std::move(dispatch));
}

}  // namespace sluice::backend::vulkan
