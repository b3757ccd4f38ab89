// Products: of few rows (product.comp), of many (tiled.comp), along stored rows (transposed.comp), of experts
// with their sum (down.comp).
#include <algorithm>
#include <optional>

#include "backend/vulkan/emit.h"

namespace sluice::backend::vulkan {

using namespace program;

namespace {

constexpr int64_t kWorkgroup = 256;  ///< of product.comp and down.comp
constexpr int64_t kRun = 32;         ///< columns
/// In place of infinity, which not every device has.
constexpr float kUnlimited = 3.4e38F;
/// From so many rows on those of an expert are multiplied together, and from so many on tiles are quicker.
constexpr int64_t kGroupedFrom = 9, kTiledFrom = 65;
/// Rows that product.comp multiplies together at most.
constexpr int64_t kMostTogether = 8;

/// Which of its constants says how many quads of its memory rows take; the next one, how many steps.
constexpr size_t kRoomConstant = 28;
/// Which of its parameters is the norm's epsilon.
constexpr size_t kEpsilonParam = 20;
/// Where the weight, its gate and the norm are; and what product.comp does beside them.
constexpr int kWeightParam = 10, kGateParam = 13, kMoreParam = 24, kNormParam = 31;
/// Likewise, of down.comp.
constexpr int kExpertsParam = 11, kSharedParam = 16;

uint32_t u(int64_t number) { return static_cast<uint32_t>(number); }
uint32_t type_of(const Tensor& tensor) { return static_cast<uint32_t>(tensor.type); }

/// How product.comp shares its work out: `lanes` invocations have the same outputs, with `ahead` runs of each
/// under way.
struct Shares {
  int64_t outputs, ahead, lanes;
};

/// Runs whose loads an invocation has under way, of all its outputs. More would be quicker by itself; but in
/// a model the code that they take is not there when a kernel starts.
constexpr int64_t kRunsUnderWay = 2;

/// Runs under way of so many: all trips to memory about alike, and no more under way than `most`.
int64_t runs_ahead(int64_t runs, int64_t lanes, int64_t most) {
  most = std::max<int64_t>(1, most);
  const int64_t each = std::max<int64_t>(1, (runs + lanes - 1) / lanes);
  const int64_t trips = (each + most - 1) / most;
  return (each + trips - 1) / trips;
}

/// Lanes of which few are idle in the last turn.
int64_t lanes_for(int64_t runs) {
  int64_t best = 32, waste = runs;
  for (const int64_t lanes : {32, 16, 8}) {
    const int64_t idle = (runs + lanes - 1) / lanes * lanes - runs;
    if (idle * 8 < runs) return lanes;
    if (idle < waste) best = lanes, waste = idle;
  }
  return best;
}

/// Outputs share what is made and read of the activations; workgroups keep a large device busy.
Shares shares_of(const Tensor& weight, int64_t outputs, int64_t rows, bool gated) {
  constexpr int64_t kWorkgroups = 128, kMostOutputs = 4;
  const int64_t runs = weight.columns() / kRun, lanes = is_of_runs(weight) ? lanes_for(runs) : 32;
  Shares shares{1, 1, lanes};
  while (shares.outputs < (rows >= 4 && gated ? 2 : kMostOutputs) &&
         outputs >= 2 * shares.outputs * kWorkgroup / lanes * kWorkgroups)
    shares.outputs *= 2;
  const int64_t each = shares.outputs * (gated ? 2 : 1) * (rows >= 4 ? 2 : 1);
  shares.ahead = runs_ahead(runs, lanes, kRunsUnderWay / each);
  return shares;
}

/// Of a workgroup's memory, for rows of activations: 16 codes or four floats each, and a step for 16 codes.
struct Room {
  int64_t quads = 1, steps = 1;
};
/// For so many rows of the products beside each other; as much as there is of them, and no more than `most`
/// quads.
Room room_for(int64_t rows, int64_t columns, bool any_coded, bool any_floats, int64_t most) {
  Room room;
  if (any_coded) room.steps = std::min(rows * columns / 16, most * 2 / 3);
  room.quads = room.steps;
  if (any_floats)
    room.quads = std::max(room.quads, std::min(rows * ((columns + 7) / 8 * 2), most - room.steps / 2));
  return room;
}

/// Workgroups whose lanes have `each` outputs.
uint32_t output_groups(int64_t outputs, const Shares& shares) {
  return groups(outputs, kWorkgroup / shares.lanes * shares.outputs);
}

}  // namespace

bool is_of_runs(const Tensor& weight) {
  using enum quant::Type;
  constexpr std::array kOfRuns = {Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K};
  return std::find(kOfRuns.begin(), kOfRuns.end(), weight.type) != kOfRuns.end();
}

bool are_grouped(const Emit& emit, int64_t rows) {
  return rows >= kGroupedFrom && !emit.layout.options.batch_invariant;
}

bool is_tiled(const Emit& emit, int64_t rows) {
  return rows >= kTiledFrom && !emit.layout.options.batch_invariant;
}

namespace {

/// What product.comp does beside a product (its constants from 12 on, and `more`), for a dispatch that does
/// the product already.
void add_side(const Emit& emit, const SideProduct& side, const Shares& shares, Dispatch& dispatch) {
  const Tensor& weight = emit[side.weight];
  const WeightBytesAt at = bytes_at(weight);
  const auto outputs = static_cast<uint32_t>(weight.shape[1]);
  dispatch.constants.insert(dispatch.constants.end(), {1, type_of(weight)});
  dispatch.params.insert(dispatch.params.end(), {dispatch.groups[0], at.first, at.row, outputs,
                                                 side.out.place.at, side.out.place.row});
  dispatch.groups[0] += output_groups(outputs, shares);
  dispatch.weights[3] = emit.weight(side.weight, kMoreParam + 1);
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
                         {logits.at, logits.row, weights.at, weights.row, bits(rule.scale), 0});
  if (rule.bias) dispatch.weights[3] = emit.vector(rule.bias.id, kMoreParam + 5);
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

constexpr int64_t kTile = 64;  ///< rows and outputs of tiled.comp, outputs of tiled_dot4.comp

/// Rows of tiled_dot4.comp: few where workgroups would be too few for a large device, or where experts have a
/// fourth of that.
int64_t rows_of_tile(const ProductOf& product, int64_t outputs, int64_t experts) {
  constexpr int64_t kWorkgroups = 256;
  const bool few = product.ids != nullptr
                       ? product.ids->rows * product.ids->columns < experts * kTile / 4
                       : groups(outputs, kTile) * groups(product.out.rows, kTile) < kWorkgroups;
  return few ? kTile / 2 : kTile;
}

/// Rows that product.comp multiplies together of an expert: most experts have no more.
int64_t rows_of_group(const Operand& ids, int64_t experts) {
  int64_t tile = 2;
  while (tile < kMostTogether && tile * experts < 2 * ids.rows * ids.columns) tile *= 2;
  return tile;
}

/// Whether an expert's rows are multiplied together.
bool is_grouped(const Emit& emit, const ProductOf& product) {
  return product.ids != nullptr && are_grouped(emit, product.out.rows) &&
         emit[product.weight].shape[0] <= kMostGrouped;
}

/// Rows go to their experts' tiles in the order of experts.
void add_groups(Emit& emit, const Operand& ids, int64_t experts, int64_t tile, Dispatch& dispatch) {
  const int64_t entries = ids.rows * ids.columns;
  const int64_t tiles = std::min(entries, (entries + tile - 1) / tile + experts);
  const uint32_t list = emit.scratch_at(entries), tiles_at = emit.scratch_at(4 + 4 * tiles);
  Dispatch group{.shader = Shader::group};
  group.constants = {static_cast<uint32_t>(experts), u(tile)};
  group.params = {ids.place.at, ids.place.row, ids.columns, list, tiles_at};
  emit.add(std::move(group));
  emit.wait();
  dispatch.params.insert(dispatch.params.end(), {list, tiles_at, ids.columns});
  dispatch.groups = {dispatch.groups[0], static_cast<uint32_t>(tiles), 1};
}

/// Whether codes of rows are what it multiplies.
bool is_coded(const Emit& emit, const ProductOf& product) {
  return is_of_runs(emit[product.weight]) && (product.gate == kNoTensor || is_of_runs(emit[product.gate])) &&
         (product.side == nullptr || is_of_runs(emit[product.side->weight]));
}

/// Rows of a step that an invocation multiplies together.
int64_t rows_together(const Emit& emit, int64_t rows, bool apart) {
  int64_t together = 1;
  while (!apart && !emit.layout.options.batch_invariant && together < kMostTogether && together < rows)
    together *= 2;
  return together;
}

}  // namespace

bool are_coded_once(const Emit& emit, int64_t rows) {
  return rows > 1 && !emit.layout.options.batch_invariant && (!is_tiled(emit, rows) || emit.layout.dot4);
}

bool takes_codes(const Emit& emit, const ProductOf& product) {
  const int64_t rows = product.out.rows;
  if (!are_coded_once(emit, rows) || !is_coded(emit, product)) return false;
  if (product.ids != nullptr) return is_grouped(emit, product);
  return is_tiled(emit, rows) || (!product.by_head && product.merge == nullptr);
}

Codes emit_codes(Emit& emit, const Operand& in, int64_t columns, int64_t heads, TensorId norm,
                 float epsilon) {
  constexpr int64_t kQuadFloats = 4;
  const int64_t each = columns / 16 + columns / 32;  // codes, and two numbers for 16 of them
  const Codes codes{u(emit.scratch_at(in.rows * heads * each * kQuadFloats) / kQuadFloats), u(heads * each),
                    u(each)};
  Dispatch dispatch{.shader = Shader::codes, .constants = {norm != kNoTensor, in.aligned}};
  dispatch.params = {in.place.at, in.place.row, in.place.head, codes.at,     codes.row,
                     codes.head,  u(columns),   u(heads),      in.rows_word, bits(epsilon)};
  dispatch.groups = {norm != kNoTensor ? 1 : groups(heads * columns / 16, kWorkgroup), u(in.rows), 1};
  dispatch.params.push_back(0);
  if (norm != kNoTensor)
    dispatch.weights[2] = emit.vector(norm, static_cast<int>(dispatch.params.size()) - 1);
  emit.add(std::move(dispatch));
  return codes;
}

namespace {

/// Those of its rows, if it takes them.
std::optional<Codes> codes_for(Emit& emit, const ProductOf& product) {
  if (!takes_codes(emit, product)) return {};
  const int64_t heads = product.by_head || product.ids != nullptr ? product.in.heads : 1;
  return emit_codes(emit, product.in, emit[product.weight].columns(), heads, product.norm, product.epsilon);
}

}  // namespace

void emit_product(Emit& emit, const ProductOf& product) {
  const Tensor& weight = emit[product.weight];
  if (const auto codes = product.codes == nullptr ? codes_for(emit, product) : std::nullopt) {
    emit.wait();
    ProductOf of_codes = product;
    of_codes.codes = &*codes, of_codes.norm = kNoTensor;
    return emit_product(emit, of_codes);
  }
  const bool gated = product.gate != kNoTensor, selected = product.ids != nullptr,
             normed = product.norm != kNoTensor, adds = product.added != nullptr,
             made = product.codes != nullptr;
  const Operand &in = product.in, &out = product.out;
  const int64_t rows = out.rows, columns = weight.columns(), outputs = weight.shape[1];
  const bool grouped = is_grouped(emit, product), tiled = is_tiled(emit, rows) && (!selected || grouped);
  if (product.side != nullptr && tiled) {
    ProductOf alone = product;
    alone.side = nullptr;
    emit_product(emit, alone);
    alone.weight = product.side->weight, alone.out = product.side->out, alone.gate = kNoTensor;
    return emit_product(emit, alone);
  }
  // Rows of a small matrix of floats, as a router is, keep more workgroups busy apart.
  const bool small = !is_coded(emit, product) && outputs <= kWorkgroup;
  const int64_t together =
      grouped ? rows_of_group(*product.ids, weight.shape[0]) : rows_together(emit, rows, selected || small);
  const Place added = adds ? product.added->place : Place{}, ids = selected ? product.ids->place : Place{};
  const WeightBytesAt at = bytes_at(weight), gate = gated ? bytes_at(emit[product.gate]) : WeightBytesAt{};
  // Heads of a plain product are more columns; experts may all have the same row.
  const bool by_head = product.by_head || selected;
  const Place from = made ? Place{product.codes->at, product.codes->row, product.codes->head} : in.place;
  const uint32_t in_head = !by_head || (selected && in.heads == 1) ? 0 : from.head;
  const int64_t each_head = by_head ? out.heads : 1;
  const int64_t at_once = grouped ? std::min<int64_t>(weight.shape[0], rows * product.ids->columns)
                                  : each_head * groups(rows, together);
  Shares shares = shares_of(weight, outputs * at_once, together, gated);
  // What is merged, is merged by every workgroup again: few of them have all outputs.
  if (product.merge != nullptr) shares.outputs = 4, shares.ahead = 1;
  Dispatch dispatch{.shader = !tiled ? Shader::product : made ? Shader::tiled_dot4 : Shader::tiled};
  dispatch.constants = {type_of(weight), gated ? type_of(emit[product.gate]) : type_of(weight),
                        u(together),     u(shares.outputs),
                        selected,        adds,
                        normed,          gated,
                        in.aligned,      columns % 8 == 0};
  const int64_t tile = !tiled ? together : made ? rows_of_tile(product, outputs, weight.shape[0]) : kTile;
  if (tiled)
    dispatch.constants.insert(dispatch.constants.end(), {grouped, u(tile)});
  else
    dispatch.constants.insert(dispatch.constants.end(), {u(shares.ahead), u(shares.lanes)});
  dispatch.params = {from.at,
                     from.row,
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
                     rows <= kExactRows ? static_cast<uint32_t>(rows) : 0,
                     out.rows_word,
                     bits(product.epsilon),
                     bits(product.form.alpha),
                     bits(std::min(product.form.limit, kUnlimited)),
                     bits(product.form.shift)};
  const auto z = static_cast<uint32_t>(each_head);
  dispatch.groups = tiled ? std::array{groups(outputs, kTile), groups(rows, tile), z}
                          : std::array{output_groups(outputs, shares), groups(rows, tile), z};
  dispatch.weights[0] = emit.weight(product.weight, kWeightParam);
  if (gated) dispatch.weights[1] = emit.weight(product.gate, kGateParam);
  if (normed) dispatch.weights[2] = emit.vector(product.norm, kNormParam);
  if (grouped) add_groups(emit, *product.ids, weight.shape[0], tile, dispatch);
  if (product.side != nullptr) add_side(emit, *product.side, shares, dispatch);
  if (product.merge != nullptr) add_merge(*product.merge, dispatch);
  if (product.choice != nullptr) add_choice(emit, *product.choice, dispatch);
  if (product.latent != nullptr) add_latent(emit, *product.latent, dispatch);
  if (!tiled) {
    const bool coded = is_of_runs(weight) && (!gated || is_of_runs(emit[product.gate]));
    const bool side = product.side != nullptr, side_coded = side && is_of_runs(emit[product.side->weight]);
    // Of 32 KB, which every device has, beside what lanes give each other and the choice of experts.
    const Room room = made ? Room{}
                           : room_for(together, columns, coded || side_coded, !coded || (side && !side_coded),
                                      gated && shares.outputs > 2 ? 1024 : 1376);
    dispatch.constants.resize(kRoomConstant);
    dispatch.constants.insert(dispatch.constants.end(), {u(room.quads), u(room.steps), made, grouped});
  }
  if (normed) dispatch.params.resize(kNormParam + 1);
  emit.add(std::move(dispatch));
}

namespace {

/// Products of all experts apart, and their sum; false: they take too much room.
bool emit_down_of_many(Emit& emit, const MoeDownAdd& op) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const Operand ids = emit.operand(op.ids.id), out = emit.operand(op.out.id);
  const Tensor& down = emit[op.down.id];
  if (!are_grouped(emit, out.rows) || down.shape[0] > kMostGrouped ||
      out.rows * ids.columns * out.columns * 4 > kMostBytes)
    return false;
  const Operand each = emit.scratch(ids.columns, out.columns);
  const Operand residual = op.residual ? emit.operand(op.residual.id) : Operand{};
  const Operand* onto = op.residual ? &residual : nullptr;
  ProductOf experts{.in = emit.operand(op.in.id), .weight = op.down.id, .out = each, .ids = &ids}, shared;
  const auto of_experts = codes_for(emit, experts);
  if (of_experts) experts.codes = &*of_experts;
  std::optional<Codes> of_shared;
  if (op.shared_in) {
    shared = {.in = emit.operand(op.shared_in.id), .weight = op.shared_down.id, .out = out, .added = onto};
    of_shared = codes_for(emit, shared);
    if (of_shared) shared.codes = &*of_shared;
    onto = &out;
  }
  emit_product(emit, experts);  // rows are sorted by experts before it, and shared ones wait for that, too
  if (op.shared_in) emit_product(emit, shared);
  emit.wait();
  emit_combine(emit, each, emit.operand(op.weights.id), onto, out);
  return true;
}

}  // namespace

