// The grids of the IQ1, IQ2 and IQ3 formats: a code names a point, the magnitudes of four or eight
// neighbouring numbers. As words of four bytes, lowest number first, which is how kernels multiply them.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::quant {

/// What a zero of IQ1 is in kIq1, whose numbers are -1, 0 and 1 in steps of eighths: 8 a step.
inline constexpr uint8_t kIq1Zero = 128;

extern const std::array<uint32_t, 2 * 256> kIq2Xxs;
extern const std::array<uint32_t, 2 * 512> kIq2Xs;
extern const std::array<uint32_t, 2 * 1024> kIq2S;
extern const std::array<uint32_t, 2 * 2048> kIq1;  ///< of IQ1_S and IQ1_M
extern const std::array<uint32_t, 256> kIq3Xxs;
extern const std::array<uint32_t, 512> kIq3S;

}  // namespace sluice::quant
