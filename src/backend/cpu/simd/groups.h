// Counts, and loops over groups whose size the compiler knows. Include it inside an anonymous namespace only.

constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

inline int64_t largest_of(const int32_t* counts, int64_t number) {
  int64_t most = 0;
  for (int64_t i = 0; i < number; ++i) most = counts[i] > most ? counts[i] : most;
  return most;
}

/// `queries` are taken in groups of nearly the same size, at most `most`: calls body(first, size).
template <typename Body>
inline void in_groups(int64_t queries, int64_t most, Body body) {
  const int64_t groups = (queries + most - 1) / most;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = queries * g / groups;
    body(first, queries * (g + 1) / groups - first);
  }
}

/// Calls body with the size of a group, 1 to N, as a constant.
template <int N, typename Body>
inline void with_size(int64_t size, Body body) {
  if constexpr (N > 1) {
    if (size < N) return with_size<N - 1>(size, body);
  }
  body(std::integral_constant<int, N>{});
}
