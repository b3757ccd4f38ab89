// Rows of the cache as floats. Include it inside an anonymous namespace only, after a tier's Lanes.

/// `count` halves, then zeroes up to `room`, a multiple of 16 and less than 32 more.
inline void decode_halves(const uint16_t* row, int64_t count, float* out, int64_t room) {
  using L = Lanes;
  const int64_t whole = count / L::kWidth * L::kWidth;
  for (int64_t i = 0; i < whole; i += L::kWidth) L::store_f(out + i, L::halves(row + i));
  if (whole == room) return;
  uint16_t tail[32] = {};
  for (int64_t i = whole; i < count; ++i) tail[i - whole] = row[i];
  for (int64_t i = whole; i < room; i += L::kWidth) L::store_f(out + i, L::halves(tail + (i - whole)));
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

/// Row t, then zeroes up to `room`.
inline void decode_q8_row(const Q8Rows& rows, int64_t t, int64_t width, float* out, int64_t room) {
  using L = Lanes;
  const std::byte* row = rows.at + t * rows.row_bytes;
  const auto* codes = reinterpret_cast<const int8_t*>(row);
  const auto* scales = reinterpret_cast<const uint16_t*>(row + rows.scales_at);
  for (int64_t i = 0; i < rows.coded; i += kQ8Run) {
    const L::F scale = all_half(scales + i / kQ8Run);
    for (int64_t k = i; k < i + kQ8Run; k += L::kWidth) L::store_f(out + k, scaled(codes + k, scale));
  }
  decode_halves(reinterpret_cast<const uint16_t*>(row + rows.exact_at), width - rows.coded, out + rows.coded,
                room - rows.coded);
}

/// `width` numbers, then zeroes up to `room`.
inline void fill_row(const float* row, int64_t width, float* out, int64_t room) {
  for (int64_t i = 0; i < room; ++i) out[i] = i < width ? row[i] : 0.0f;
}
