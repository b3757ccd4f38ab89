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

/// Experts that group.comp has shared memory for.
constexpr int64_t kMostGrouped = 1024;
/// Which of its parameters is the norm's epsilon.
constexpr size_t kEpsilonParam = 19;

uint32_t type_of(const Tensor& tensor) { return static_cast<uint32_t>(tensor.type); }

/// What an invocation of product.comp has at once: registers are shared by units under way, outputs and rows.
struct Shares {
  int64_t outputs, ahead;
};

/// Units whose loads an invocation has under way. A device with small subgroups is a processor, for which
/// that many are nothing but more to compile.
int64_t units_under_way(const Emit& emit) { return emit.layout.subgroup_size >= 16 ? 8 : 2; }

/// Units under way of so many: all trips to memory about alike, and no more under way than `most`.
int64_t units_ahead(int64_t units, int64_t invocations, int64_t most) {
  const int64_t each = std::max<int64_t>(1, (units + invocations - 1) / invocations);
  const int64_t trips = (each + most - 1) / most;
  return (each + trips - 1) / trips;
}

/// Outputs share what is read of the activations; more workgroups keep a large device busy.
Shares shares_of(const Emit& emit, int64_t columns, int64_t outputs, int64_t rows, bool gated) {
  const bool several = rows >= 4;
  const int64_t workgroups = several ? 128 : 512;  // that keep a large device busy
  const int64_t subgroups = std::max<int64_t>(1, kWorkgroup / emit.layout.subgroup_size);
  Shares shares{1, 1};
  const int64_t most_outputs = several && !gated ? 4 : 2;
  while (shares.outputs < most_outputs && outputs >= 2 * shares.outputs * workgroups * subgroups)
    shares.outputs *= 2;
  const int64_t most =
      std::max<int64_t>(1, units_under_way(emit) / (several ? 4 : 1) / (shares.outputs * (gated ? 2 : 1)));
  shares.ahead = units_ahead((columns + 7) / 8, emit.layout.subgroup_size, most);
  return shares;
}

/// Columns of rows that product.comp has in a workgroup's memory at a time; 0: they have no such place there.
uint32_t staged_columns(const ProductOf& product, int64_t columns, int64_t rows) {
  constexpr int64_t kMostFloats = 6144;  ///< of 32 KB, which every device has
  constexpr int64_t kBlock = 256;        ///< columns that no format's unit goes beyond
  if (product.merge != nullptr) return static_cast<uint32_t>(columns);
  if (columns % 8 != 0 || !product.in.aligned) return 0;
  if (columns * rows <= kMostFloats) return static_cast<uint32_t>(columns);
  return static_cast<uint32_t>(kMostFloats / rows / kBlock * kBlock);
}

/// Workgroups of subgroups that have `each` outputs.
uint32_t output_groups(const Emit& emit, int64_t outputs, int64_t each) {
  return groups(outputs, std::max<int64_t>(1, kWorkgroup / emit.layout.subgroup_size) * each);
}

}  // namespace

bool is_tiled(const Emit& emit, int64_t rows) {
  return rows >= kTiledFrom && !emit.layout.options.batch_invariant;
}

