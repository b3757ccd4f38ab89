// Attention's operands in float32. Include it inside an anonymous namespace only, after a tier's Lanes and
// attend_softmax.h; `kGroupF32` queries share registers.

struct Operand {
  using Number = float;
  using Vector = Lanes::F;
  static constexpr int kGroup = kGroupF32;
  static constexpr int kNumbers = Lanes::kWidth;
  static constexpr int kRows = 1;
  static constexpr int64_t kWeightStride = kChunkRows;

  static int64_t stride(AttendShape shape) { return round_up(shape.width, 16); }
  static int64_t numbers(AttendShape shape) { return stride(shape); }
  static Vector load(const float* at) { return Lanes::load_f(at); }
  static Vector repeat(const float* at) { return Lanes::all_f(*at); }
  static Lanes::F multiply_add(Vector a, Vector b, Lanes::F sum) { return Lanes::fma(a, b, sum); }
  static const float* keys(const float* tile) { return tile; }
  static const float* values(const float* tile, AttendShape) { return tile; }
  static int64_t value_stride(AttendShape shape) { return stride(shape); }
  static void make_weights(float*, int64_t, float*) {}
};

int64_t tile_floats(AttendShape shape) { return kChunkRows * Operand::stride(shape); }

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  using L = Lanes;
  const int64_t stride = Operand::stride(shape), whole = shape.width / L::kWidth * L::kWidth;
  for (int64_t t = 0; t < count; ++t) {
    const uint16_t* row = rows + t * shape.width;
    float* out = tile + (first + t) * stride;
    for (int64_t i = 0; i < whole; i += L::kWidth) L::store_f(out + i, L::halves(row + i));
    if (whole == stride) continue;
    uint16_t tail[16] = {};
    for (int64_t i = whole; i < shape.width; ++i) tail[i - whole] = row[i];
    for (int64_t i = whole; i < stride; i += L::kWidth) L::store_f(out + i, L::halves(tail + (i - whole)));
  }
}

/// A row of `width` numbers, filled up with zeroes.
void fill_row(const float* row, AttendShape shape, float* out) {
  for (int64_t i = 0; i < Operand::stride(shape); ++i) out[i] = i < shape.width ? row[i] : 0.0f;
}

void decode_f32(const float* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  for (int64_t t = 0; t < count; ++t) {
    fill_row(rows + t * shape.width, shape, tile + (first + t) * Operand::stride(shape));
  }
}

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  for (int64_t i = 0; i < queries; ++i) fill_row(q[i], shape, packed + i * Operand::stride(shape));
}