void emit(Emit& emit, const MoeDownAdd& op) {
  if (emit_down_of_many(emit, op)) return;
  const bool shared = bool(op.shared_in), adds = bool(op.residual);
  const Tensor& down = emit[op.down.id];
  Place in = emit.place(op.in.id), from = shared ? emit.place(op.shared_in.id) : Place{};
  const Place out = emit.place(op.out.id), ids = emit.place(op.ids.id), weights = emit.place(op.weights.id),
              other = adds ? emit.place(op.residual.id) : Place{};
  const WeightBytesAt at = bytes_at(down),
                      at_shared = shared ? bytes_at(emit[op.shared_down.id]) : WeightBytesAt{};
  const uint32_t outputs = emit.columns(op.out.id);
  constexpr int64_t kOutputs = 2, kLanes = 32, kMostColumns = 16 * 1270;  // 24 bytes for 16
  const int64_t columns = down.columns(), used = emit.columns(op.ids.id);
  const int64_t shared_columns = shared ? emit[op.shared_down.id].columns() : 0;
  const bool of_runs = is_of_runs(down) && (!shared || is_of_runs(emit[op.shared_down.id]));
  const bool made = of_runs && are_coded_once(emit, emit.sizes.rows);
  const bool coded = made || (of_runs && used * columns + shared_columns <= kMostColumns);
  if (made) {
    const auto codes_of = [&](TensorId id, int64_t heads, int64_t each) {
      const Codes codes = emit_codes(emit, emit.operand(id), each, heads, kNoTensor, 0);
      return Place{codes.at, codes.row, codes.head};
    };
    in = codes_of(op.in.id, used, columns);
    if (shared) from = codes_of(op.shared_in.id, 1, shared_columns);
    emit.wait();
  }
  const int64_t under_way = kRunsUnderWay / kOutputs;
  Dispatch dispatch{.shader = Shader::down};
  dispatch.constants = {type_of(down),
                        shared ? type_of(emit[op.shared_down.id]) : type_of(down),
                        shared,
                        u(kOutputs),
                        u(runs_ahead(used * columns / kRun, kLanes, under_way)),
                        adds,
                        u(columns),
                        u(shared_columns),
                        u(runs_ahead(shared_columns / kRun, kLanes, under_way)),
                        u(kLanes),
                        coded,
                        u(used),
                        made};
  dispatch.params = {in.at,   in.row,   in.head,         out.at,        out.row,  other.at,  other.row,
                     ids.at,  ids.row,  weights.at,      weights.row,   at.first, at.matrix, at.row,
                     from.at, from.row, at_shared.first, at_shared.row, outputs};
  dispatch.groups = {groups(outputs, kWorkgroup / kLanes * kOutputs), u(emit.sizes.rows), 1};
  dispatch.weights[0] = emit.weight(op.down.id, kExpertsParam);
  if (shared) dispatch.weights[1] = emit.weight(op.shared_down.id, kSharedParam);
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