namespace {

/// What product.comp does beside a product (its constants from 12 on, and `more`), for a dispatch that does
/// the product already.
void add_side(const Emit& emit, const SideProduct& side, int64_t each, Dispatch& dispatch) {
  const Tensor& weight = emit[side.weight];
  const WeightBytesAt at = bytes_at(weight);
  const auto outputs = static_cast<uint32_t>(weight.shape[1]);
  dispatch.constants.insert(dispatch.constants.end(), {1, type_of(weight)});
  dispatch.params.insert(dispatch.params.end(), {dispatch.groups[0], at.first, at.row, outputs,
                                                 side.out.place.at, side.out.place.row});
  dispatch.groups[0] += output_groups(emit, outputs, each);
  dispatch.weights[3] = emit.weight(side.weight);
}

void add_merge(const Merge& merge, Dispatch& dispatch) {
  dispatch.constants.insert(dispatch.constants.end(), {0, 0, merge.stretches});
  dispatch.params.push_back(merge.partial_at);
}

void add_choice(const Emit& emit, const Choice& choice, Dispatch& dispatch) {
  const Route& rule = *choice.rule;
  dispatch.constants.insert(
      dispatch.constants.end(),
      {0, 0, 0, choice.logits.columns, rule.gating == Gating::Sigmoid, bool(rule.bias), rule.normalize});
  const Place &logits = choice.logits.place, &weights = choice.weights.place;
  dispatch.params.insert(dispatch.params.end(),
                         {logits.at, logits.row, weights.at, weights.row, bits(rule.scale)});
  if (rule.bias) dispatch.weights[3] = emit.vector(rule.bias.id);
}

void add_latent(const Emit& emit, const LatentRows& latent, Dispatch& dispatch) {
  const StepLayout& step = emit.layout.step;
  dispatch.constants.resize(19);
  dispatch.constants.push_back(1);
  const std::vector<uint32_t> of_row = latent_constants(emit, latent);
  dispatch.constants.insert(dispatch.constants.end(), of_row.begin(), of_row.end());
  dispatch.params.insert(dispatch.params.end(),
                         {latent.kv.place.at, latent.kv.place.row,
                          step.angles_at(latent.rope, latent.rotated / 2, latent.factors), step.slots});
  dispatch.params[kEpsilonParam] = bits(latent.epsilon);
  ++dispatch.groups[2];
  dispatch.weights[2] = emit.vector(latent.norm);
  dispatch.cache = latent.cache, dispatch.cache_layer = latent.layer;
}

constexpr int64_t kTile = 64;  ///< rows and outputs of tiled.comp

/// Rows of many go to their experts' tiles in the order of experts.
void add_groups(Emit& emit, const Operand& ids, int64_t experts, uint32_t outputs, Dispatch& dispatch) {
  const int64_t entries = ids.rows * ids.columns;
  const int64_t tiles = (entries + kTile - 1) / kTile + std::min(experts, entries);
  const uint32_t list = emit.scratch_at(entries), tiles_at = emit.scratch_at(4 + 4 * tiles);
  Dispatch group{.shader = Shader::group};
  group.constants = {static_cast<uint32_t>(experts), kTile};
  group.params = {ids.place.at, ids.place.row, ids.columns, list, tiles_at};
  emit.add(std::move(group));
  emit.wait();
  dispatch.constants.push_back(1);
  dispatch.params.insert(dispatch.params.end(), {list, tiles_at, ids.columns});
  dispatch.groups = {groups(outputs, kTile), static_cast<uint32_t>(tiles), 1};
}

/// Rows of a step that an invocation multiplies together.
int64_t rows_together(const Emit& emit, int64_t rows, bool selected) {
  int64_t together = 1;
  while (!selected && !emit.layout.options.batch_invariant && together < 8 && together < rows) together *= 2;
  return together;
}

}  // namespace

void emit_product(Emit& emit, const ProductOf& product) {
  const Tensor& weight = emit[product.weight];
  const bool gated = product.gate != kNoTensor, selected = product.ids != nullptr,
             normed = product.norm != kNoTensor, adds = product.added != nullptr;
  const Operand &in = product.in, &out = product.out;
  const int64_t rows = out.rows, columns = weight.columns(), outputs = weight.shape[1];
  const bool tiled = is_tiled(emit, rows) && (!selected || weight.shape[0] <= kMostGrouped);
  if (product.side != nullptr && tiled) {
    ProductOf alone = product;
    alone.side = nullptr;
    emit_product(emit, alone);
    alone.weight = product.side->weight, alone.out = product.side->out, alone.gate = kNoTensor;
    return emit_product(emit, alone);
  }
  const int64_t together = rows_together(emit, rows, selected);
  const Place added = adds ? product.added->place : Place{}, ids = selected ? product.ids->place : Place{};
  const WeightBytesAt at = bytes_at(weight), gate = gated ? bytes_at(emit[product.gate]) : WeightBytesAt{};
  // Heads of a plain product are more columns; experts may all have the same row.
  const bool by_head = product.by_head || selected;
  const uint32_t in_head = !by_head || (selected && in.heads == 1) ? 0 : in.place.head;
  const int64_t each_head = by_head ? out.heads : 1;
  Shares shares = shares_of(emit, columns, outputs * each_head * groups(rows, together), together, gated);
  // What is merged, is merged by every workgroup again: few of them have all outputs.
  if (product.merge != nullptr) shares = {4, units_ahead(columns / 8, emit.layout.subgroup_size, 2)};
  Dispatch dispatch{.shader = tiled ? Shader::tiled : Shader::product};
  dispatch.constants = {type_of(weight),
                        gated ? type_of(emit[product.gate]) : type_of(weight),
                        static_cast<uint32_t>(together),
                        static_cast<uint32_t>(shares.outputs),
                        selected,
                        adds,
                        normed,
                        gated,
                        in.aligned,
                        columns % 8 == 0,
                        static_cast<uint32_t>(shares.ahead),
                        tiled ? 0 : staged_columns(product, columns, together)};
  dispatch.params = {in.place.at,
                     in.place.row,
                     in_head,
                     out.place.at,
                     out.place.row,
                     by_head ? out.place.head : 0,
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
                     out.rows_word,
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
  if (tiled && selected)
    add_groups(emit, *product.ids, weight.shape[0], static_cast<uint32_t>(outputs), dispatch);
  if (product.side != nullptr) add_side(emit, *product.side, shares.outputs, dispatch);
  if (product.merge != nullptr) add_merge(*product.merge, dispatch);
  if (product.choice != nullptr) add_choice(emit, *product.choice, dispatch);
  if (product.latent != nullptr) add_latent(emit, *product.latent, dispatch);
  emit.add(std::move(dispatch));
}

namespace {

/// Products of all experts apart, and their sum; false: they take too much room.
bool emit_down_of_many(Emit& emit, const MoeDownAdd& op) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const Operand ids = emit.operand(op.ids.id), out = emit.operand(op.out.id);
  const Tensor& down = emit[op.down.id];
  if (!is_tiled(emit, out.rows) || down.shape[0] > kMostGrouped ||
      out.rows * ids.columns * out.columns * 4 > kMostBytes)
    return false;
  const Operand each = emit.scratch(ids.columns, out.columns);
  const Operand residual = op.residual ? emit.operand(op.residual.id) : Operand{};
  const Operand* onto = op.residual ? &residual : nullptr;
  if (op.shared_in) {
    emit_product(
        emit, {.in = emit.operand(op.shared_in.id), .weight = op.shared_down.id, .out = out, .added = onto});
    onto = &out;
  }
  emit_product(emit, {.in = emit.operand(op.in.id), .weight = op.down.id, .out = each, .ids = &ids});
  emit.wait();
  emit_combine(emit, each, emit.operand(op.weights.id), onto, out);
  return true;
}

}  // namespace

