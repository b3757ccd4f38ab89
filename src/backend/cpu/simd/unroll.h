// Bodies that are repeated with constants. Include it inside an anonymous namespace only, after <utility>.

#define SLUICE_INLINE __attribute__((always_inline))

template <typename Function, int... i>
SLUICE_INLINE inline void call_each(Function f, std::integer_sequence<int, i...>) {
  (f(std::integral_constant<int, i>{}), ...);
}
