#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of prompts: tiles of pairs of a row and a head that share keys and values, against kPositions of the
// paged cache at a time. Scores are a product of two tiles, in slabs of 32 columns; those of a pair become weights
// under the largest so far; then values, read where they lie, are added up in registers.
#include "common.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;
#include "cache_row.glsl"

layout(push_constant) uniform Params {
  uint q_at, q_row, q_head, out_at, out_row, out_head;
  uint group_heads;
  uint value;                  // columns
  uint values_at, value_step;  // the first column of values in a cache row, and from one group's to the next's
  uint row_words, coded, exact_word, scales_word;
  uint positions_at, sequences_at, tables_at, prompts_at;
  uint window;
  float scale;
} p;
layout(constant_id = 1) const uint kPairs = 32;      // of a tile
layout(constant_id = 2) const uint kKey = 576;       // columns
layout(constant_id = 3) const uint kLanes = 128;     // invocations that have all columns of a value, four each
layout(constant_id = 4) const bool kSinks = false;

const uint kPositions = 64;                                    // of a tile
const uint kFours = 8;                                         // columns of a slab, four each
const uint kParts = 16u * kSize / (kPairs * kPositions);       // of a slab's columns: an invocation has 4 by 4 scores
const uint kEach = kPairs * kLanes / kSize;                    // pairs whose values an invocation adds up
const uint kShares = kSize / kPairs, kOwn = kPositions / kShares;  // scores that an invocation makes weights
const uint kFourApart = kFours + 1u, kPairsApart = kPairs / 4u + 1u;
const uint kSlab = (kPositions + kPairs) * kFourApart, kScores = kParts * kPositions * kPairsApart;
shared vec4 pool[kSlab > kScores ? kSlab : kScores];  // a slab of keys and of queries; or scores, then weights
shared uint rows_at[kPositions];
shared float of_shares[kSize];
shared vec4 factors[kPairs / 4u];

const uint kKeyLoads = kPositions * kFours / kSize, kQueryLoads = kPairs * kFours / kSize;
uint queries_at[kQueryLoads];
vec4 keys_read[kKeyLoads], queries_read[kQueryLoads];

void load(uint group, uint first) {
  uint four = first + gl_LocalInvocationID.x % kFours;
  bool is_there = kKey % (4u * kFours) == 0u || four < kKey / 4u;
  [[unroll]] for (uint n = 0; n < kKeyLoads; ++n) {
    uint at = rows_at[(gl_LocalInvocationID.x + n * kSize) / kFours];
    keys_read[n] = is_there ? cached_four(at, group * kKey + 4u * four, p.coded, p.exact_word, p.scales_word) : vec4(0);
  }
  [[unroll]] for (uint n = 0; n < kQueryLoads; ++n)
    queries_read[n] = is_there ? arena4.numbers[queries_at[n] + four] : vec4(0);
}

void put() {
  uint i = gl_LocalInvocationID.x;
  [[unroll]] for (uint n = 0; n < kKeyLoads; ++n)
    pool[(i + n * kSize) / kFours * kFourApart + i % kFours] = keys_read[n];
  [[unroll]] for (uint n = 0; n < kQueryLoads; ++n)
    pool[(kPositions + (i + n * kSize) / kFours) * kFourApart + i % kFours] = queries_read[n];
}

void make_scores(uint group) {
  const uint kAcross = kPositions / 4u, kDown = kPairs / 4u;
  uint i = gl_LocalInvocationID.x, x = i % kAcross, y = i / kAcross % kDown, part = i / (kAcross * kDown);
  vec4 dots[4] = vec4[4](vec4(0), vec4(0), vec4(0), vec4(0));  // by position, of four pairs
  load(group, 0);
  for (uint first = 0; first < kKey / 4u; first += kFours) {
    put();
    barrier();
    if (first + kFours < kKey / 4u) load(group, first + kFours);
    [[unroll]] for (uint f = 0; f < kFours / kParts; ++f) {
      uint four = part * (kFours / kParts) + f;
      vec4 keys[4];
      [[unroll]] for (uint n = 0; n < 4u; ++n) keys[n] = pool[(x + n * kAcross) * kFourApart + four];
      [[unroll]] for (uint m = 0; m < 4u; ++m) {
        vec4 query = pool[(kPositions + 4u * y + m) * kFourApart + four];
        [[unroll]] for (uint n = 0; n < 4u; ++n) {
          [[unroll]] for (uint e = 0; e < 4u; ++e) dots[n][m] += query[e] * keys[n][e];
        }
      }
    }
    barrier();
  }
  [[unroll]] for (uint n = 0; n < 4u; ++n)
    pool[(part * kPositions + x + n * kAcross) * kPairsApart + y] = p.scale * dots[n];
  barrier();
}

