// Fused ops that a backend lacks become their expansions, again and again until every op is one that it has.
#include "base/error.h"
#include "program/backend.h"
#include "program/builder.h"
#include "program/op_info.h"
#include "program/program.h"

namespace sluice::program {
namespace {

using Has = std::function<bool(const Program&, const Op&)>;
using Expand = std::function<bool(Builder&, const Op&)>;

void add_legal(Program& out, const Op& op, const std::string& backend, const Has& has,
               const Expand& otherwise) {
  if (has(out, op)) {
    out.add(op);
    return;
  }
  if (info(op).expand == nullptr) fail("the backend {} lacks {}", backend, out.op_name(op));
  // The expansion goes into a Program of its own that shares the tensors, then is legalized op by op.
  Program expansion;
  for (const Tensor& tensor : out.tensors()) expansion.add(tensor);
  Builder builder(expansion);
  builder.set_layer(op.layer);
  builder.set_place(op.place);
  if (!otherwise || !otherwise(builder, op)) info(op).expand(builder, op);
  for (size_t i = out.tensors().size(); i < expansion.tensors().size(); ++i) out.add(expansion.tensors()[i]);
  for (const Op& simpler : expansion.ops()) add_legal(out, simpler, backend, has, otherwise);
}

}  // namespace

Program legalize(const Program& program, const std::string& backend, const Has& has,
                 const Expand& otherwise) {
  Program out;
  for (const Tensor& tensor : program.tensors()) out.add(tensor);
  for (const Op& op : program.ops()) add_legal(out, op, backend, has, otherwise);
  out.set_output(program.output());
  out.set_hidden_in(program.hidden_in());
  out.set_hidden_out(program.hidden_out());
  return out;
}

Program legalize(const Program& program, const Backend& backend, int64_t rows) {
  return legalize(program, backend.name(),
                  [&](const Program& p, const Op& op) { return backend.has_for(p, op, rows); });
}

}  // namespace sluice::program
