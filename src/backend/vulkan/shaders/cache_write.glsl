// What a row's words are in the cache (quant/cache_row.h): who includes it has kType, the cache's type as
// quant/types.h numbers them, and says what the row's columns are.
float column_of(uint row, uint c);

uint halves_at(uint row, uint c, uint columns) {
  uint second = c + 1u < columns ? half_of(column_of(row, c + 1u)) : 0u;
  return half_of(column_of(row, c)) | second << 16;
}

// The smallest binary16 that is not below a number of at least 0.
uint half_not_below(float value) {
  uint nearest = half_of(value);
  return half_at(nearest) < value ? nearest + 1u : nearest;
}

uint scale_of(uint row, uint run, uint coded) {
  float largest = 0;
  for (uint c = 32u * run; c < min(32u * run + 32u, coded); ++c) largest = max(largest, abs(column_of(row, c)));
  return half_not_below(largest / 127.0);
}

// Word w of a row of `columns` numbers of which `coded` have eight bits.
uint cache_word(uint row, uint w, uint columns, uint coded, uint exact_word, uint scales_word) {
  uint word = 0;
  if (kType == 0) {
    word = floatBitsToUint(column_of(row, w));
  } else if (kType == 1) {
    word = halves_at(row, 2u * w, columns);
  } else if (w >= scales_word) {
    uint run = 2u * (w - scales_word), runs = (coded + 31u) / 32u;
    if (run < runs) word = scale_of(row, run, coded);
    if (run + 1u < runs) word |= scale_of(row, run + 1u, coded) << 16;
  } else if (w >= exact_word) {
    uint c = coded + 2u * (w - exact_word);
    if (c < columns) word = halves_at(row, c, columns);
  } else if (4u * w < coded) {
    float scale = half_at(scale_of(row, 4u * w / 32u, coded)), inverse = scale > 0.0 ? 1.0 / scale : 0.0;
    for (uint i = 0; i < 4 && 4u * w + i < coded; ++i)
      word |= (uint(int(clamp(roundEven(column_of(row, 4u * w + i) * inverse), -128.0, 127.0))) & 255u) << (8u * i);
  }
  return word;
}