void main() {
  uint i = gl_LocalInvocationID.x, group = gl_WorkGroupID.z, row = 0, rows = 0;
  uint tile = gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;  // long contexts begin first
  for (uint n = 0; n < step_data.words[p.prompts_at]; ++n) {
    uint at = p.prompts_at + 2u * n + 1u, tiles = (step_data.words[at + 1u] * p.group_heads + kPairs - 1u) / kPairs;
    if (tile < tiles) {
      row = step_data.words[at], rows = step_data.words[at + 1u];
      break;
    }
    tile -= tiles;
  }
  if (rows == 0u) return;
  uint pairs = rows * p.group_heads, first_pair = tile * kPairs, first_head = group * p.group_heads;
  uint last_pair = min(first_pair + kPairs, pairs) - 1u, begin = 0xFFFFFFFFu, end = 0;
  for (uint r = first_pair / p.group_heads; r <= last_pair / p.group_heads; ++r) {
    uint length = step_data.words[p.positions_at + row + r] + 1u;
    begin = min(begin, p.window > 0u && length > p.window ? length - p.window : 0u), end = max(end, length);
  }
  uint table = p.tables_at + step_data.words[p.sequences_at + row] * step_data.words[kPagesAt];
  [[unroll]] for (uint n = 0; n < kQueryLoads; ++n) {
    uint pair = min(first_pair + (i + n * kSize) / kFours, last_pair);
    queries_at[n] = p.q_at + (row + pair / p.group_heads) * p.q_row + (first_head + pair % p.group_heads) * p.q_head;
    queries_at[n] >>= 2;
  }
  // Of the pair whose scores it weighs, together with others.
  uint own = i % kPairs, share = i / kPairs, own_pair = min(first_pair + own, last_pair);
  uint own_end = step_data.words[p.positions_at + row + own_pair / p.group_heads] + 1u;
  uint own_begin = p.window > 0u && own_end > p.window ? own_end - p.window : 0u;
  float sink = kSinks ? vector_of(0, first_head + own_pair % p.group_heads) : -kInfinity;
  float largest = sink, total = 0;
  // Of the pairs whose values it adds up.
  uint lane = i % kLanes, quad = i / kLanes * (kEach / 4u);
  uint column = p.values_at + group * p.value_step + 4u * lane;
  vec4 sums[kEach];
  [[unroll]] for (uint e = 0; e < kEach; ++e) sums[e] = vec4(0);
  for (uint base = begin / kPositions * kPositions; base < end; base += kPositions) {
    if (i < kPositions) {
      uint position = min(base + i, end - 1u);
      rows_at[i] = (step_data.words[table + position / 64u] * 64u + position % 64u) * p.row_words;
    }
    barrier();
    make_scores(group);
    float scores[kOwn], most = -kInfinity;
    [[unroll]] for (uint n = 0; n < kOwn; ++n) {
      uint t = share * kOwn + n, position = base + t;
      scores[n] = 0;
      [[unroll]] for (uint part = 0; part < kParts; ++part)
        scores[n] += pool[(part * kPositions + t) * kPairsApart + own / 4u][own % 4u];
      if (position < own_begin || position >= own_end) scores[n] = -kInfinity;
      most = max(most, scores[n]);
    }
    of_shares[i] = most;
    barrier();
    float before = largest;
    [[unroll]] for (uint s = 0; s < kShares; ++s) largest = max(largest, of_shares[s * kPairs + own]);
    float factor = before == largest ? 1.0 : exp(before - largest);
    total *= factor;
    [[unroll]] for (uint n = 0; n < kOwn; ++n) {
      float weight = scores[n] == -kInfinity ? 0.0 : exp(scores[n] - largest);
      pool[(share * kOwn + n) * kPairsApart + own / 4u][own % 4u] = weight;
      total += weight;
    }
    if (share == 0u) factors[own / 4u][own % 4u] = factor;
    barrier();
    [[unroll]] for (uint e = 0; e < kEach; ++e) sums[e] *= factors[quad + e / 4u][e % 4u];
    if (4u * lane < p.value) {
      for (uint t = 0; t < min(end - base, kPositions); t += 4u) {
        vec4 values[4];
        [[unroll]] for (uint n = 0; n < 4u; ++n)
          values[n] = cached_four(rows_at[t + n], column, p.coded, p.exact_word, p.scales_word);
        [[unroll]] for (uint n = 0; n < 4u; ++n) {
          [[unroll]] for (uint k = 0; k < kEach / 4u; ++k) {
            vec4 weights = pool[(t + n) * kPairsApart + quad + k];
            [[unroll]] for (uint e = 0; e < 4u; ++e) sums[4u * k + e] += weights[e] * values[n];
          }
        }
      }
    }
    barrier();
  }
  of_shares[i] = total;
  barrier();
  if (share == 0u) {
    total = kSinks ? exp(sink - largest) : 0.0;
    [[unroll]] for (uint s = 0; s < kShares; ++s) total += of_shares[s * kPairs + own];
    factors[own / 4u][own % 4u] = 1.0 / total;
  }
  barrier();
  [[unroll]] for (uint e = 0; e < kEach; ++e) {
    uint pair = first_pair + 4u * quad + e;
    if (pair > last_pair || 4u * lane >= p.value) break;
    uint at = p.out_at + (row + pair / p.group_heads) * p.out_row +
              (first_head + pair % p.group_heads) * p.out_head + 4u * lane;
    vec4 result = sums[e] * factors[quad + e / 4u][e % 4u];
    [[unroll]] for (uint c = 0; c < 4u; ++c) arena.numbers[at + c] = result[c];
  }
}
