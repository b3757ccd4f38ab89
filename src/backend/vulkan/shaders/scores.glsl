// What experts are chosen by (program/ops/route.h): who includes it has kExperts, kSigmoid, kBiased, and
// kBiasSource, the source of weights where biases are, and bias_at, the first of them there.
const float kLowest = -1e30, kSmallestSum = 6.103515625e-5;
shared float values[kExperts + 1u], selection[kExperts + 1u];
shared uint chosen[kExperts + 1u];

// Scores of a row's logits: softmax or sigmoid; what is no number counts as the lowest.
void make_scores(uint from) {
  uint i = gl_LocalInvocationID.x;
  float most = -kInfinity, sum = 0;
  if (!kSigmoid) {
    for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) most = max(most, arena.numbers[from + e]);
    most = workgroup_max(most);
  }
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) {
    float x = arena.numbers[from + e];
    values[e] = kSigmoid ? 1.0 / (1.0 + exp(-x)) : exp(x - most);
    sum += values[e];
  }
  if (!kSigmoid) sum = workgroup_sum(sum);
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) {
    if (!kSigmoid) values[e] /= sum;
    float value = values[e] + (kBiased ? vector_of(kBiasSource, bias_at() + e) : 0.0);
    selection[e] = value > kLowest ? value : kLowest;
  }
  barrier();
}

// What a chosen expert's value is multiplied by.
float weight_factor(uint used, bool normalized, float scale) {
  float sum = 0;
  for (uint k = 0; k < used; ++k) sum += values[chosen[k]];
  return normalized ? scale / max(sum, kSmallestSum) : scale;
}
