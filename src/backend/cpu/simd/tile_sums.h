// Tiles 0 to 3 as the sums of two groups of rows with two panels: [group][panel], kTileFloats each. Include
// it inside an anonymous namespace only, after immintrin.h and tiles.h.

/// From memory, or zeroes. `two`: both groups.
template <bool two>
inline __attribute__((always_inline)) void load_sums(const float* sums, bool more) {
  constexpr int kLine = 64;
  if (more) {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + kTileFloats, kLine);
    if (two) _tile_loadd(2, sums + 2 * kTileFloats, kLine);
    if (two) _tile_loadd(3, sums + 3 * kTileFloats, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (two) _tile_zero(2);
    if (two) _tile_zero(3);
  }
}

template <bool two>
inline __attribute__((always_inline)) void store_sums(float* sums) {
  constexpr int kLine = 64;
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + kTileFloats, kLine);
  if (two) _tile_stored(2, sums + 2 * kTileFloats, kLine);
  if (two) _tile_stored(3, sums + 3 * kTileFloats, kLine);
}

/// For writing: what is asked for to be read first has to be asked for again.
inline __attribute__((always_inline)) void ask_to_write(const float* at) {
  asm volatile("prefetchw %0" : : "m"(*at));
}

/// Asks for a sixteenth of the sums behind these, which the next product adds to: 512 columns have as many
/// steps.
inline __attribute__((always_inline)) const float* ask_for_sums(const float* next) {
  constexpr int kLineFloats = 16;
  for (int line = 0; line < 4; ++line, next += kLineFloats) ask_to_write(next);
  return next;
}
