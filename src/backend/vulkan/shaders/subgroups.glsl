// Sums over a subgroup or a workgroup of any size.
shared float subgroup_results[256];

// All invocations of the workgroup call it together.
float workgroup_sum(float value) {
  value = subgroupAdd(value);
  if (subgroupElect()) subgroup_results[gl_SubgroupID] = value;
  barrier();
  float sum = 0;
  for (uint i = 0; i < gl_NumSubgroups; ++i) sum += subgroup_results[i];
  barrier();
  return sum;
}
float workgroup_max(float value) {
  value = subgroupMax(value);
  if (subgroupElect()) subgroup_results[gl_SubgroupID] = value;
  barrier();
  float largest = subgroup_results[0];
  for (uint i = 1; i < gl_NumSubgroups; ++i) largest = max(largest, subgroup_results[i]);
  barrier();
  return largest;
}