void emit(Emit& emit, const MoeDownAdd& op) {
  if (emit_down_of_many(emit, op)) return;
  const bool shared = bool(op.shared_in), adds = bool(op.residual);
  const Tensor& down = emit[op.down.id];
  const Place in = emit.place(op.in.id), out = emit.place(op.out.id), ids = emit.place(op.ids.id),
              weights = emit.place(op.weights.id), other = adds ? emit.place(op.residual.id) : Place{},
              from = shared ? emit.place(op.shared_in.id) : Place{};
  const WeightBytesAt at = bytes_at(down),
                      at_shared = shared ? bytes_at(emit[op.shared_down.id]) : WeightBytesAt{};
  const uint32_t outputs = emit.columns(op.out.id);
  constexpr int64_t kTogether = 2;
  const int64_t under_way = units_under_way(emit) / kTogether;
  const int64_t units = down.columns() / 8, used = emit.columns(op.ids.id);
  const int64_t shared_units = shared ? emit[op.shared_down.id].columns() / 8 : 1;
  const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
  Dispatch dispatch{.shader = Shader::down};
  dispatch.constants = {type_of(down),
                        shared ? type_of(emit[op.shared_down.id]) : type_of(down),
                        shared,
                        u(kTogether),
                        u(units_ahead(used * units, kWorkgroup, under_way)),
                        adds,
                        u(units),
                        u(shared_units),
                        u(units_ahead(shared_units, kWorkgroup, under_way))};
  dispatch.params = {in.at,   in.row,   in.head,         out.at,        out.row,  other.at,  other.row,
                     ids.at,  ids.row,  weights.at,      weights.row,   at.first, at.matrix, at.row,
                     from.at, from.row, at_shared.first, at_shared.row, outputs,  u(used)};
  dispatch.groups = {groups(outputs, kTogether), static_cast<uint32_t>(emit.sizes.rows), 1};
  dispatch.weights[0] = emit.weight(op.down.id);
  if (shared) dispatch.weights[1] = emit.weight(op.shared_down.id);
  emit.add(std::move(dispatch));
}

void emit_rows_product(Emit& emit, const Operand& in, TensorId id, const Operand& out) {
  const Tensor& weight = emit[id];
  const WeightBytesAt at = bytes_at(weight);
  Dispatch dispatch{.shader = Shader::transposed, .constants = {type_of(weight), 0, 0}};
  dispatch.params = {in.place.at,
                     in.place.row,
                     in.place.head,
                     out.place.at,
                     out.place.row,
                     out.place.head,
                     at.first,
                     at.matrix,
                     at.row,
                     in.columns,
                     static_cast<uint32_t>(weight.columns()),
                     out.rows_word};
  dispatch.groups = {groups(weight.columns(), 64 * 8), static_cast<uint32_t>(out.rows), out.heads};
  dispatch.weights[0] = emit.weight(id);
  emit.add(std::move(dispatch));
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
  emit.add(std::move(dispatch));
}

}  // namespace sluice::backend::vulkan
