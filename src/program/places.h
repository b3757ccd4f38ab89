// Programs of several places: devices that each run a part of every op and hand over what the others need.
// They are cut from a program of one place, op by op, and each place's side of one is a program again, which
// a backend compiles like any other. Knows ops and tensors; what a place is, and how things get from one to
// another, is others' business (backend/places).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"

namespace sluice::program {

/// Places of a program at most.
inline constexpr size_t kMostPlaces = 64;

/// The same computation cut into as many places as there are shares, which are in proportion: attention by
/// heads, feed-forward networks (dense, shared and every expert) by their inner columns, the output matrix by
/// the vocabulary's rows. Norms, routers and low-rank products run everywhere, and so every place selects the
/// same experts; the latent cache is everywhere, too, that of grouped attention as far as its heads. A row
/// that places have each a part of is added up (all_reduce), and the first of the parts has the residual.
/// Cuts lie between heads and between blocks of the weights' types, so that a place may get less than its
/// share, or nothing. Tensors of `program` keep their ids; weights of places are views of them, while its
/// caches are there by name alone: places have their own. Throws Error for an op that cannot be cut, and for
/// shares that are none. Of the token table every place has all (Tables::Everywhere), or the first one, which
/// hands its rows over.
enum class Tables : uint8_t { AtTheFirst, Everywhere };
Program split(const Program& program, std::span<const double> shares, Tables tables = Tables::AtTheFirst);

/// The same computation with whole layers at each of so many places, one behind the other: the place with the
/// most bytes of weights has as few as can be. What is outside of layers (token table, output matrix) is at
/// the first. What a layer reads of an earlier place is copied, and nothing is added up otherwise: results
/// are the same to the bit. Of a cache each place has its layers. A place may get nothing. Ids are kept as by
/// split().
Program deal_layers(const Program& program, size_t places);

/// What a place runs of such a program: its own ops, and its operands of the ops across places. It is to be
/// compiled, not verified: of an all_gather it has one input. Ids are the whole program's; other places'
/// caches are there by name alone.
Program program_at(const Program& program, int32_t place);

/// What a place's side (program_at) is between its ops across places: as many programs as parts(side), some
/// without ops, each of one place and with the side's ids. What is brought there are inputs of those behind
/// it; what is taken away, the one before it leaves. Throws Error where one needs something else of another.
std::vector<Program> stretches(const Program& side);

/// Activations that ops read and none writes: who runs the program pokes them before.
std::vector<TensorId> inputs(const Program& program);

/// Whether it is one of Program::caches().
bool is_kept(const Tensor& tensor);
/// A tensor that takes an id, and no memory.
Tensor by_name_alone(const Tensor& tensor);

/// The stretches of ops between those across places: one more than there are of these, and maybe empty.
std::vector<Range> parts(const Program& program);

}  // namespace sluice::program
