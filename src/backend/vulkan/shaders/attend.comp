#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of a row's heads that share keys and values over a stretch of the paged cache: 32 positions at a
// time. Subgroups have positions where scores are made; where values are added up, kLanes invocations have all
// columns, and those beside them other positions. Latent attention is the case of one head of keys whose values
// are its own first columns.
#include "common.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;
#include "subgroups.glsl"
#include "cache_row.glsl"

layout(push_constant) uniform Params {
  uint q_at, q_row, q_head, out_at, out_row, out_head;
  uint heads, group_heads, tiles;   // tiles of kHeads heads in a group
  uint key, value;                  // columns
  uint values_at;                   // the first column of values in a cache row
  uint value_step;                  // columns from one group's values to the next's
  uint row_words, coded, exact_word, scales_word;
  uint positions_at, sequences_at, tables_at;
  uint window, stretch, stretches, partial_at;
  float scale;
  uint rotated_at, rotated_row, rotated_head, angles_at;  // the queries' last columns, which are rotated here
  uint rows;                        // 0: the step's data says how many
  uint prompts_at;                  // 0: no rows are attended to in tiles
} p;
layout(constant_id = 1) const uint kHeads = 4;     // of a tile
layout(constant_id = 2) const uint kKey = 576;     // columns
layout(constant_id = 3) const uint kFours = 1;     // of value columns an invocation has
layout(constant_id = 4) const bool kSinks = false;
layout(constant_id = 5) const bool kAligned = true;
layout(constant_id = 6) const uint kRotated = 0;     // columns
layout(constant_id = 7) const bool kHalves = false;
layout(constant_id = 8) const uint kSteps = 1;  // of a subgroup through a key, under way together
layout(constant_id = 9) const uint kLanes = 128;

const uint kChunk = 32;
const uint kEach = kChunk / (kSize / kLanes);  // positions of a chunk whose values an invocation adds up
const uint kKeysAhead = 4, kValuesAhead = kEach < 8u ? kEach : 8u;  // positions that are under way together
shared vec4 queries[kHeads * kKey / 4];
shared float scores[kHeads * kChunk];
shared uint rows_at[kChunk];
shared float largest[kHeads], totals[kHeads], factors[kHeads];
shared vec4 others[kSize];

// Whether attend_tiled.comp has the row.
bool is_of_prompt(uint row) {
  for (uint n = 0; n < step_data.words[p.prompts_at]; ++n) {
    uint at = p.prompts_at + 2u * n + 1u;
    if (row - step_data.words[at] < step_data.words[at + 1u]) return true;
  }
  return false;
}

uint row_of(uint table, uint position) {
  uint page = step_data.words[table + position / 64u];
  return (page * 64u + position % 64u) * p.row_words;
}

// Four columns of a query.
vec4 query_four(uint row, uint head, uint c) {
  if (kRotated == 0u || c < kKey - kRotated) return four_at(p.q_at + row * p.q_row + head * p.q_head + c, kAligned);
  uint from = p.rotated_at + row * p.rotated_row + head * p.rotated_head, pairs = kRotated / 2u;
  vec4 rotated;
  [[unroll]] for (uint e = 0; e < 4u; ++e) {
    uint column = c - (kKey - kRotated) + e, pair = kHalves ? column % pairs : column / 2u;
    bool is_first = kHalves ? column < pairs : column % 2u == 0u;
    uint angle = p.angles_at + 2u * (row * pairs + pair);
    float cosine = uintBitsToFloat(step_data.words[angle]), sine = uintBitsToFloat(step_data.words[angle + 1u]);
    float a = arena.numbers[from + (kHalves ? pair : 2u * pair)];
    float b = arena.numbers[from + (kHalves ? pairs + pair : 2u * pair + 1u)];
    rotated[e] = is_first ? a * cosine - b * sine : a * sine + b * cosine;
  }
  return rotated;
}

// Of the chunk's positions, several in a subgroup at a time: a trip to memory each would be most of the time.
void make_scores(uint group, uint base, uint end) {
  for (uint first = gl_SubgroupID; first < kChunk; first += kKeysAhead * gl_NumSubgroups) {
    float dots[kKeysAhead * kHeads];
    uint at[kKeysAhead];
    [[unroll]] for (uint d = 0; d < kKeysAhead * kHeads; ++d) dots[d] = 0;
    [[unroll]] for (uint ahead = 0; ahead < kKeysAhead; ++ahead)
      at[ahead] = rows_at[min(first + ahead * gl_NumSubgroups, kChunk - 1u)];
    for (uint begin = gl_SubgroupInvocationID; begin < kKey / 4u; begin += kSteps * gl_SubgroupSize) {
      vec4 keys[kKeysAhead * kSteps];
      [[unroll]] for (uint step = 0; step < kSteps; ++step) {
        uint c = min(begin + step * gl_SubgroupSize, kKey / 4u - 1u);
        [[unroll]] for (uint ahead = 0; ahead < kKeysAhead; ++ahead)
          keys[step * kKeysAhead + ahead] =
              cached_four(at[ahead], group * kKey + 4u * c, p.coded, p.exact_word, p.scales_word);
      }
      [[unroll]] for (uint step = 0; step < kSteps; ++step) {
        uint c = begin + step * gl_SubgroupSize;
        if (c >= kKey / 4u) continue;
        [[unroll]] for (uint h = 0; h < kHeads; ++h) {
          vec4 q = queries[h * (kKey / 4u) + c];
          [[unroll]] for (uint ahead = 0; ahead < kKeysAhead; ++ahead)
            dots[ahead * kHeads + h] += dot(keys[step * kKeysAhead + ahead], q);
        }
      }
    }
    [[unroll]] for (uint ahead = 0; ahead < kKeysAhead; ++ahead) {
      uint t = first + ahead * gl_NumSubgroups;
      [[unroll]] for (uint h = 0; h < kHeads; ++h) {
        float score = p.scale * subgroupAdd(dots[ahead * kHeads + h]);
        if (subgroupElect() && t < kChunk) scores[h * kChunk + t] = base + t < end ? score : -kInfinity;
      }
    }
  }
}

