// AVX2's vectors of numbers of 16 bits where AVX-VNNI has products of pairs and their sums by one
// instruction. Include it inside an anonymous namespace only, after AVX2's Lanes.

namespace plain {
#include "backend/cpu/simd/int16_avx2.h"
}

struct Int16 : plain::Int16 {
  /// In assembly: g++ would leave copies of the sums behind.
  static Vector multiply_add(Vector a, Vector b, Vector sum) {
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
  }
};
