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
  template <int N>
  static void load_values(const float* row, int64_t, Vector (&v)[N]) {
    for (int n = 0; n < N; ++n) v[n] = load(row + n * kNumbers);
  }
  static Vector repeat(const float* at) { return Lanes::all_f(*at); }
  static Lanes::F multiply_add(Vector a, Vector b, Lanes::F sum) { return Lanes::fma(a, b, sum); }
  static const float* keys(const float* tile) { return tile; }
  static void make_weights(float*, int64_t, float*) {}
};

int64_t tile_floats(AttendShape shape) { return kChunkRows * Operand::stride(shape); }

/// `count` halves, then zeroes up to `room`, a multiple of 16.
void decode_halves(const uint16_t* row, int64_t count, float* out, int64_t room) {
  using L = Lanes;
  const int64_t whole = count / L::kWidth * L::kWidth;
  for (int64_t i = 0; i < whole; i += L::kWidth) L::store_f(out + i, L::halves(row + i));
  if (whole == room) return;
  uint16_t tail[16] = {};
  for (int64_t i = whole; i < count; ++i) tail[i - whole] = row[i];
  for (int64_t i = whole; i < room; i += L::kWidth) L::store_f(out + i, L::halves(tail + (i - whole)));
}

void decode_f16(const uint16_t* rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  const int64_t stride = Operand::stride(shape);
  for (int64_t t = 0; t < count; ++t)
    decode_halves(rows + t * shape.width, shape.width, tile + (first + t) * stride, stride);
}

/// A vector of codes, one signed byte a lane, times the scale.
inline Lanes::F scaled(const int8_t* codes, Lanes::F scale) {
  using L = Lanes;
  return L::mul(L::to_float(L::shift_right_signed(L::shift_left(L::bytes(codes), 24), 24)), scale);
}

/// A binary16 number in all lanes.
inline Lanes::F all_half(const uint16_t* at) {
  uint16_t same[Lanes::kWidth];
  for (uint16_t& half : same) half = *at;
  return Lanes::halves(same);
}

void decode_q8(Q8Rows rows, AttendShape shape, int64_t first, int64_t count, float* tile) {
  using L = Lanes;
  const int64_t stride = Operand::stride(shape);
  for (int64_t t = 0; t < count; ++t) {
    const std::byte* row = rows.at + t * rows.row_bytes;
    const auto* codes = reinterpret_cast<const int8_t*>(row);
    const auto* scales = reinterpret_cast<const uint16_t*>(row + rows.scales_at);
    float* out = tile + (first + t) * stride;
    for (int64_t i = 0; i < rows.coded; i += kQ8Run) {
      const L::F scale = all_half(scales + i / kQ8Run);
      for (int64_t k = i; k < i + kQ8Run; k += L::kWidth) L::store_f(out + k, scaled(codes + k, scale));
    }
    decode_halves(reinterpret_cast<const uint16_t*>(row + rows.exact_at), shape.width - rows.coded,
                  out + rows.coded, stride - rows.coded);
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
