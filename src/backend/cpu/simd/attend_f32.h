// Attention's operands in float32. Include it inside an anonymous namespace only, after a tier's Lanes,
// attend_softmax.h and attend_rows.h; `kGroupF32` queries share registers.

struct Operand : FloatSums {
  using Number = float;
  using Vector = Lanes::F;
  static constexpr int kGroup = kGroupF32, kValueGroup = kGroupF32, kValueBlock = 4;
  static constexpr int kNumbers = Lanes::kWidth;
  static constexpr int kRows = 1;
  static constexpr int64_t kWeightStride = kChunkRows;

  static int64_t stride(AttendShape shape) { return round_up(shape.width, 16); }
  static int64_t numbers(AttendShape shape) { return stride(shape); }
  static Vector load(const float* at) { return Lanes::load_f(at); }
  template <int N>
  static void load_values(const float* row, int64_t, Vector (&v)[N]) {
    for (int n = 0; n < N; ++n) v[n] = load(row + n * kNumbers);
  }
  static Vector repeat(const float* at) { return Lanes::all_f(*at); }
  static Lanes::F multiply_add(Vector a, Vector b, Lanes::F sum) { return Lanes::fma(a, b, sum); }
  static const float* keys(const float* tile) { return tile; }
  static void store_scores(const Sum* sums, const float*, int64_t, const float*, int64_t, AttendShape,
                           float* scores) {
    store_totals(sums, scores);
  }
  static void make_weights(float*, int64_t, const float*, AttendShape, float*) {}
};

int64_t tile_floats(AttendShape shape) { return kChunkRows * Operand::stride(shape); }

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const int64_t stride = Operand::stride(shape);
  for (int64_t t = 0; t < count; ++t)
    decode_halves(rows + t * shape.width, shape.width, tile + (first + t) * stride, stride);
}

void decode_q8(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const int64_t stride = Operand::stride(shape);
  for (int64_t t = 0; t < count; ++t)
    decode_q8_row(rows, t, shape.width, tile + (first + t) * stride, stride);
}

void decode_f32(const float* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  for (int64_t t = 0; t < count; ++t) {
    fill_row(rows + t * shape.width, shape.width, tile + (first + t) * Operand::stride(shape),
             Operand::stride(shape));
  }
}

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  for (int64_t i = 0; i < queries; ++i)
    fill_row(q[i], shape.width, packed + i * Operand::stride(shape), Operand::stride(shape));
}