// Scores become weights under what is the largest so far; a subgroup has a head at a time.
void weigh_scores() {
  for (uint h = gl_SubgroupID; h < kHeads; h += gl_NumSubgroups) {
    float before = largest[h], most = before, total = 0;
    for (uint t = gl_SubgroupInvocationID; t < kChunk; t += gl_SubgroupSize) most = max(most, scores[h * kChunk + t]);
    most = subgroupMax(most);
    for (uint t = gl_SubgroupInvocationID; t < kChunk; t += gl_SubgroupSize) {
      float score = scores[h * kChunk + t], weight = score == -kInfinity ? 0.0 : exp(score - most);
      scores[h * kChunk + t] = weight;
      total += weight;
    }
    total = subgroupAdd(total);
    float factor = before == most ? 1.0 : exp(before - most);
    if (subgroupElect()) largest[h] = most, factors[h] = factor, totals[h] = totals[h] * factor + total;
  }
}

void main() {
  uint row = gl_WorkGroupID.y, group = gl_WorkGroupID.z / p.tiles, tile = gl_WorkGroupID.z % p.tiles;
  if (p.rows == 0u && row >= step_data.words[kRowsAt]) return;
  if (p.prompts_at > 0u && is_of_prompt(row)) return;
  uint length = step_data.words[p.positions_at + row] + 1u;
  uint begin = p.window > 0u && length > p.window ? length - p.window : 0u;
  uint end = min(length, (gl_WorkGroupID.x + 1u) * p.stretch), i = gl_LocalInvocationID.x;
  begin = max(begin, gl_WorkGroupID.x * p.stretch);
  uint table = p.tables_at + step_data.words[p.sequences_at + row] * step_data.words[kPagesAt];
  uint first_head = group * p.group_heads + tile * kHeads, end_head = (group + 1u) * p.group_heads;
  for (uint c = i; c < kHeads * kKey / 4u; c += gl_WorkGroupSize.x) {
    uint head = min(first_head + c / (kKey / 4u), end_head - 1u);
    queries[c] = query_four(row, head, 4u * (c % (kKey / 4u)));
  }
  if (i < kHeads) {
    largest[i] = kSinks && p.stretches == 1u ? vector_of(0, min(first_head + i, end_head - 1u)) : -kInfinity;
    totals[i] = 0;
  }
  vec4 sums[kHeads * kFours];
  [[unroll]] for (uint k = 0; k < kHeads * kFours; ++k) sums[k] = vec4(0);
  barrier();
  for (uint base = begin; base < end; base += kChunk) {
    if (i < kChunk) rows_at[i] = row_of(table, min(base + i, end - 1u));
    barrier();
    make_scores(group, base, end);
    barrier();
    weigh_scores();
    barrier();
    [[unroll]] for (uint k = 0; k < kFours; ++k) {
      uint c = 4u * (i % kLanes + k * kLanes);
      if (c >= p.value) break;
      [[unroll]] for (uint h = 0; h < kHeads; ++h) sums[h * kFours + k] *= factors[h];
      for (uint t = i / kLanes * kEach; t < min(i / kLanes * kEach + kEach, end - base); t += kValuesAhead) {
        vec4 v[kValuesAhead];
        [[unroll]] for (uint ahead = 0; ahead < kValuesAhead; ++ahead)
          v[ahead] = cached_four(rows_at[t + ahead], p.values_at + group * p.value_step + c, p.coded, p.exact_word,
                                 p.scales_word);
        [[unroll]] for (uint ahead = 0; ahead < kValuesAhead; ++ahead) {
          [[unroll]] for (uint h = 0; h < kHeads; ++h)
            sums[h * kFours + k] += scores[h * kChunk + t + ahead] * v[ahead];
        }
      }
    }
    barrier();
  }
  bool whole = p.stretches == 1u;
  [[unroll]] for (uint h = 0; h < kHeads; ++h) {
    if (first_head + h >= end_head) break;
    uint head = first_head + h, partial = (row * p.heads + head) * p.stretches + gl_WorkGroupID.x;
    uint at = p.partial_at + partial * (p.value + 4u) + 4u;
    if (whole) at = p.out_at + row * p.out_row + head * p.out_head;
    else if (i == 0u) arena.numbers[at - 4u] = largest[h], arena.numbers[at - 3u] = totals[h];
    float total = whole ? totals[h] : 1.0;
    if (whole && kSinks) total += exp(vector_of(0, head) - largest[h]);
    [[unroll]] for (uint k = 0; k < kFours; ++k) {
      uint c = 4u * (i + k * kLanes);
      vec4 v = sums[h * kFours + k];
      if (kLanes < kSize) {
        barrier();
        others[i] = v;
        barrier();
        for (uint n = i + kLanes; n < kSize; n += kLanes) v += others[n];
      }
      v /= total;
      for (uint e = 0; e < 4u && i < kLanes && c < p.value; ++e) arena.numbers[at + c + e] = v[e];
    }
  }
}
