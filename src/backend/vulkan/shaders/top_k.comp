#version 450
#extension GL_GOOGLE_include_directive : require
// The likeliest tokens of an output: a workgroup sorts some of its logits and passes the first ones on, as
// pairs of a logit and a token; and the same again of those, until one workgroup is left. The highest logit is
// first, of equal ones the lower token; minus infinity and what is no number are none: token -1.
#include "common.glsl"
layout(local_size_x = 256) in;

layout(push_constant) uniform Params { uint in_at, in_row, count, out_at, out_row, rows_word; } p;
layout(constant_id = 0) const bool kPairs = false;
const uint kSorted = 1024, kKept = 64, kNone = 0x7FFFFFFFu;
const float kLowest = -3.402823466e38;
shared float logits[kSorted];
shared uint tokens[kSorted];

void main() {
  uint row = gl_WorkGroupID.y, i = gl_LocalInvocationID.x;
  if (row >= step_data.words[p.rows_word]) return;
  [[unroll]] for (uint part = 0; part < kSorted / 256u; ++part) {
    uint to = part * 256u + i, n = gl_WorkGroupID.x * kSorted + to, at = p.in_at + row * p.in_row + (kPairs ? 2u * n : n);
    float logit = kLowest;
    uint token = kNone;
    if (n < p.count) {
      logit = arena.numbers[at], token = n;
      if (kPairs) token = arena.numbers[at + 1u] < 0.0 ? kNone : uint(arena.numbers[at + 1u]);
      if (!(logit >= kLowest)) token = kNone;
    }
    logits[to] = token == kNone ? kLowest : logit, tokens[to] = token;
  }
  barrier();
  // A bitonic sort: runs of `run` stand in turns in one order and in the other.
  for (uint run = 2u; run <= kSorted; run *= 2u) {
    for (uint apart = run / 2u; apart > 0u; apart /= 2u) {
      [[unroll]] for (uint part = 0; part < kSorted / 512u; ++part) {
        uint pair = part * 256u + i, first = 2u * pair - (pair & (apart - 1u)), second = first + apart;
        float a = logits[first], b = logits[second];
        uint token_a = tokens[first], token_b = tokens[second];
        bool is_after = b > a || (b == a && token_b < token_a), descends = (first & run) == 0u;
        if (is_after == descends) {
          logits[first] = b, logits[second] = a;
          tokens[first] = token_b, tokens[second] = token_a;
        }
      }
      barrier();
    }
  }
  if (i >= kKept) return;
  uint at = p.out_at + row * p.out_row + 2u * (gl_WorkGroupID.x * kKept + i);
  arena.numbers[at] = logits[i], arena.numbers[at + 1u] = tokens[i] == kNone ? -1.0 : float(tokens[i]);
}
