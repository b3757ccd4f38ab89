// Four numbers of a cache row from column c on, a multiple of 4 (quant/cache_row.h).
layout(constant_id = 0) const uint kType = 1;

vec4 cached_four(uint row, uint c, uint coded, uint exact_word, uint scales_word) {
  if (kType == 0)
    return vec4(uintBitsToFloat(cache.words[row + c]), uintBitsToFloat(cache.words[row + c + 1u]),
                uintBitsToFloat(cache.words[row + c + 2u]), uintBitsToFloat(cache.words[row + c + 3u]));
  if (kType == 8 && c < coded) {
    uint scale = cache.words[row + scales_word + (c >> 6)] >> ((c >> 5 & 1u) * 16u);
    int codes = int(cache.words[row + (c >> 2)]);
    return half_at(scale) * vec4(bitfieldExtract(codes, 0, 8), bitfieldExtract(codes, 8, 8),
                                 bitfieldExtract(codes, 16, 8), bitfieldExtract(codes, 24, 8));
  }
  uint at = kType == 8 ? row + exact_word + (c - coded >> 1) : row + (c >> 1);
  return vec4(unpackHalf2x16(cache.words[at]), unpackHalf2x16(cache.words[at + 1u]));
}
