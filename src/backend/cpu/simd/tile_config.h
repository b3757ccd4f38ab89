// Matrix tiles set up for products of bf16. Include it inside an anonymous namespace only, after immintrin.h.

/// LDTILECFG's 64 bytes (Intel's Architecture Instruction Set Extensions reference, chapter 3): all tiles are
/// 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void configure_tiles() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}
